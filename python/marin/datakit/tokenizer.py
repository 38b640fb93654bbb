"""Tokenizer directories: trained on the documents, or taken from a file or a hub name.

A tokenizer directory holds `tokenizer.json`; its manifest's summary says `vocab_size`, the ids
`bos` and `eos` that frame every document (null: not added), and `hash`, which covers the file's
content and these two, so equal hashes mean equal tokens.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from marin._native import document_keys, xxh3_file
from marin.datakit.parts import kept_groups, part_names
from marin.engine import Progress, Silent, atomic_file, read_manifest, stage_directory
from marin.engine.manifest import fingerprint
from marin.errors import MarinError
from marin.validation import check_range

FILE_NAME = "tokenizer.json"
BOS, EOS, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"
# Names of the framing tokens in published tokenizers, most specific first.
_BOS_NAMES = (BOS, "<s>", "<bos>", "[CLS]", "<|startoftext|>", "<|endoftext|>")
_EOS_NAMES = (EOS, "</s>", "<eos>", "[SEP]", "<|endoftext|>")
# Words with one leading mark, numbers of at most three digits, runs of marks, white space; a run
# of spaces leaves its last one to the word that follows (as in cl100k, OpenAI's tiktoken).
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)


_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(?<!\.json)")


@dataclass(frozen=True)
class BPEConfig:
    """`vocab_size` includes 256 bytes and 3 special tokens; `sample_bytes`: text trained on."""

    vocab_size: int = 8192
    sample_bytes: int = 16 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.vocab_size < 256 + 3:
            raise MarinError(f"vocab_size = {self.vocab_size}: expected at least 259, for bytes")
        check_range("sample_bytes", self.sample_bytes, 1, 1 << 50)
        check_range("seed", self.seed, 0, (1 << 63) - 1)


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens put before and after each document: a token's text, None for none, or `auto` for
    what `tokenizer_config.json` beside the file says, else what the tokenizer itself adds, else
    the first well-known name in the vocabulary."""

    bos: str | None = "auto"
    eos: str | None = "auto"


