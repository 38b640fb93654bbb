"""Documents to tokens: the tokenizers library on all cores, one BOS and one EOS per document.

The tokenizer adds no special token by itself here, and a special token written out in a text is
encoded as the plain text it is; BOS and EOS of the tokenizer directory are put around each
document afterwards, so there is exactly one of each whatever the tokenizer would do.
"""

from pathlib import Path

import pyarrow as pa

from marin.datakit.encode import TOKENS_TYPE, Encoder
from marin.datakit.parts import write_sidecar
from marin.datakit.tokenizer import open_tokenizer
from marin.engine import Progress, Silent, read_manifest, stage_directory

TOKENS_SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), pa.field("tokens", TOKENS_TYPE)]
)


def tokenize(
    documents: Path,
    tokenizer: Path,
    root: Path,
    *,
    dedup: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the tokens sidecar (`id`, `tokens: large_list<uint32>`) of `documents`.

    Args:
      tokenizer: a directory of `train_bpe` or `load_tokenizer`.
      dedup: its removed documents get null.

    Memory: one row group of documents and the library's encodings of 2 Mi characters; a longer
    document is encoded in pieces.
    """
    progress = progress or Silent()
    special = read_manifest(tokenizer).summary
    inputs = {
        "documents": read_manifest(documents).fingerprint,
        "tokenizer": str(special["hash"]),
    }
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    with stage_directory(root, "tokens", {}, inputs) as stage:
        if not stage.finished:
            encoder = Encoder(open_tokenizer(tokenizer), special["bos"], special["eos"])
            rows = write_sidecar(
                stage,
                documents,
                ["text"],
                TOKENS_SCHEMA,
                lambda batch: pa.record_batch(
                    [batch["id"], encoder.encode(batch["text"])], schema=TOKENS_SCHEMA
                ),
                name="Tokenize",
                dedup=dedup,
                progress=progress,
            )
            stage.finish(rows, {"tokenizer": dict(special), "tokens": encoder.tokens})
    return stage.path
