"""Every kind of damage is found, named, and repaired by writing only the shards that have it."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from support.packing import make_schedule, write_store
from typer.testing import CliRunner

from marin.cli.app import app
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.packing import ShardConfig, pack, plan, repair
from marin.packing.pack import _stages
from marin.packing.shard import ShardPlaces, whole_shard
from marin.stream import Stream

CONFIG = ShardConfig(shard_tokens=256, block_tokens=64)
LENGTHS = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5], "c00q1": [8] * 5 + [2] * 9}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), [(0.0, 16, 8), (0.5, 32, 4)], 2048)
    planned = plan(write_store(root, LENGTHS), schedule, root)
    return pack(planned, root, CONFIG)


@pytest.fixture
def shards(tmp_path, finished):
    return shutil.copytree(finished, tmp_path / "shards")


def rewrite(path, change):
    reader = pa.ipc.open_file(path.read_bytes())
    tables = [pa.Table.from_batches([reader.get_batch(i)]) for i in range(4)]
    tables = [change(table) for table in tables]
    with pa.ipc.new_file(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)


def flip(position):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[position] ^= 16
        path.write_bytes(content)

    return damage


def swap(path):
    other = path.with_name("part-00002.arrow")
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "lost footer": lambda path: path.write_bytes(path.read_bytes()[:-8] + bytes(8)),
    "flipped bit in the header": flip(40),
    "flipped bit in the tokens": flip(1000),
    "missing": lambda path: path.unlink(),
    "missing column": lambda path: rewrite(path, lambda table: table.drop(["cell"])),
    "extra column": lambda path: rewrite(
        path, lambda table: table.append_column("extra", pa.nulls(len(table)))
    ),
    "swapped shards": swap,
    "missing index": lambda path: (path.parent / "index" / path.name).unlink(),
    "flipped bit in the index": lambda path: flip(900)(path.parent / "index" / path.name),
    "index of another shard": lambda path: shutil.copy(
        path.parent / "index" / "part-00000.arrow", path.parent / "index" / path.name
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_only_its_shard_is_written_again(finished, shards, kind):
    DAMAGE[kind](shards / "part-00001.arrow")
    with pytest.raises(MarinError, match=r"part-00001\.arrow: .*marin pack --verify") as error:
        list(Stream(shards).iterate())
    assert "\n" not in str(error.value)
    untouched = (shards / "part-00003.arrow").stat().st_mtime_ns
    lines = repair(shards)
    assert any("part-00001.arrow" in line for line in lines)
    assert (shards / "part-00003.arrow").stat().st_mtime_ns == untouched
    for file in read_manifest(finished).files:
        assert (shards / file.name).read_bytes() == (finished / file.name).read_bytes()
    assert repair(shards) == []


@pytest.mark.parametrize("bits", [1, 65, 255])
def test_no_damage_to_an_index_is_in_the_way_of_a_repair(shards, bits):
    """A flipped bit in a count of nulls made numbers None, after the shard was deleted."""
    path = shards / "index" / "part-00001.arrow"
    good = path.read_bytes()
    place = list(ShardPlaces(_stages(read_manifest(shards)), CONFIG))[1]
    assert whole_shard(shards, place) is not None
    for position in range(0, len(good), 1 if bits == 65 else 3):
        path.write_bytes(good[:position] + bytes([good[position] ^ bits]) + good[position + 1 :])
        if whole_shard(shards, place) is not None:
            assert path.read_bytes() == good


def test_a_stale_manifest_is_named(finished, shards):
    raw = json.loads((finished / "manifest.json").read_text())
    raw["summary"]["rows"] += 1
    (shards / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(MarinError, match=r"manifest\.json: damaged or edited"):
        Stream(shards)


def test_shards_of_another_tokenizer_are_refused(shards):
    assert len(Stream(shards, tokenizer="tokenizer-1"))
    with pytest.raises(MarinError, match="tokenizer-1, expected other"):
        Stream(shards, tokenizer="other")


def test_a_killed_packing_does_not_trust_what_it_finds(finished, tmp_path):
    root = tmp_path
    summary = read_manifest(finished).summary
    again = root / finished.name
    shutil.copytree(finished, again)
    (again / "manifest.json").unlink()
    flip(1000)(again / "part-00000.arrow")
    flip(700)(again / "index" / "part-00001.arrow")
    from pathlib import Path

    assert pack(Path(summary["plan"]), root, CONFIG) == again
    assert read_manifest(again).files == read_manifest(finished).files


def test_the_command_repairs(shards):
    flip(1000)(shards / "part-00001.arrow")
    done = CliRunner().invoke(app, ["pack", str(shards), "--verify", "--json"])
    answer = json.loads(done.stdout)
    assert answer["repaired"] == [f"{shards}/part-00001.arrow: differs from its checksum"]
    assert {"rows", "tokens", "padding", "cut_documents", "seconds", "manifest"} <= set(answer)
    assert np.isfinite(answer["seconds"])


def test_the_command_plans_and_packs_a_store(tmp_path):
    store = write_store(tmp_path, LENGTHS)
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), [(0.0, 16, 8)], 1024)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(schedule.to_json()))
    done = CliRunner().invoke(app, ["pack", str(store), "--schedule", str(path), "--json"])
    answer = json.loads(done.stdout)
    assert answer["rows"] == schedule.rows
    again = CliRunner().invoke(app, ["pack", str(store), "--schedule", str(path)])
    assert again.exit_code == 0
    assert "padding %" in again.stdout
    failed = CliRunner().invoke(app, ["pack", str(store)])
    assert isinstance(failed.exception, MarinError)
