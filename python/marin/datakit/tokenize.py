"""Documents to tokens: the tokenizers library on all cores, one BOS and one EOS per document.

The tokenizer adds no special token by itself here, and a special token written out in a text is
encoded as the plain text it is; BOS and EOS of the tokenizer directory are put around each
document afterwards, so there is exactly one of each whatever the tokenizer would do.
"""

from functools import lru_cache, partial
from pathlib import Path

import pyarrow as pa
from tokenizers import Tokenizer

from marin.datakit.encode import TOKENS_TYPE, Encoder
from marin.datakit.parts import write_sidecar
from marin.datakit.tokenizer import open_tokenizer
from marin.engine import Engine, Local, Progress, Silent, read_manifest, stage_directory

TOKENS_SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("tokens", TOKENS_TYPE)]
)


def tokenize(
    documents: Path,
    tokenizer: Path,
    root: Path,
    *,
    dedup: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the tokens sidecar (`id`, `tokens: large_list<uint32>`) of `documents`.

    Args:
      tokenizer: a directory of `train_bpe` or `load_tokenizer`.
      dedup: its removed documents get null.

    Two row groups are in work, so that the library's threads never wait for one to be converted.
    Memory: four row groups of documents and the library's encodings of 3 Mi characters. A longer
    document is encoded in pieces where the tokenizer gives the tokens of the whole then (see
    `may_cut`), else at once.
    """
    special = read_manifest(tokenizer).summary
    inputs = {
        "documents": read_manifest(documents).fingerprint,
        "tokenizer": str(special["hash"]),
    }
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    with stage_directory(root, "tokens", {}, inputs) as stage:
        if not stage.finished:
            rows, tokens = write_sidecar(
                stage,
                documents,
                ["text"],
                TOKENS_SCHEMA,
                partial(_encode, tokenizer, special["bos"], special["eos"]),
                name="Tokenize",
                count="tokens",
                at_once=2,
                dedup=dedup,
                engine=engine or Local(),
                progress=progress or Silent(),
            )
            stage.finish(rows, {"tokenizer": dict(special), "tokens": tokens})
    return stage.path


def _encode(
    directory: Path, bos: int | None, eos: int | None, batch: pa.RecordBatch
) -> pa.RecordBatch:
    tokens = Encoder(_opened(directory), bos, eos).encode(batch["text"])
    return pa.record_batch([batch["id"], tokens], schema=TOKENS_SCHEMA)


@lru_cache(maxsize=2)
def _opened(directory: Path) -> Tokenizer:
    return open_tokenizer(directory)
