"""Same documents, same bytes: threads, file order, memory, hash seeds, processes, a Ray cluster of
two nodes on this machine, and a run that is killed again and again.

    python benches/dedup_same_bytes.py DOCUMENTS [--megabytes 200] [--kills 5]

Prints one line for each way and ends with an error if any gives other bytes. The extra `ray` is
needed.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ray.cluster_utils import Cluster

RUN = (sys.executable, "-m", "marin.cli", "dedup")


def digest(directory: Path) -> str:
    """Of all names and bytes below `directory`."""
    state = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        state.update(path.relative_to(directory).as_posix().encode() + b"\0")
        state.update(path.read_bytes())
    return state.hexdigest()


def some_files(documents: Path, most_bytes: int) -> list[Path]:
    """The smallest Parquet files, together of about `most_bytes`."""
    chosen, total = [], 0
    for path in sorted(documents.rglob("*.parquet"), key=lambda path: path.stat().st_size):
        total += path.stat().st_size
        if chosen and total > most_bytes:
            break
        chosen.append(path)
    return chosen


def start(out: Path, files: Sequence[Path], options: Sequence[str], hash_seed: str) -> list[str]:
    shutil.rmtree(out, ignore_errors=True)
    os.environ["PYTHONHASHSEED"] = hash_seed
    return [*RUN, *map(str, files), "--out", str(out), "--json", *options]


def run(out: Path, files: Sequence[Path], *options: str, hash_seed: str = "0") -> str:
    subprocess.run(start(out, files, options, hash_seed), check=True, stdout=subprocess.DEVNULL)
    return digest(out)


def run_with_kills(out: Path, files: Sequence[Path], kills: int, seconds: float) -> str:
    """Kills the run at `kills` moments, spread over its time, before it may end."""
    command = start(out, files, ("--memory", "64MiB"), "0")
    for kill in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(seconds * (kill + 0.5) / kills)
        process.kill()
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return digest(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--megabytes", type=int, default=200, help="of Parquet files")
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    files = some_files(arguments.documents, arguments.megabytes * 1_000_000)
    shuffled = random.Random(1).sample(files, len(files))
    found: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        began = time.monotonic()
        found["1 thread"] = run(out, files, "--threads", "1")
        seconds = time.monotonic() - began
        found["2 threads, hash seed 7"] = run(out, files, "--threads", "2", hash_seed="7")
        found["4 threads, files shuffled"] = run(out, shuffled, "--threads", "4")
        found["64 MiB"] = run(out, files, "--memory", "64MiB")
        found["2 processes"] = run(out, files, "--engine", "2")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
        found["Ray, 2 nodes"] = run(out, files, "--engine", "auto")
        cluster.shutdown()
        found[f"killed {arguments.kills} times"] = run_with_kills(
            out, files, arguments.kills, seconds
        )
    for name, value in found.items():
        print(f"{value[:16]}  {name}")
    if len(set(found.values())) > 1:
        sys.exit("the bytes differ")
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes: all the same")


if __name__ == "__main__":
    main()
