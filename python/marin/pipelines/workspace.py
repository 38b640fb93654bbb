"""The directory that a pipeline writes: checked, marked as ours, used by one process at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marin.engine.lock import held
from marin.errors import MarinError

_MARK = ".marin"


@contextmanager
def workspace(out: Path, inputs: Sequence[Path]) -> Iterator[Path]:
    """Opens `out` for one process; the lock ends with it, however it ends.

    Raises:
      MarinError: an input is missing, `out` is an input or lies around one, is no directory, holds
        files of somebody else, cannot be written, or another process is working in it.
    """
    _check_inputs(out, inputs)
    try:
        _make(out)
    except OSError as error:
        raise MarinError(
            f"{error.filename or out}: {error.strerror}; choose another --out"
        ) from None
    with held(out, "choose another --out", name=_MARK):
        yield out


def _check_inputs(out: Path, inputs: Sequence[Path]) -> None:
    target = out.resolve()
    for path in inputs:
        if not path.exists():
            raise MarinError(f"{path}: no such file or folder")
        if path.resolve() == target:
            raise MarinError(f"{out}: the output is also an input; choose another --out")
        if target in path.resolve().parents:
            raise MarinError(f"{path}: lies inside the output {out}; choose another --out")


def _make(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise MarinError(f"{out}: not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
        raise MarinError(
            f"{out}: holds files that marin did not write; choose a new folder as --out"
        )
    out.mkdir(parents=True, exist_ok=True)
