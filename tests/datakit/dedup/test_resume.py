"""A run that is killed at any moment and started again ends with the bytes of one that was not."""

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.dedup import dedup_into

RUN = """
import sys
from pathlib import Path
from marin.datakit.dedup import DedupConfig, dedup_into
print("ready", flush=True)
dedup_into([Path(sys.argv[1])], Path(sys.argv[2]), DedupConfig(memory=1 << 20))
"""


def test_sigkill_anywhere_then_again(tmp_path: Path) -> None:
    documents = tmp_path / "in"
    documents.mkdir()
    for part in range(6):
        texts = [" ".join(f"w{(part * i * 7 + j) % 9973}" for j in range(600)) for i in range(300)]
        ids = [f"{part}-{i}" for i in range(len(texts))]
        pq.write_table(pa.table({"id": ids, "text": texts}), documents / f"part-{part}.parquet")
    whole = dedup_into([documents], tmp_path / "whole")
    out = tmp_path / "out"
    for delay in (0.02, 0.1, 0.25):
        command = [sys.executable, "-c", RUN, str(documents), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
    dedup_into([documents], out)
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
