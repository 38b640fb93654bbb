"""Which documents stand in which row: a plan, made from lengths alone.

For every row-length stage and cell a plan holds exactly the rows that the schedule asks for.
Documents come in the mixture's order; those that a stage did not use are the first of the next
one, so nothing is skipped and nothing is repeated. A revised schedule is planned after the plan
that was trained on so far: what was given away stays, and the rest goes on to wait.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from os import cpu_count
from pathlib import Path

from marin.engine import FileEntry, Progress, Silent, file_entry, stage_directory, write_json
from marin.engine.progress import Task
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.mixture.binding import StoreCells, check_store
from marin.packing.cells import plan_cell
from marin.packing.config import PlanConfig
from marin.packing.history import KeptRows
from marin.packing.layout import SCHEDULE_FILE, STAGE, StageCounts, counts_file, rows_file
from marin.packing.store import Store


def plan(
    store: Path,
    schedule: Schedule,
    root: Path,
    config: PlanConfig = PlanConfig(),
    *,
    after: Path | None = None,
    progress: Progress = Silent(),
) -> Path:
    """Plans every row of `schedule` from the documents of `store`; returns the plan's directory.

    Args:
      after: the plan (or its shards) of the same run before its latest revision; the rows before
        that are kept. `config` has its policy, see `planned_as`.

    Raises:
      MarinError: the mixture is bound to another store, a cell that the schedule wants rows of is
        missing, damaged or has no tokens, or `min_fill` cannot be met.
    """
    opened = Store(store)
    specification = schedule.revisions[-1].specification
    if specification.store:
        tokens = {name: cell.tokens for name, cell in opened.cells.items()}
        check_store(specification, StoreCells(opened.manifest.fingerprint, tokens))
    rows_by_cell = schedule.order.stage_rows.sum(axis=0)
    wanted = [cell for cell, rows in zip(schedule.cells, rows_by_cell, strict=True) if rows]
    for cell, rows in zip(schedule.cells, rows_by_cell, strict=True):
        if rows and not (cell in opened.cells and opened.cells[cell].tokens):
            raise MarinError(
                f"{opened.path}: cell {cell} has no tokens, the schedule wants {rows} rows of it; "
                "use a mixture made for this store"
            )
    parameters = {**asdict(config), "schedule": schedule.fingerprint}
    kept = KeptRows(schedule, after, opened.path, config.policy)
    inputs = {"store": opened.manifest.fingerprint}
    if kept.plans:
        inputs["after"] = kept.plans[0][0]
    with stage_directory(Path(root), STAGE, parameters, inputs) as stage:
        if not stage.finished:
            write_json(stage.path / SCHEDULE_FILE, schedule.to_json())
            with (
                progress.task("Plan rows", total=schedule.rows) as task,
                ThreadPoolExecutor(cpu_count()) as pool,
            ):
                jobs = {
                    cell: pool.submit(
                        _plan_cell, opened, schedule, cell, stage.path, config, kept, task
                    )
                    for cell in wanted
                }
                try:
                    done = {cell: job.result() for cell, job in jobs.items()}
                finally:
                    pool.shutdown(cancel_futures=True)
            known = {file.name: file for _, files in done.values() for file in files}
            rows = {SCHEDULE_FILE: 1} | {name: file.rows for name, file in known.items()}
            summary = _summary(
                opened, schedule, {cell: stages for cell, (stages, _) in done.items()}
            )
            summary["history"] = [list(plan) for plan in kept.plans]
            summary["packing"] = asdict(config)
            stage.finish(rows, summary, known=known)
    return stage.path


def _plan_cell(
    store: Store,
    schedule: Schedule,
    cell: str,
    directory: Path,
    config: PlanConfig,
    kept: KeptRows,
    task: Task,
) -> tuple[list[StageCounts], list[FileEntry]]:
    # A plan from damaged lengths would look like that of the whole store.
    store.check_lengths(cell)
    try:
        stages = plan_cell(store, schedule, cell, directory, config, kept, task)
    except ValueError as error:
        raise MarinError(f"{store.path}: cell {cell} cannot be planned: {error}") from None
    rows = {rows_file(at, cell): counts.rows for at, counts in enumerate(stages) if counts.rows}
    files = [file_entry(directory, name, rows) for name, rows in rows.items()]
    return stages, [*files, file_entry(directory, counts_file(cell), 1)]


def _summary(
    store: Store, schedule: Schedule, by_cell: dict[str, list[StageCounts]]
) -> dict[str, object]:
    stages = [
        {
            "row_length": stage.seq_len,
            "rows": stage.rows,
            "tokens": sum(counts[number].packed_tokens for counts in by_cell.values()),
            "padding": sum(counts[number].padding for counts in by_cell.values()),
        }
        for number, stage in enumerate(schedule.row_stages)
    ]
    every = [counts for stages in by_cell.values() for counts in stages]
    last = [stages[-1] for stages in by_cell.values()]
    return {
        "store": str(store.path.resolve()),
        "tokenizer": store.tokenizer_hash,
        "vocab_size": store.vocab_size,
        "cells": list(schedule.cells),
        "runs": [[run.steps, run.batch_size, run.seq_len] for run in schedule.runs],
        "stages": stages,
        "rows": sum(counts.rows for counts in every),
        "tokens": sum(counts.packed_tokens for counts in every),
        "padding": sum(counts.padding for counts in every),
        "documents": sum(counts.documents for counts in every),
        "cut_documents": sum(counts.cut_documents for counts in every),
        "truncated_tokens": sum(counts.truncated_tokens for counts in every),
        "unused_documents": sum(counts.waiting_documents for counts in last),
        "unused_tokens": sum(counts.waiting_tokens for counts in last),
    }
