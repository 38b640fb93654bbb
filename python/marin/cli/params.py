"""`marin params MODEL`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table
from marin.errors import MarinError

if TYPE_CHECKING:
    from marin.model.presets import Rung

Model = Annotated[
    str, typer.Argument(help="A preset (tiny, d768, ... d6144), or a TOML file with a [model].")
]
MeshOption = Annotated[
    str,
    typer.Option(
        "--mesh", help="Devices per axis, e.g. replica=11,expert=64; default: the preset's, or one."
    ),
]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens per row; default: the preset's.")]
Rows = Annotated[
    int | None,
    typer.Option(min=1, help="Rows per step; default: the preset's tokens, or one row per device."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def params(
    model: Model,
    mesh: MeshOption = "",
    seq_len: SeqLen = None,
    rows: Rows = None,
    json_output: Json = False,
) -> None:
    """Count a model's parameters and FLOPs, and its bytes per device; nothing is allocated."""
    import dataclasses

    from marin.model import count, memory

    rung = _rung(model)
    config = rung.config
    length = seq_len or rung.seq_len
    shape = _mesh_shape(mesh) if mesh else {"replica": rung.racks, "expert": rung.expert_ranks}
    placed = memory.abstract_mesh(shape)
    planned = rung.batch * rung.seq_len // length if rung.steps else memory.row_ranks(placed)
    batch = rows or max(1, planned)
    parts = count.parts(config)
    per_token = count.train_flops_per_token(config, length)
    held = memory.device_bytes(config, placed, batch, length)
    answer: dict[str, Any] = {
        "model": model,
        "active": sum(part.active for part in parts.values()),
        "total": sum(part.total for part in parts.values()),
        "train_flops": (
            count.train_flops_per_token(config, rung.seq_len) * rung.tokens if rung.steps else None
        ),
        "train_tokens": rung.tokens or None,
        "train_flops_per_token": per_token,
        "by_part": {name: dataclasses.asdict(part) for name, part in parts.items()},
        "flops_by_part": count.forward_flops(config, length),
        "mesh": dict(placed.shape),
        "rows": batch,
        "seq_len": length,
        "per_device": {**dataclasses.asdict(held), "total": held.total},
        "all_to_all_bytes": memory.all_to_all_bytes(config, placed, batch, length),
    }
    if json_output:
        print_json(answer)
    else:
        _print(answer)


def _rung(model: str) -> "Rung":
    """A preset, or the model of a file on one device and without a run: batch and steps are 0."""
    from marin.model.presets import PRESETS, Rung, rung

    path = Path(model)
    if model in PRESETS or not (path.suffix or path.exists()):
        return rung(model)
    from marin.train.model_file import read_model

    return Rung(read_model(path)[0], batch=0, steps=0, expert_ranks=1)


def _mesh_shape(text: str) -> dict[str, int]:
    shape: dict[str, int] = {}
    for entry in text.split(","):
        axis, _, size = entry.partition("=")
        if not size.isdecimal() or axis.strip() in shape:
            raise MarinError(f"--mesh {text}: {entry!r}: expected axis=size, each axis once")
        shape[axis.strip()] = int(size)
    return shape


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    print_table(
        f"{answer['model']}: parameters",
        ("part", "parameters", "in total", "in active"),
        [[name, *part.values()] for name, part in answer["by_part"].items()],
        console=console,
    )
    tokens = answer["train_tokens"]
    run = f", {answer['train_flops']:.3g} for {tokens:,} tokens" if tokens else ""
    console.print(
        f"active {answer['active']:,}, total {answer['total']:,}; "
        f"{answer['train_flops_per_token'] / 1e9:.4g} GFLOPs per token{run}"
    )
    mesh = " ".join(f"{axis}={size}" for axis, size in answer["mesh"].items())
    print_table(
        f"one device of {mesh}, {answer['rows']:,} rows of {answer['seq_len']:,}",
        ("what", "GiB"),
        [[name, value / 2**30] for name, value in answer["per_device"].items()],
        console=console,
    )
    console.print(
        f"rows to experts: {answer['all_to_all_bytes'] / 2**30:.4g} GiB sent per device and step"
    )