def train_bpe(
    documents: Path,
    root: Path,
    config: BPEConfig,
    *,
    dedup: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Trains a byte-level BPE (Sennrich et al. 2016, on bytes) on a sample of the kept documents.

    The sample is drawn by a hash of the ids. The vocabulary is smaller than asked where the
    documents hold too few pairs.
    """
    progress = progress or Silent()
    inputs = {"documents": read_manifest(documents).fingerprint}
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    parameters = {"kind": "byte-level BPE", **asdict(config)}
    with stage_directory(root, "tokenizer", parameters, inputs) as stage:
        if not stage.finished:
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
            tokenizer.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=config.vocab_size,
                special_tokens=[BOS, EOS, PAD],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            with progress.task("Train tokenizer", total=None) as task:
                sample = _sample(documents, dedup, config)
                tokenizer.train_from_iterator(sample, trainer)
                task.advance(1)
            _save(stage.path, tokenizer)
            stage.finish({FILE_NAME: 1}, _summary(stage.path, BOS, EOS))
    return stage.path


def load_tokenizer(source: str, root: Path, config: SpecialTokens | None = None) -> Path:
    """Makes a tokenizer directory below `root` from `source`.

    Args:
      source: a `tokenizer.json`, a folder that holds one, or the name of a Hugging Face tokenizer.

    Raises:
      MarinError: nothing of the kind is found, or a special token is not in the vocabulary.
    """
    config = config or SpecialTokens()
    tokenizer, settings = _open(source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    bos, eos = _framing(tokenizer, settings, config, source)
    parameters = {"kind": "loaded", "bos": bos, "eos": eos}
    inputs = {"tokenizer": fingerprint(json.loads(tokenizer.to_str()))}
    with stage_directory(root, "tokenizer", parameters, inputs) as stage:
        if not stage.finished:
            _save(stage.path, tokenizer)
            stage.finish({FILE_NAME: 1}, _summary(stage.path, bos, eos))
    return stage.path


def open_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a tokenizer directory, set to see special tokens in a text as plain text."""
    try:
        tokenizer = Tokenizer.from_file(str(directory / FILE_NAME))
    except Exception as error:  # the library raises plain Exception
        raise MarinError(f"{directory / FILE_NAME}: not a tokenizer: {error}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def _sample(documents: Path, dedup: Path | None, config: BPEConfig) -> Iterator[list[str]]:
    """Kept texts of about `sample_bytes`, chosen by a hash of the id."""
    manifest = read_manifest(documents)
    total = 0
    for part in part_names(manifest):
        for batch in kept_groups(documents, part, ["text"], dedup):
            total += pc.sum(pc.binary_length(batch["text"])).as_py() or 0
    limit = min(2**64 - 1, int(config.sample_bytes / max(total, 1) * 2**64))
    for part in part_names(manifest):
        for batch in kept_groups(documents, part, ["text"], dedup):
            keys = pa.array(document_keys(batch["id"], config.seed))
            chosen = pc.and_(
                pc.less_equal(keys, pa.scalar(limit, pa.uint64())), pc.is_valid(batch["text"])
            )
            yield batch["text"].filter(chosen).to_pylist()


def _open(source: str) -> tuple[Tokenizer, dict[str, Any]]:
    path = Path(source)
    if path.is_dir():
        path = path / FILE_NAME
    if path.exists():
        try:
            tokenizer = Tokenizer.from_file(str(path))
            beside = path.with_name("tokenizer_config.json")
            settings = json.loads(beside.read_text()) if beside.exists() else {}
        except Exception as error:  # the library raises plain Exception
            raise MarinError(f"{path}: not a tokenizer.json: {error}") from None
        if not isinstance(settings, dict):
            raise MarinError(f"{beside}: no JSON object; expected the settings of a tokenizer")
        return tokenizer, settings
    if not _HUB_NAME.fullmatch(source):
        raise MarinError(f"tokenizer {source!r}: no such file, and not a Hugging Face name")
    try:
        return Tokenizer.from_pretrained(source), {}
    except Exception as error:  # the library raises plain Exception
        reason = str(error).strip().partition("\n")[0]
        raise MarinError(
            f"tokenizer {source!r}: neither a file nor a name that Hugging Face serves ({reason})"
        ) from None


def _framing(
    tokenizer: Tokenizer, settings: dict[str, Any], config: SpecialTokens, source: str
) -> tuple[str | None, str | None]:
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    framed = tokenizer.encode("a").ids
    at = next((i for i in range(len(framed)) if framed[i : i + len(plain)] == plain), 0)
    added = (framed[:at], framed[at + len(plain) :])
    found: list[str | None] = []
    for side, (asked, key, names) in enumerate(
        ((config.bos, "bos_token", _BOS_NAMES), (config.eos, "eos_token", _EOS_NAMES))
    ):
        token = asked
        if asked == "auto":
            setting = settings.get(key)
            if isinstance(setting, dict):
                setting = setting.get("content")
            by_itself = added[side][-side:][:1]
            known = [name for name in names if tokenizer.token_to_id(name) is not None]
            if isinstance(setting, str):
                token = setting
            elif by_itself:
                token = tokenizer.id_to_token(by_itself[0])
            else:
                token = known[0] if known else None
        if token is not None and tokenizer.token_to_id(token) is None:
            raise MarinError(
                f"tokenizer {source!r}: {key} {token!r} is not in its vocabulary of "
                f"{tokenizer.get_vocab_size()}; name another one, or none"
            )
        found.append(token)
    return found[0], found[1]


def _save(directory: Path, tokenizer: Tokenizer) -> None:
    with atomic_file(directory / FILE_NAME) as partial:
        # Not by `tokenizer.save`, which reports a full disk as a bare Exception.
        partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def _summary(directory: Path, bos: str | None, eos: str | None) -> dict[str, Any]:
    tokenizer = Tokenizer.from_file(str(directory / FILE_NAME))
    ids = {
        "bos": tokenizer.token_to_id(bos) if bos is not None else None,
        "eos": tokenizer.token_to_id(eos) if eos is not None else None,
    }
    content = {"file": xxh3_file(directory / FILE_NAME), **ids}
    return {"vocab_size": tokenizer.get_vocab_size(), **ids, "hash": fingerprint(content)}
