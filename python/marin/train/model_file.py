"""The model of a TOML file that need not be a whole run's configuration."""

from pathlib import Path
from typing import Any

from marin.engine import read_toml
from marin.model import HeroConfig
from marin.train.edge import config_from


def read_model(path: Path) -> tuple[HeroConfig, dict[str, Any]]:
    """The model of a file's `[model]` table, as `marin train` takes it, and its other tables.

    Raises:
      MarinError: the file cannot be read, or the table is missing or wrong.
    """
    values = read_toml(path, "a model")
    model = {"model": values.pop("model", None), "shards": ".", "run": "."}
    return config_from(model, str(path)).model, values
