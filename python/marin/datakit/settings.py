"""The TOML file of a build: sections to configurations, unknown keys and wrong values named."""

import os
import sysconfig
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from marin.datakit.decontaminate import DecontaminateConfig
from marin.datakit.dedup import DedupConfig
from marin.datakit.domains import DomainsConfig
from marin.datakit.embed import EmbedConfig
from marin.datakit.quality import QualityConfig
from marin.datakit.sources import Source, check_name, is_dataset_name, is_pattern, matching
from marin.datakit.store import StoreConfig
from marin.datakit.tokenizer import BPEConfig, SpecialTokens
from marin.datakit.walk import printable
from marin.engine import read_toml
from marin.errors import MarinError
from marin.validation import expected


@dataclass(frozen=True)
class TokenizerSettings:
    """`use`: a `tokenizer.json`, its folder or a Hugging Face name; without it, a byte-level BPE is
    trained on the sources named in `train_on` (empty: all of them, so that any change of a source
    trains it anew)."""

    use: str | None = None
    bos: str | None = "auto"
    eos: str | None = "auto"
    train_on: tuple[str, ...] = ()
    vocab_size: int = 8192
    sample_bytes: int = 16 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        BPEConfig(self.vocab_size, self.sample_bytes, self.seed)

    @property
    def special(self) -> SpecialTokens:
        return SpecialTokens(self.bos, self.eos)

    @property
    def bpe(self) -> BPEConfig:
        return BPEConfig(self.vocab_size, self.sample_bytes, self.seed)


@dataclass(frozen=True)
class BuildSettings:
    """A build: `output` below which all directories stand, `engine` (see `engine_for`), the
    sources, and a configuration per stage. Without `evaluation`, nothing is decontaminated."""

    output: Path
    sources: tuple[Source, ...]
    evaluation: tuple[Source, ...] = ()
    engine: str = "local"
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    domains: DomainsConfig = field(default_factory=DomainsConfig)
    quality: QualityConfig = field(default_factory=QualityConfig)
    decontaminate: DecontaminateConfig = field(default_factory=DecontaminateConfig)
    store: StoreConfig = field(default_factory=StoreConfig)


_SECTIONS: dict[str, Any] = {
    "tokenizer": TokenizerSettings,
    "dedup": DedupConfig,
    "embed": EmbedConfig,
    "domains": DomainsConfig,
    "quality": QualityConfig,
    "decontaminate": DecontaminateConfig,
    "store": StoreConfig,
}
_LISTS = {"source": "sources", "evaluation": "evaluation"}
_PLAIN = ("output", "engine")


def load_settings(path: Path) -> BuildSettings:
    """Reads a build's TOML. Relative paths are relative to it; `~`, `$VARIABLE`, `{stdlib}` and
    `{packages}` (this Python's library and installed packages) are replaced.

    Raises:
      MarinError: the file or a key in it is wrong; the message names the key.
    """
    raw = read_toml(path, "the settings of a build")
    known = (*_PLAIN, *_LISTS, *_SECTIONS)
    for key in raw:
        if key not in known:
            raise MarinError(f"{path}: unknown key {key!r}, expected one of {', '.join(known)}")
    values: dict[str, Any] = {}
    for key, kind in _SECTIONS.items():
        if key in raw:
            values[key] = _validated(kind, raw[key], f"{path}: {key}")
    for key, name in _LISTS.items():
        entries = raw.get(key, [])
        if not isinstance(entries, list):
            raise MarinError(f"{path}: {key}: write [[{key}]], one table per source")
        values[name] = tuple(
            _resolved(_validated(Source, entry, f"{path}: {key} {number}"), path)
            for number, entry in enumerate(entries, 1)
        )
    for key in _PLAIN:
        if not isinstance(raw.get(key, ""), str):
            raise MarinError(f"{path}: {key} = {raw[key]!r}: expected a string")
    if "output" not in raw:
        raise MarinError(f"{path}: output is missing: the folder for everything that is built")
    if not values["sources"]:
        raise MarinError(f"{path}: no [[source]]; add one with name and paths")
    _check_names(path, values)
    tokenizer = values.get("tokenizer", TokenizerSettings())
    if tokenizer.use is not None and (path.parent / tokenizer.use).exists():
        values["tokenizer"] = replace(tokenizer, use=str(path.parent / tokenizer.use))
    if "://" in raw["output"]:
        raise MarinError(f"{path}: output = {raw['output']!r}: a URL, expected a folder")
    output = Path(_joined(raw["output"], path.parent))
    return BuildSettings(output=output, engine=raw.get("engine", "local"), **values)


def _validated(kind: Any, value: Any, where: str) -> Any:
    _check_keys(kind, value, where)
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "it"
        shown = "" if first["type"].startswith("missing") else f" = {first['input']!r}"
        raise MarinError(f"{where}: {key}{shown}: {expected(first)}") from None
    except MarinError as error:
        raise MarinError(f"{where}: {error}") from None


def _check_keys(kind: Any, value: Any, where: str) -> None:
    """Raises for a key that is no field of the dataclass `kind` or of one inside it."""
    if not isinstance(value, dict):
        raise MarinError(f"{where}: expected a table, found {value!r}")
    for key, inner in value.items():
        if key not in kind.__dataclass_fields__:
            names = ", ".join(kind.__dataclass_fields__)
            raise MarinError(f"{where}: unknown key {key!r}, expected one of {names}")
        inside = get_type_hints(kind)[key]
        if is_dataclass(inside):
            _check_keys(inside, inner, f"{where}: {key}")


def _check_names(path: Path, values: dict[str, Any]) -> None:
    names = [source.name for source in values["sources"]]
    for source in (*values["sources"], *values["evaluation"]):
        try:
            check_name(source.name)
        except MarinError as error:
            raise MarinError(f"{path}: {error}") from None
    for name in names:
        if names.count(name) > 1:
            raise MarinError(f"{path}: two sources are named {name!r}")
    for name in values.get("tokenizer", TokenizerSettings()).train_on:
        if name not in names:
            raise MarinError(
                f"{path}: tokenizer: train_on names {name!r}, expected names of {', '.join(names)}"
            )
    if any(source.source is not None for source in values["sources"]):
        return  # the documents say what their sources are named
    dedup = values.get("dedup", DedupConfig())
    for key in ("priority", "exempt"):
        for name in getattr(dedup, key):
            if name not in names:
                raise MarinError(
                    f"{path}: dedup: {key} names {name!r}, expected names of {', '.join(names)}"
                )


def _resolved(source: Source, file: Path) -> Source:
    return replace(source, paths=tuple(_resolved_path(path, source, file) for path in source.paths))


def _resolved_path(path: str, source: Source, file: Path) -> str:
    """`path` relative to the folder of the TOML `file`; names of datasets and URLs as they are."""
    place = _joined(path, file.parent)
    if "://" in place or os.path.exists(place):
        return place
    if is_dataset_name(path):
        return path
    if not is_pattern(path):
        raise MarinError(
            f"{file}: source {source.name!r}: {printable(place)}: no such file or folder; paths "
            f"are relative to the folder of {file.name}"
        )
    try:
        matching(place)
    except MarinError as error:
        raise MarinError(f"{file}: source {source.name!r}: {error}") from None
    return place


def _joined(path: str, base: Path) -> str:
    python = sysconfig.get_paths()
    for name, folder in (("{stdlib}", python["stdlib"]), ("{packages}", python["purelib"])):
        path = path.replace(name, folder)
    path = os.path.expandvars(os.path.expanduser(path))
    return path if "://" in path or os.path.isabs(path) else str(base / path)
