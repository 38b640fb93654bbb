"""`import marin` is quick: the parts and their libraries load when they are used."""

import subprocess
import sys

HEAVY = ["jax", "flax", "polars", "pyarrow", "numpy", "datasketch", "sklearn", "wandb", "typer"]


def test_importing_marin_imports_nothing_heavy() -> None:
    code = f"import sys, marin; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
