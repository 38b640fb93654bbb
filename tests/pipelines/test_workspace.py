"""The output directory: refused with a line where it would harm, used by one process at a time."""

from pathlib import Path

import pytest

from marin.errors import MarinError
from marin.pipelines.workspace import workspace


def refused(out: Path, *inputs: Path) -> str:
    with pytest.raises(MarinError) as error, workspace(out, inputs):
        pass
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_output_that_is_an_input_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert "also an input" in refused(tmp_path, tmp_path)
    link = tmp_path.with_name("link")
    link.symlink_to(tmp_path)
    assert "also an input" in refused(link, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_input_inside_the_output_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "documents"
    inner.mkdir()
    assert "inside the output" in refused(tmp_path, inner)


def test_a_missing_input_is_named_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "nowhere" in refused(out, tmp_path / "nowhere")
    assert not out.exists()


def test_a_folder_with_files_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "did not write" in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_as_output_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert "not a folder" in refused(path)
    assert path.read_text() == "x"


def test_an_output_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file" / "out")


def test_a_second_process_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with workspace(out, []):
        assert "another marin process" in refused(out)
    with workspace(out, []):
        pass
