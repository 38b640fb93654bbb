"""Progress of long work, told to whoever watches: a terminal, a log, or nobody."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One bar. `advance(n)` says that `n` more of its units are done."""

    def advance(self, count: int) -> None: ...


class Progress(Protocol):
    """Where tasks are shown; stages take one and never print.

    with progress.task("Hash", total=documents) as task:
        task.advance(1)
    """

    def task(self, name: str, total: int | None) -> AbstractContextManager[Task]: ...

    def note(self, text: str) -> None:
        """Says one line at once, between the tasks or during one."""


class Silent:
    """Shows nothing: the default of every stage."""

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        del name, total
        yield self

    def advance(self, count: int) -> None:
        del count

    def note(self, text: str) -> None:
        del text
