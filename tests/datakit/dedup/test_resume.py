"""A run that is killed and started again ends with the bytes of one that was not."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.datakit.dedup import DedupConfig, Shingling, dedup_into
from marin.engine import Silent

T, R = TypeVar("T"), TypeVar("R")
PARTS = 3
SIGNING, READING, WRITING = "Sign documents", "Read and sign documents", "Write sidecars"

RUN = """
import sys, time
from contextlib import contextmanager
from pathlib import Path
from marin.datakit.dedup import DedupConfig, dedup_into
from marin.engine import Silent

class OneByOne:
    def map(self, function, tasks):
        return map(function, tasks)

class HangsIn(Silent):
    @contextmanager
    def task(self, name, total):
        self.name = name
        yield self

    def advance(self, count):
        if self.name == sys.argv[3]:
            print("hangs", flush=True)
            time.sleep(1000)

engine = OneByOne() if sys.argv[3] == "Sign documents" else None
config = DedupConfig(memory=1 << 20, threads=1)
dedup_into([Path(sys.argv[1])], Path(sys.argv[2]), config, engine=engine, progress=HangsIn())
"""


def write(directory: Path, step: int) -> Path:
    """Documents that are near duplicates in another way for each `step`."""
    directory.mkdir()
    for part in range(PARTS):
        texts = [
            " ".join(f"w{(part * i * step + j) % 9973}" for j in range(200)) for i in range(100)
        ]
        ids = [f"{part}-{i}" for i in range(len(texts))]
        pq.write_table(pa.table({"id": ids, "text": texts}), directory / f"part-{part}.parquet")
    return directory


def killed_in(task: str, documents: Path, out: Path) -> None:
    """Runs until the first step of `task` is done, and kills the process there."""
    command = [sys.executable, "-c", RUN, str(documents), str(out), task]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        process.kill()


def check_same(out: Path, expected: Path) -> None:
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.parametrize("task", [READING, SIGNING, WRITING])
def test_sigkill_then_again(task: str, tmp_path: Path) -> None:
    documents, out = write(tmp_path / "in", 7), tmp_path / "out"
    killed_in(task, documents, out)
    left = {path.name.partition("-")[0] for path in out.iterdir()}
    assert left >= {".begun.json", ".partial"}
    assert ("part" in left, ".signatures" in left) == (task == WRITING, task == SIGNING)
    assert not (out / "manifest.json").exists()
    dedup_into([documents], out)
    check_same(out, dedup_into([documents], tmp_path / "whole"))


class OneByOne:
    """An engine of one worker, which is this process."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        return map(function, tasks)


class Watches(Silent):
    """Remembers when the first signature file of `out` was made."""

    def __init__(self, out: Path) -> None:
        self.first = out / ".signatures" / "00000.parquet"
        self.made: int | None = None

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Silent]:
        del total
        yield self
        if name == SIGNING:
            self.made = self.first.stat().st_mtime_ns


def test_signatures_serve_a_run_of_the_same_inputs_and_parameters_alone(tmp_path: Path) -> None:
    documents, others = write(tmp_path / "in", 7), write(tmp_path / "others", 3)
    words = DedupConfig(shingling=Shingling(words=3))
    for inputs, config, serve in (
        (documents, DedupConfig(), True),
        (others, DedupConfig(), False),
        (documents, words, False),
    ):
        out = tmp_path / f"out-{inputs.name}-{config.shingling.words}"
        killed_in(SIGNING, documents, out)
        (signatures,) = (out / ".signatures").iterdir()
        before = signatures.stat().st_mtime_ns
        watch = Watches(out)
        dedup_into([inputs], out, config, engine=OneByOne(), progress=watch)
        assert (watch.made == before) is serve
        whole = dedup_into([inputs], tmp_path / f"whole-{out.name}", config)
        check_same(out, whole)
