"""Where results may go: never over an input, a finished stage, or files of somebody else.

The checks write nothing, so that a command can do them before it begins to work.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError


def check_output_file(
    path: Path,
    kind: str,
    is_kind: Callable[[Path], bool],
    *,
    inputs: Iterable[Path] = (),
    own: Path | None = None,
) -> None:
    """Checks that a file of `kind` may be written to `path`.

    Args:
      is_kind: whether an existing file is one of `kind`, which may be replaced.
      own: the directory of the command's own stage, in which the file may lie.

    Raises:
      MarinError: `path` is a folder, or its own is missing or not to be written to; it is, or lies
        in, one of `inputs` or another stage directory; or it is there and of another kind.
    """
    home = None if own is None else own.resolve()
    if path.is_dir() or path.resolve() == home:
        raise MarinError(f"{path}: a folder; expected the name of a file for the {kind}")
    if not path.parent.is_dir() and path.parent.resolve() != home:
        raise MarinError(f"{path}: {path.parent} is no folder; create it or name another file")
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        raise MarinError(f"{path}: {path.parent} is not to be written to; name another file")
    for source in inputs:
        if lies_in(path, source):
            raise MarinError(
                f"{path}: the {kind} would overwrite or lie in {source}; name another file"
            )
    holder = enclosing_stage(path.parent)
    if holder is not None and holder != home:
        raise MarinError(
            f"{path}: lies in {holder}, a finished {stage_of(holder)}; name a file elsewhere"
        )
    if path.exists() and not is_kind(path):
        raise MarinError(f"{path}: exists and is no {kind} of marin's; name another file")


def check_output_root(path: Path) -> None:
    """Checks that directories may be made below `path`.

    Raises:
      MarinError: it is a file or lies below one, or it is or lies in a stage directory.
    """
    for place in (path, *path.parents):
        if place.is_dir():
            break
        if place.exists() or place.is_symlink():
            raise MarinError(f"{place}: not a folder; choose another place for the output")
    holder = enclosing_stage(path)
    if holder is not None:
        raise MarinError(
            f"{path}: the output would lie in {holder}, a finished {stage_of(holder)}; "
            "choose another place"
        )


def check_plot(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raises `MarinError` where a plot must not be written; see `check_output_file`."""
    check_output_file(path, "plot", _is_plot, inputs=inputs)


def _is_plot(path: Path) -> bool:
    """Whether a file is an image of the kind that its suffix says."""
    mark = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}.get(path.suffix)
    with path.open("rb") as file:
        return mark is not None and mark in file.read(1 << 10)


def make_folder(path: Path) -> None:
    """Makes the folder `path` and those around it; it may be there already.

    Raises:
      MarinError: something else is there, or this user may not.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MarinError(f"{path}: cannot be made ({error.strerror}); choose another one") from None


def check_apart(outputs: Iterable[Path]) -> None:
    """Raises `MarinError` if one of the directories `outputs` is, or lies in, another."""
    known: list[Path] = []
    for path in outputs:
        for other in known:
            if lies_in(path, other) or lies_in(other, path):
                raise MarinError(
                    f"{path}: is, lies in or lies around the output {other}; choose another place"
                )
        known.append(path)


def lies_in(path: Path, place: Path) -> bool:
    """Whether `path` is `place` or somewhere below it, links followed."""
    target, found = path.resolve(), place.resolve()
    return target == found or found in target.parents


def enclosing_stage(path: Path) -> Path | None:
    """The stage directory that `path` is or lies in, if any."""
    target = path.resolve()
    for place in (target, *target.parents):
        if stage_of(place) is not None:
            return place
    return None


def stage_of(directory: Path) -> str | None:
    """The stage that a directory's manifest names; None if there is none of marin's."""
    try:
        value = json.loads((directory / MANIFEST_NAME).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "format_version" not in value:
        return None
    stage = value.get("stage")
    return stage if isinstance(stage, str) else None


def is_json_with(*keys: str) -> Callable[[Path], bool]:
    """Whether a file is a JSON object with all of `keys`."""

    def check(path: Path) -> bool:
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(value, dict) and all(key in value for key in keys)

    return check
