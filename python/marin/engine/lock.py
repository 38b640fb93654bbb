"""A folder in which one process works at a time."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marin.errors import MarinError

LOCK_NAME = ".lock"
_UNSUPPORTED = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS}


@contextmanager
def held(folder: Path, instead: str, *, name: str = LOCK_NAME) -> Iterator[None]:
    """Holds `folder` for this process by a lock on its file `name`, which is made if need be. The
    lock ends with the process, however that ends. A file system without locks is used without.

    Raises:
      MarinError: another process holds it, or the file cannot be made; `instead` says what else
        to choose.
    """
    try:
        file = (folder / name).open("a")
    except OSError as error:
        raise MarinError(f"{folder / name}: {error.strerror}; {instead}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MarinError(
                f"{folder}: another marin process works there; wait for it or {instead}"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        yield
