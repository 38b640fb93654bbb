"""`marin params MODEL`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table
from marin.errors import MarinError

Model = Annotated[str, typer.Argument(help="A preset (tiny, d768, ... d6144), or a TOML file.")]
MeshOption = Annotated[
    str, typer.Option("--mesh", help="Devices per axis, e.g. replica=11,expert=64.")
]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens per row; default: the preset's.")]
Rows = Annotated[
    int | None, typer.Option(min=1, help="Rows per step; default: the preset's tokens.")
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
    from marin.model.presets import PRESETS, Rung

    rung = PRESETS[model] if model in PRESETS else Rung(_read(model), batch=1, steps=0)
    config = rung.config
    length = seq_len or rung.seq_len
    batch = rows or max(1, rung.batch * rung.seq_len // length)
    shape = _mesh_shape(mesh) if mesh else {"replica": rung.racks, "expert": rung.expert_ranks}
    parts = count.parts(config)
    per_token = count.train_flops_per_token(config, length)
    placed = memory.abstract_mesh(shape)
    held = memory.device_bytes(config, placed, batch, length)
    answer: dict[str, Any] = {
        "model": model,
        "active": sum(part.active for part in parts.values()),
        "total": sum(part.total for part in parts.values()),
        "train_flops": count.train_flops_per_token(config, rung.seq_len) * rung.tokens,
        "train_tokens": rung.tokens,
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


def _read(model: str) -> Any:
    """The configuration in the `[model]` table of a TOML file, or in the whole file."""
    import tomllib

    from marin.model import HeroConfig, rung

    path = Path(model)
    if not path.suffix and not path.exists():
        return rung(model)
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise MarinError(f"{path}: not a readable TOML file ({error})") from None
    table = values.get("model", values)
    if not isinstance(table, dict):
        raise MarinError(f"{path}: model is {table!r:.40}; expected a table of the model's fields")
    return HeroConfig.from_dict(table)


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
    console.print(
        f"active {answer['active']:,}, total {answer['total']:,}; "
        f"{answer['train_flops_per_token'] / 1e9:.4g} GFLOPs per token, "
        f"{answer['train_flops']:.3g} for {answer['train_tokens']:,} tokens"
    )
    mesh = " ".join(f"{axis}={size}" for axis, size in answer["mesh"].items())
    print_table(
        f"one device of {mesh}, {answer['rows']:,} rows of {answer['seq_len']:,}",
        ("what", "GiB"),
        [[name, value / 2**30] for name, value in answer["per_device"].items()],
        console=console,
    )
    console.print(
        f"all-to-alls send {answer['all_to_all_bytes'] / 2**30:.4g} GiB per device and step"
    )
