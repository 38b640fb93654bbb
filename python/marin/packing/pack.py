"""A plan becomes shards: rows in training order, in files that any Arrow reader maps."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

from marin._native import xxh3_file
from marin.engine import Manifest, Progress, Silent, read_manifest, stage_directory
from marin.errors import MarinError
from marin.packing.config import ShardConfig
from marin.packing.planned import PlannedRows
from marin.packing.shard import ShardPlace, ShardPlaces, is_whole, write_shard

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
    source = PlannedRows(plan, store, verify=True)
    summary = source.manifest.summary
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
            shards = list(ShardPlaces(_stages(source.manifest), config))

            def write(place: ShardPlace) -> None:
                if not is_whole(stage.path, place):
                    write_shard(stage.path, place, source, cells, config.documents)

            _in_threads(write, shards, config.threads, "Write rows", progress)
            files = {place.name: place.rows for place in shards}
            files |= {place.index_name: place.rows for place in shards}
            stage.finish(
                files,
                {
                    **summary,
                    "plan": str(source.path.resolve()),
                    "schedule": source.schedule.to_json(),
                },
            )
    return stage.path


def repair(
    shards: Path,
    *,
    plan: Path | None = None,
    store: Path | None = None,
    threads: int = 0,
    progress: Progress = Silent(),
) -> list[str]:
    """Checks every byte of finished shards and writes again what is not as the manifest says.

    Returns:
      One line per damaged file. They are whole again.

    Raises:
      MarinError: the manifest is missing or not the one of these shards, or plan or store are gone.
    """
    manifest = read_manifest(Path(shards))
    if manifest.stage != STAGE:
        raise MarinError(f"{shards}: a directory of stage {manifest.stage}, expected {STAGE}")
    parameters = manifest.parameters
    config = ShardConfig(
        parameters["shard_tokens"], parameters["block_tokens"], parameters["documents"], threads
    )
    files = {file.name: file for file in manifest.files}
    damage: dict[ShardPlace, list[str]] = {}

    def check(place: ShardPlace) -> None:
        for name in (place.name, place.index_name):
            path = Path(shards) / name
            if not path.is_file():
                damage.setdefault(place, []).append(f"{path}: missing")
            elif name not in files or xxh3_file(path) != files[name].xxh3:
                damage.setdefault(place, []).append(f"{path}: differs from its checksum")

    every = ShardPlaces(_stages(manifest), config)
    _in_threads(check, every, threads, "Verify rows", progress)
    if not damage:
        return []
    source = PlannedRows(plan or Path(manifest.summary["plan"]), store, verify=True)
    if source.manifest.fingerprint != manifest.inputs["plan"]:
        raise MarinError(
            f"{source.path}: plan {source.manifest.fingerprint[:12]}, but {shards} was packed from "
            f"{manifest.inputs['plan'][:12]}; name that plan"
        )
    broken = sorted(damage, key=lambda place: place.number)

    def write(place: ShardPlace) -> None:
        cells = list(manifest.summary["cells"])
        write_shard(Path(shards), place, source, cells, config.documents)
        for name in (place.name, place.index_name):
            if name not in files or xxh3_file(Path(shards) / name) != files[name].xxh3:
                raise MarinError(
                    f"{shards}/{name}: written again from its plan it still differs from the "
                    "manifest, which is not of these shards; delete manifest.json and pack again"
                )

    _in_threads(write, broken, threads, "Repair rows", progress)
    return [line for place in broken for line in damage[place]]


def _stages(manifest: Manifest) -> list[tuple[int, int]]:
    return [(stage["rows"], stage["row_length"]) for stage in manifest.summary["stages"]]


def _in_threads(
    work: Callable[[ShardPlace], None],
    shards: Iterable[ShardPlace],
    threads: int,
    name: str,
    progress: Progress,
) -> None:
    """Runs `work` on every shard; the first error ends it, once what runs has finished."""
    shards = list(shards)
    with (
        progress.task(name, total=sum(place.rows for place in shards)) as task,
        ThreadPoolExecutor(threads or cpu_count()) as pool,
    ):
        jobs = [pool.submit(work, place) for place in shards]
        try:
            for place, job in zip(shards, jobs, strict=True):
                job.result()
                task.advance(place.rows)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
