"""The process that `wandb_mirror` starts: reads new lines of a metrics file, logs them to W&B.

Standard library and wandb alone, so that it starts fast and needs little memory. The argument is
the order (a JSON file); the end of standard input means that the metrics are complete.

Steps that are trained again are equal to what W&B has, unless the order's `history` has changed.
W&B cannot go back, so they then begin another W&B run of the group: the one before holds the truth
up to there.
"""

import json
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

PLACE_NAME = "mirror.json"
POLL_SECONDS = 0.5
_CHUNK_BYTES = 1 << 22  # of lines that are read at once
_NUMBERS = ("nan", "inf", "-inf")


def main() -> None:
    import wandb

    order = json.loads(Path(sys.argv[1]).read_text())
    path = Path(order["run"], "wandb", PLACE_NAME)
    place = _place(order, json.loads(path.read_text()) if path.is_file() else {})
    session = wandb.init(
        dir=order["run"],
        project=order["project"],
        group=order["group"],
        **_names(order, place),
        config=order["config"],
        resume="allow",
        settings=wandb.Settings(x_disable_stats=True, console="off"),
    )
    with Path(order["metrics"]).open("rb") as metrics:
        _seek(metrics, place, order)
        complete = False
        while True:
            records = _new_records(metrics)
            for offset, record in records:
                if record["step"] > place["step"]:
                    session.log(flatten(record), step=record["step"])
                    place |= {"step": record["step"], "offset": offset}
            _write_place(path, place)
            if complete and not records:
                break
            complete = _input_closed()
    session.finish()


def _place(order: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The last step that W&B has, where its line begins, and in which part of the run: `part` is
    the number of the W&B run, `first` its first step."""
    place = {"step": -1, "offset": 0, "history": order["history"], "part": 0, "first": 0, **kept}
    if place["history"] != order["history"] and order["start"] <= place["step"]:
        place |= {"part": place["part"] + 1, "first": order["start"], "step": order["start"] - 1}
    return place | {"history": order["history"]}


def _names(order: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """What the W&B run of a part is called, and what it says of the one before."""
    part, first = place["part"], place["first"]
    if not part:
        return {"id": order["id"], "name": order["name"]}
    before = f"{order['id']}-{part - 1}" if part > 1 else order["id"]
    return {
        "id": f"{order['id']}-{part}",
        "name": f"{order['name']}-from-{first}",
        "notes": f"Goes on from step {first} of run {before}, whose later steps were undone.",
    }


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


def _seek(metrics: BinaryIO, place: Mapping[str, Any], order: Mapping[str, Any]) -> None:
    """Goes to a line that nothing that W&B lacks comes before."""
    metrics.seek(place["offset"])
    try:
        # Where steps were trained again, other lines lie there.
        if json.loads(metrics.readline())["step"] == place["step"]:
            return
    except (KeyError, TypeError, ValueError):
        pass
    metrics.seek(order["offset"] if place["step"] >= order["start"] - 1 else 0)


def _new_records(metrics: BinaryIO) -> list[tuple[int, dict[str, Any]]]:
    """The next whole lines, a few MiB of them, and where each begins."""
    records = []
    offset = metrics.tell()
    for line in metrics.readlines(_CHUNK_BYTES):
        if not line.endswith(b"\n"):
            break
        records.append((offset, json.loads(line)))
        offset += len(line)
    metrics.seek(offset)
    return records


def _input_closed() -> bool:
    """Waits for the end of standard input, at most one poll interval."""
    ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
    return bool(ready)


def _write_place(path: Path, place: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(place))
    os.replace(partial, path)


if __name__ == "__main__":
    main()
