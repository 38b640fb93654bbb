"""The limit of memory bounds what the process takes."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS, WORDS = 4000, 2000
SETS_BYTES = DOCUMENTS * WORDS * 8

RUN = """
import sys
from pathlib import Path
from marin.bench.machine import peak_bytes
from marin.datakit.dedup import DedupConfig, dedup
before = peak_bytes()
dedup([Path(sys.argv[1])], Path(sys.argv[2]), DedupConfig(memory=int(sys.argv[2]), threads=1))
print(peak_bytes() - before)
"""


def test_shingle_sets_beyond_the_memory_do_not_stay_in_the_process(tmp_path: Path) -> None:
    """All documents are candidates, so that all sets (61 MiB) are needed for the decision."""
    texts = [
        " ".join(f"w{i // 2 * WORDS + j}" for j in range(i % 2, WORDS)) for i in range(DOCUMENTS)
    ]
    path = tmp_path / "in.parquet"
    ids = [str(i) for i in range(DOCUMENTS)]
    pq.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=50)

    def grown(memory: int) -> int:
        command = [sys.executable, "-c", RUN, str(path), str(memory)]
        return int(subprocess.check_output(command, cwd=tmp_path))

    small, large = grown(1 << 20), grown(1 << 30)
    assert large > SETS_BYTES
    assert small < large - 0.7 * SETS_BYTES
