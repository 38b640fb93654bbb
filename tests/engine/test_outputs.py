"""Where results may go: never over an input, a finished stage or files of somebody else."""

import os
from pathlib import Path

import pytest

from marin.engine import (
    check_named_directory,
    check_output_file,
    finished_stage,
    stage_directory,
    write_manifest,
)
from marin.errors import MarinError


def begin_and_fail(directory: Path) -> None:
    with (
        pytest.raises(ValueError, match="killed"),
        stage_directory(directory.parent, "test", {}, {}, directory=directory),
    ):
        (directory / "half.bin").write_text("x")
        raise ValueError("killed")


def test_a_named_directory_is_gone_on_with_by_its_own_stage_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    begin_and_fail(out)
    with pytest.raises(MarinError, match="holds test, not other"):
        check_named_directory(out, "other")
    with stage_directory(tmp_path, "test", {}, {}, directory=out) as stage:
        stage.finish({"half.bin": 1})
    assert finished_stage(out) is not None
    assert sorted(path.name for path in out.iterdir()) == ["half.bin", "manifest.json"]


def test_a_directory_of_a_stage_that_was_killed_as_it_began_is_new(tmp_path: Path) -> None:
    (tmp_path / ".partial-7-.begun.json").write_text("{")
    (tmp_path / ".lock").touch()
    check_named_directory(tmp_path, "stage")
    (tmp_path / ".partial-7-notes.txt").touch()
    with pytest.raises(MarinError, match="holds files"):
        check_named_directory(tmp_path, "stage")


def test_an_interrupted_stage_of_another_identity_leaves_nothing_but_foreign_files(
    tmp_path: Path,
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.write_text("mine")
    makes = ["whole", "fresh", "deep/er/part", "deep/other", "../outside", "absent"]
    for size, files in ((1, ["whole"]), (2, ["fresh"])):
        with (
            pytest.raises(ValueError, match="killed"),
            stage_directory(
                tmp_path, "test", {"size": size}, {}, directory=out, makes=makes
            ) as stage,
        ):
            assert not (stage.path / "whole").exists()
            assert not (stage.path / "deep" / "er").exists()
            (stage.path / "deep" / "er").mkdir(parents=True)
            for name in ("deep/er/part", "deep/mine", *files):
                (stage.path / name).write_text("x")
            raise ValueError("killed")
    assert outside.read_text() == "mine"
    with stage_directory(tmp_path, "test", {"size": 2}, {}, directory=out, makes=makes) as stage:
        assert (out / "deep" / "er" / "part").exists()
        stage.finish({"fresh": 1})
    assert sorted(path.name for path in out.iterdir()) == ["deep", "fresh", "manifest.json"]
    assert (out / "deep" / "mine").read_text() == "x"


def test_no_stage_lies_in_a_finished_one_or_below_a_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "c0").mkdir(parents=True)
    write_manifest(store, "store", parameters={}, inputs={}, rows={})
    file = tmp_path / "mk.py"
    file.write_text("x")
    for root, message in (
        (store, "a finished store"),
        (store / "c0" / "deeper", "a finished store"),
        (file, "mk.py: not a folder"),
        (file / "below", "mk.py: not a folder"),
    ):
        with pytest.raises(MarinError, match=message), stage_directory(root, "plan", {}, {}):
            pass
    assert sorted(path.name for path in store.iterdir()) == ["c0", "manifest.json"]
    assert file.read_text() == "x"


def test_an_output_file_spares_stages_folders_and_other_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    write_manifest(stage, "store", parameters={}, inputs={}, rows={})
    (tmp_path / "x").write_text("mine")

    def check(path: Path, *, known: bool = False, own: Path | None = None) -> None:
        check_output_file(path, "page", lambda _: known, own=own)

    for path, message in (
        (stage / "new", "a finished store"),
        (stage, "a folder"),
        (tmp_path / "x", "no page of marin's"),
        (tmp_path / "x" / "y", "is no folder"),
    ):
        with pytest.raises(MarinError, match=message):
            check(path)
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "locked")
    with pytest.raises(MarinError, match="locked is not to be written to"):
        check(tmp_path / "locked" / "new")
    check(tmp_path / "x", known=True)
    check(stage / "new", own=stage)
    check(tmp_path / "new")
