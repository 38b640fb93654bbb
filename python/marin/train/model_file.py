"""The model of a TOML file that need not be a whole run's configuration."""

import tomllib
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.model import HeroConfig
from marin.train.edge import config_from


def read_model(path: Path) -> tuple[HeroConfig, dict[str, Any]]:
    """The model of a file's `[model]` table, as `marin train` takes it, and its other tables.

    Raises:
      MarinError: the file cannot be read, or the table is missing or wrong.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected a model as TOML") from None
    except (ValueError, RecursionError) as error:
        raise MarinError(f"{path}: not valid TOML ({error})") from None
    model = {"model": values.pop("model", None), "shards": ".", "run": "."}
    return config_from(model, str(path)).model, values
