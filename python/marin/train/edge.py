"""Configuration from outside: TOML files and `--set key=value`, validated with pydantic.

`[model]` takes `preset = "tiny"` and any field of `HeroConfig` on top of it. Relative paths of a
file are relative to the file.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from marin.engine.files import atomic_file, read_toml
from marin.errors import MarinError
from marin.model import HeroConfig, preset
from marin.train.config import TrainConfig
from marin.validation import expected

CONFIG_NAME = "config.toml"
_ONCE = ("stop_at", "profile")  # of one start of a run


def load_config(path: Path, settings: Sequence[str] = ()) -> TrainConfig:
    """Reads a TOML file and applies `--set` values such as `mesh.expert=4`.

    Raises:
      MarinError: the file cannot be read, or a key is unknown or its value wrong; it is named.
    """
    values = read_toml(path, "the configuration of a run")
    _resolve(values, TrainConfig, path.parent.absolute())
    for setting in settings:
        _apply(values, setting)
    return config_from(values, str(path))


def config_from(values: dict[str, Any], origin: str) -> TrainConfig:
    """The configuration of these plain values; `origin` is named in errors."""
    values = dict(values)
    model = values.get("model")
    if not isinstance(model, dict):
        raise MarinError(f"{origin}: model: expected a table with a preset or the model's fields")
    values["model"] = _model_values(model)
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "unexpected_keyword_argument":
            raise MarinError(f"{origin}: {key}: unknown key") from None
        found = "" if first["type"] == "missing" else f" (found {first['input']!r})"
        raise MarinError(f"{origin}: {key}: {expected(first)}{found}") from None


def write_config(config: TrainConfig, directory: Path) -> None:
    """Writes `config.toml`, atomically, without what is meant for one start of the run."""
    values = {key: value for key, value in config.to_dict().items() if key not in _ONCE}
    with atomic_file(directory / CONFIG_NAME) as partial:
        partial.write_text("\n".join(_toml_lines(values)) + "\n")


def _resolve(values: dict[str, Any], kind: type, folder: Path) -> None:
    """Makes the relative paths among these values of a dataclass absolute, from `folder` on."""
    for name, hint in get_type_hints(kind).items():
        value = values.get(name)
        if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
            _resolve(value, hint, folder)
        elif isinstance(value, str) and Path in (hint, *get_args(hint)):
            values[name] = str(folder / value)


def _model_values(model: dict[str, Any]) -> dict[str, Any]:
    fields = dict(model)
    name = fields.pop("preset", None)
    base = {} if name is None else asdict(preset(name))
    return asdict(HeroConfig.from_dict({**base, **fields}))


def _apply(values: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator or not key:
        raise MarinError(f"--set {setting}: expected key=value, such as mesh.expert=4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise MarinError(f"--set {setting}: {table} is a value, not a table")
    values[last] = value


def _toml_lines(values: dict[str, Any], prefix: str = "") -> list[str]:
    lines = [
        f"{key} = {_toml_value(value)}"
        for key, value in values.items()
        if not isinstance(value, dict)
    ]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{prefix}{key}]", *_toml_lines(value, f"{prefix}{key}.")]
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes what TOML wants escaped, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return repr(value)


_ADAPTER = TypeAdapter(TrainConfig)
