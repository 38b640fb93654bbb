"""The training part of `benches/gpu.sh --dry-run`, smaller still."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.compilation import quick_flags

ROOT = Path(__file__).parents[2]
EXPERTS, LENGTH, STEPS = 16, 64, 12
SCRIPT = f"""
import dataclasses, sys
from pathlib import Path
import gpu, gpu_train

config, rows, _ = gpu_train.shape(dry_run=True)
small = dataclasses.replace(config, experts={EXPERTS})
gpu_train.shape, gpu_train.STEPS = lambda dry_run: (small, rows, {LENGTH}), {STEPS}
report = gpu.Report("cpu", dry_run=True, out=Path(sys.argv[1]))
report.measure_machine()
report.attempt("train d768", lambda: gpu_train.bench(report, None))
"""


@pytest.mark.slow
def test_the_dry_run_reports_speed_and_memory_of_training(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benches"), str(ROOT / "python")]),
        "XLA_FLAGS": " ".join(quick_flags()),
    }
    subprocess.run([sys.executable, "-c", SCRIPT, str(out)], env=environment, check=True)
    written = json.loads(out.read_text())
    assert written["failures"] == []
    found = {line["metric"].removeprefix("train d768: "): line for line in written["results"]}
    assert found["tokens"]["unit"] == "tokens/s"
    assert found["tokens"]["value"] > 0
    assert len(found["step"]["runs"]) == STEPS
    assert found["share of the measured matrix rate"]["value"] > 0
    assert "MFU" not in found  # a CPU has no nominal rate
    assert found["last loss"]["value"] < found["first loss"]["value"]
    embeddings = 2 * 512 * 64 * 4  # bytes of the embedding and the readout
    assert found["memory of the step as compiled"]["value"] > embeddings
