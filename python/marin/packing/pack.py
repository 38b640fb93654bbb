"""A plan becomes shards: rows in training order, in files that any Arrow reader maps."""

from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

from marin.engine import Progress, Silent, stage_directory
from marin.packing.config import ShardConfig
from marin.packing.planned import PlannedRows
from marin.packing.shard import ShardPlace, places, write_shard

STAGE = "shards"


def pack(
    plan: Path,
    root: Path,
    config: ShardConfig = ShardConfig(),
    *,
    store: Path | None = None,
    progress: Progress = Silent(),
) -> Path:
    """Writes the rows of a plan as shards; returns their directory. Goes on where it was stopped.

    Args:
      store: where the plan's store lies now, if it was moved.
    """
    source = PlannedRows(plan, store)
    summary = source.manifest.summary
    stages = [(stage["rows"], stage["row_length"]) for stage in summary["stages"]]
    cells = list(summary["cells"])
    parameters = {
        "shard_tokens": config.shard_tokens,
        "block_tokens": config.block_tokens,
        "documents": config.documents,
    }
    inputs = {"plan": source.manifest.fingerprint, "store": source.manifest.inputs["store"]}
    with stage_directory(Path(root), STAGE, parameters, inputs) as stage:
        if not stage.finished:
            (stage.path / "index").mkdir(exist_ok=True)
            shards = places(stages, config)
            with (
                progress.task("Write rows", total=summary["rows"]) as task,
                ThreadPoolExecutor(config.threads or cpu_count()) as pool,
            ):

                def write(place: ShardPlace) -> None:
                    # The index comes last, so a shard with an index is whole.
                    done = (place.name, place.index_name)
                    if not all((stage.path / name).is_file() for name in done):
                        write_shard(stage.path, place, source, cells, config.documents)
                    task.advance(place.rows)

                for _ in pool.map(write, shards):
                    pass
            files = {place.name: place.rows for place in shards}
            files |= {place.index_name: place.rows for place in shards}
            stage.finish(files, {**summary, "schedule": source.schedule.to_json()})
    return stage.path
