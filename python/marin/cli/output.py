"""What commands print: progress on stderr, answers on stdout."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from marin.engine import Progress, Silent
from marin.engine.progress import Task


def progress_for(json_output: bool) -> Progress:
    """Bars on a terminal, a line per finished task elsewhere, nothing beside `--json`."""
    if json_output:
        return Silent()
    return TerminalProgress() if sys.stderr.isatty() else LineProgress()


class TerminalProgress:
    """Bars that stay on the screen when they are done."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        columns = (
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=self._console) as bars:
            yield _Bar(bars, bars.add_task(escape(name), total=total))

    def note(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


class _Bar:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)


class LineProgress:
    """One line when a task ends, and one every `interval` seconds while it runs."""

    def __init__(self, interval: float = 15.0) -> None:
        self._interval = interval

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        task = _LineTask(name, total, self._interval)
        yield task
        task.finish()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _LineTask:
    def __init__(self, name: str, total: int | None, interval: float) -> None:
        self._name = name
        self._total = total
        self._interval = interval
        self._done = 0
        self._start = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last >= self._interval:
            self._last = now
            of = f" of {self._total:,}" if self._total is not None else ""
            self._say(f"{self._done:,}{of}", now)

    def finish(self) -> None:
        self._say(f"{self._done:,} done", time.monotonic())

    def _say(self, state: str, now: float) -> None:
        print(f"{self._name}: {state} ({now - self._start:.1f} s)", file=sys.stderr, flush=True)


def print_json(answer: dict[str, Any]) -> None:
    """The one object that `--json` promises on stdout."""
    print(json.dumps(answer, indent=1, ensure_ascii=False))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, console: Console
) -> None:
    """A table: numbers to the right; title and texts escaped (they may come from documents)."""
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", header_style="bold"
    )
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))
