"""What W&B keeps of a run: offline `.wandb` files, and runs exported as JSON.

A `.wandb` file is a log of records in the format of LevelDB (blocks of 32 KiB, each record in one
or more chunks of checksum, length, type and data), after a header of seven bytes; a record is a
protocol buffer of wandb. A run that was stopped and resumed has one file per start; a file that
begins before the last one ended replaces what that one says from there on.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.validation import is_finite

_MAGIC = b":W&B"
_HEADER = 7  # bytes of the file's header, and of each chunk's
_BLOCK = 32_768
_LAST = (1, 4)  # chunk types that end a record: whole, last


@dataclass(frozen=True)
class WandbRun:
    """One run: its configuration and the records that it logged, by `_step`."""

    name: str
    config: Mapping[str, Any]
    history: list[dict[str, Any]]


def is_wandb(path: Path) -> bool:
    """Whether a path is a W&B file, a folder of them, or a JSON export of one run."""
    if path.is_dir():
        return bool(_files(path))
    return path.suffix == ".wandb" or _export(path) is not None


def read_wandb(path: Path) -> WandbRun:
    """The run in a `.wandb` file, in a folder of them (`RUN/wandb`, or one `offline-run-*`), or in
    a JSON export `{"name": ..., "config": {...}, "history": [{"_step": ..., ...}, ...]}`.

    Raises:
      MarinError: it cannot be read, or holds another format.
    """
    if not path.is_dir() and path.suffix != ".wandb":
        return _exported(path, _export(path) or {})
    name, config = "", {}
    steps: dict[int, dict[str, Any]] = {}
    for file in _files(path) if path.is_dir() else [path]:
        found: dict[int, dict[str, Any]] = {}
        for record in _records(file):
            if record.HasField("run"):
                name = name or record.run.display_name or record.run.run_id
                for item in record.run.config.update:
                    config[item.key] = _value(item, file)
            if record.HasField("history"):
                values = {
                    "/".join(item.nested_key) or item.key: _value(item, file)
                    for item in record.history.item
                }
                step = values.get("_step", record.history.step.num)
                if not is_finite(step):
                    raise MarinError(f"{file}: damaged: _step is {step!r:.40}; restore the file")
                step = int(step)
                found.setdefault(step, {"_step": step}).update(values)
        first = min(found, default=inf)
        steps = {step: values for step, values in steps.items() if step < first} | found
    history = [steps[step] for step in sorted(steps)]
    return WandbRun(name or path.stem, _unwrapped(config), history)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wandb")) or sorted(folder.glob("*run-*/*.wandb"))


def _export(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) and {"config", "history"} <= raw.keys() else None


def _exported(path: Path, raw: Mapping[str, Any]) -> WandbRun:
    config, history = raw.get("config"), raw.get("history")
    if not (isinstance(config, dict) and isinstance(history, list)):
        raise MarinError(f"{path}: expected an export of a run: name, config and history")
    if not all(isinstance(record, dict) for record in history):
        raise MarinError(f"{path}: history: expected a list of objects")
    return WandbRun(str(raw.get("name", path.stem)), _unwrapped(config), history)


def _unwrapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values that `config.yaml` and some exports wrap as `{"value": ...}`."""
    return {
        key: value["value"] if isinstance(value, dict) and "value" in value else value
        for key, value in config.items()
        if not key.startswith("_")
    }


def _records(file: Path) -> Iterator[Any]:
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")  # made when it is imported
    decode_error: Any = import_module("google.protobuf.message").DecodeError
    try:
        content = file.read_bytes()
    except OSError as error:
        raise MarinError(f"{file}: {error.strerror}; expected a file of W&B") from None
    if content[: len(_MAGIC)] != _MAGIC:
        raise MarinError(f"{file}: not a file of W&B: it does not begin with {_MAGIC.decode()}")
    for data in _joined(content):
        record = messages.Record()
        try:
            record.ParseFromString(data)
        except decode_error as error:
            raise MarinError(f"{file}: damaged: {error}; restore the file") from None
        yield record


def _value(item: Any, file: Path) -> Any:
    try:
        return json.loads(item.value_json)
    except (ValueError, RecursionError) as error:
        raise MarinError(
            f"{file}: damaged: {item.key!a} is no JSON ({error}); restore the file"
        ) from None


def _joined(content: bytes) -> Iterator[bytes]:
    """Whole records; one that was cut off by a kill ends the file."""
    position, parts = _HEADER, b""
    while position + _HEADER <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        start = position + _HEADER
        if kind == 0 or start + length > len(content):
            return
        parts += content[start : start + length]
        position = start + length
        if kind in _LAST:
            yield parts
            parts = b""
