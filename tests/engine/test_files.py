"""A file is the old one, the new one or absent."""

from pathlib import Path

import pytest

from marin.engine import atomic_file, write_json


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ValueError, match="midway"), atomic_file(path) as partial:
        partial.write_text("half")
        raise ValueError("midway")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_good_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with atomic_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_json_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": 1, "y": "ü"})
    write_json(tmp_path / "b", {"y": "ü", "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
