"""One process at a time works in a directory, and its workers end with it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin.engine import atomic_file, stage_directory
from marin.engine.lock import held
from marin.errors import MarinError


@pytest.mark.parametrize("named", [False, True])
def test_a_second_process_is_refused_and_spares_the_files_of_the_first(
    named: bool, tmp_path: Path
) -> None:
    directory = tmp_path / "out" if named else None
    with stage_directory(tmp_path, "s", {}, {}, directory=directory) as stage:
        with atomic_file(stage.path / "part") as partial:
            partial.write_text("1")
            with (
                pytest.raises(
                    MarinError, match=r"another marin process works there; wait"
                ) as error,
                stage_directory(tmp_path, "s", {}, {}, directory=directory),
            ):
                pass
            assert "\n" not in str(error.value)
        stage.finish({"part": 1})
        # A finished stage is open to all, before the one that made it has let it go.
        with stage_directory(tmp_path, "s", {}, {}, directory=directory) as other:
            assert other.finished
    assert sorted(path.name for path in stage.path.iterdir()) == ["manifest.json", "part"]


def test_a_stage_that_failed_lets_its_directory_go(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            pytest.raises(ValueError, match="failed"),
            stage_directory(tmp_path, "s", {}, {}, directory=tmp_path / "out"),
        ):
            raise ValueError("failed")


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", flock)

    refuse(errno.ENOLCK)
    with held(tmp_path, "choose another"):
        pass
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"), held(tmp_path, "choose another"):
        pass


def test_workers_end_with_a_parent_that_is_killed() -> None:
    run = "import time; from marin.engine import Local; list(Local(2).map(time.sleep, [60, 60]))"
    with subprocess.Popen([sys.executable, "-c", run]) as parent:
        workers: list[str] = []
        deadline = time.monotonic() + 30
        while len(workers) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            workers = [
                pid
                for pid in children
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        time.sleep(1)  # they work by now, or find at their start that their parent is gone
        parent.send_signal(signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
