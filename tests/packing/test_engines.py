"""Where shards are written does not change a byte of them."""

from pathlib import Path

import pytest
from support.packing import make_schedule, write_store

import marin
from marin.engine import Local, Ray, Threads, read_manifest
from marin.errors import MarinError
from marin.packing import ShardConfig, pack, plan, repair

LENGTHS = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5], "c00q1": [8] * 5 + [2] * 9}
CONFIG = ShardConfig(shard_tokens=256, block_tokens=64)


@pytest.fixture
def planned(tmp_path):
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), [(0.0, 16, 8), (0.5, 32, 4)], 2048)
    return plan(write_store(tmp_path, LENGTHS), schedule, tmp_path)


def test_threads_and_processes_write_and_repair_the_same_files(tmp_path, planned):
    one = pack(planned, tmp_path / "one", CONFIG, engine=Threads(1))
    two = pack(planned, tmp_path / "two", CONFIG, engine=Local(2))
    assert read_manifest(one) == read_manifest(two)
    (two / "part-00001.arrow").write_bytes(b"")
    (two / "part-00003.arrow").unlink()
    lines = repair(two, engine=Local(1))
    assert [line.rpartition("/")[2] for line in lines] == [
        "part-00001.arrow: differs from its checksum",
        "part-00003.arrow: missing",
    ]
    for file in read_manifest(one).files:
        assert (two / file.name).read_bytes() == (one / file.name).read_bytes()


def test_two_ray_nodes_write_and_repair_the_same_files(tmp_path, planned, monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    # Worker processes import the package from where this process has it.
    monkeypatch.setenv("PYTHONPATH", str(Path(marin.__file__).parents[1]))
    here = pack(planned, tmp_path / "here", CONFIG, engine=Threads(1))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        engine = Ray(cluster.address)
        spread = pack(planned, tmp_path / "spread", CONFIG, engine=engine)
        assert read_manifest(here) == read_manifest(spread)
        (spread / "part-00001.arrow").write_bytes(b"")
        assert len(repair(spread, engine=engine)) == 1
    finally:
        ray.shutdown()
        cluster.shutdown()
    for file in read_manifest(here).files:
        assert (spread / file.name).read_bytes() == (here / file.name).read_bytes()


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [("store/c00q1/*.arrow", "build the store again"), ("plan-*/rows-00/*.arrow", "plan again")],
)
def test_damage_to_plan_or_store_is_named_before_a_row_is_written(
    tmp_path, planned, pattern, advice
):
    damaged = sorted(tmp_path.glob(pattern))[0]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(MarinError, match=rf"{damaged.name}: differs from its checksum; {advice}"):
        pack(planned, tmp_path / "out", CONFIG)
    assert not list((tmp_path / "out").rglob("part-*.arrow"))
