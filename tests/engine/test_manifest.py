"""Directories are finished or not; manifests name what they hold."""

import json
from pathlib import Path

import pytest

from marin._native import xxh3_bytes
from marin.engine import (
    finished_stage,
    read_manifest,
    stage_directory,
    verify_files,
    write_manifest,
)
from marin.engine.lock import LOCK_NAME
from marin.engine.manifest import fingerprint
from marin.errors import MarinError


def finish(directory: Path, content: bytes = b"abc", **parameters: object) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "part-00000.bin").write_bytes(content)
    write_manifest(
        directory, "test", parameters=parameters, inputs={"x": "1"}, rows={"part-00000.bin": 3}
    )


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    finish(tmp_path, b"abc", size=1, name="é")
    manifest = read_manifest(tmp_path)
    assert manifest.parameters == {"size": 1, "name": "é"}
    assert manifest.rows == 3
    (entry,) = manifest.files
    assert (entry.name, entry.bytes, entry.xxh3) == ("part-00000.bin", 3, xxh3_bytes(b"abc"))
    assert list(verify_files(tmp_path, manifest)) == []


def test_the_fingerprint_follows_content_and_parameters_but_not_the_summary(tmp_path: Path) -> None:
    for name, content, size in [
        ("a", b"abc", 1),
        ("b", b"abc", 1),
        ("c", b"abd", 1),
        ("d", b"abc", 2),
    ]:
        finish(tmp_path / name, content, size=size)
    a, b, c, d = (read_manifest(tmp_path / name).fingerprint for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3
    assert fingerprint({"x": 1, "y": 2}) == fingerprint({"y": 2, "x": 1})


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_every_kind_of_damage_to_a_file_is_named(tmp_path: Path, damage: str) -> None:
    finish(tmp_path)
    path = tmp_path / "part-00000.bin"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": b"ab", "flipped": b"abd"}[damage])
    (line,) = verify_files(tmp_path, read_manifest(tmp_path))
    assert "part-00000.bin" in line


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stage": 1}', '{"files": [{"name": 1}]}'])
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(MarinError, match=r"manifest\.json") as error:
        read_manifest(tmp_path)
    assert "\n" not in str(error.value)


def test_a_directory_that_is_none_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match=r"absent: no such directory$"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(MarinError, match=r"no manifest.json, so it is unfinished"):
        read_manifest(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(MarinError, match=r"file: a file, expected a directory"):
        read_manifest(tmp_path / "file")


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    finish(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(MarinError, match="version 99"):
        read_manifest(tmp_path)


def test_a_flipped_character_of_a_manifest_is_found(tmp_path: Path) -> None:
    finish(tmp_path, size=1)
    path = tmp_path / "manifest.json"
    text = path.read_text()
    for at in range(len(text)):
        if text[at] in " \n":
            continue
        path.write_text(text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :])
        with pytest.raises(MarinError, match=r"manifest\.json"):
            read_manifest(tmp_path)


def test_a_finished_stage_is_not_redone_and_a_changed_parameter_is_another_directory(
    tmp_path: Path,
) -> None:
    def run(size: int) -> tuple[Path, bool]:
        with stage_directory(tmp_path, "count", {"size": size}, {}) as stage:
            fresh = not stage.finished
            if fresh:
                (stage.path / "out").write_text("1")
                stage.finish(rows={"out": 1}, summary={"n": 1})
        return stage.path, fresh

    first, fresh = run(1)
    assert fresh
    assert run(1) == (first, False)
    second, fresh = run(2)
    assert fresh
    assert second != first


def test_partial_files_of_a_killed_stage_are_swept_and_whole_ones_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), stage_directory(tmp_path, "s", {}, {}) as stage:
        (stage.path / "whole").write_text("1")
        (stage.path / ".partial-1-rest").write_text("1")
    assert finished_stage(stage.path) is None
    with stage_directory(tmp_path, "s", {}, {}) as again:
        names = {path.name for path in again.path.iterdir()}
        assert names - {LOCK_NAME} == {"whole"}
        again.finish(rows={"whole": 1})


def test_a_finished_stage_that_lost_a_file_is_unfinished(tmp_path: Path) -> None:
    finish(tmp_path)
    assert finished_stage(tmp_path) is not None
    (tmp_path / "part-00000.bin").unlink()
    assert finished_stage(tmp_path) is None
