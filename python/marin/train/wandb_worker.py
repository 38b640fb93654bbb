"""The process that `wandb_mirror` starts: reads new lines of a metrics file, logs them to W&B.

Standard library and wandb alone, so that it starts fast and needs little memory. The argument is
the order (a JSON file); the end of standard input means that the metrics are complete.
"""

import json
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

POLL_SECONDS = 0.5
_NUMBERS = ("nan", "inf", "-inf")


def main() -> None:
    import wandb

    order = json.loads(Path(sys.argv[1]).read_text())
    position = Path(order["run"], "wandb", "mirror.json")
    logged = json.loads(position.read_text())["step"] if position.is_file() else -1
    session = wandb.init(
        dir=order["run"],
        id=order["id"],
        project=order["project"],
        group=order["group"],
        name=order["name"],
        config=order["config"],
        resume="allow",
        settings=wandb.Settings(x_disable_stats=True, console="off"),
    )
    with Path(order["metrics"]).open("rb") as metrics:
        complete = False
        while True:
            for record in _new_records(metrics):
                # A resumed run writes some steps again, equal to the last bit; W&B has them.
                if record["step"] > logged:
                    session.log(flatten(record), step=record["step"])
                    logged = record["step"]
            _write_position(position, logged)
            if complete:
                break
            complete = _input_closed()
    session.finish()


def flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under slash names; the load of a layer's experts as a histogram."""
    import wandb

    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update({f"{key}/{name}": item for name, item in value.items()})
        elif isinstance(value, list) and value and isinstance(value[0], list):
            flat.update({f"{key}/{i}": wandb.Histogram(row) for i, row in enumerate(value)})
        elif isinstance(value, list):
            flat.update({f"{key}/{i}": item for i, item in enumerate(value)})
        elif value in _NUMBERS:
            flat[key] = float(value)
        elif key != "step":
            flat[key] = value
    return flat


def _new_records(metrics: BinaryIO) -> list[dict[str, Any]]:
    start = metrics.tell()
    data = metrics.read()
    whole = data[: data.rfind(b"\n") + 1]
    metrics.seek(start + len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _input_closed() -> bool:
    """Waits for the end of standard input, at most one poll interval."""
    ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
    return bool(ready)


def _write_position(path: Path, step: int) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"step": step}))
    os.replace(partial, path)


if __name__ == "__main__":
    main()
