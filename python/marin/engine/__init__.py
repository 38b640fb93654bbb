"""Where work runs and how its results are kept: stages, manifests, atomic files."""

from marin.engine.files import Writeback, atomic_file, read_json, read_toml, write_json
from marin.engine.json_lines import ends_cut, json_lines, whole_lines
from marin.engine.manifest import (
    FileEntry,
    Manifest,
    file_entry,
    read_manifest,
    verify_files,
    write_manifest,
)
from marin.engine.outputs import (
    check_apart,
    check_output_file,
    check_output_root,
    check_plot,
    is_json_with,
    lies_in,
    make_folder,
)
from marin.engine.progress import Progress, Silent
from marin.engine.stage import (
    StageDir,
    Unfinished,
    check_named_directory,
    finished_stage,
    planning,
    stage_directory,
)
from marin.engine.workers import Engine, Local, Ray, Threads, engine_for

__all__ = [
    "Engine",
    "FileEntry",
    "Local",
    "Manifest",
    "Progress",
    "Ray",
    "Silent",
    "StageDir",
    "Threads",
    "Unfinished",
    "Writeback",
    "atomic_file",
    "check_apart",
    "check_named_directory",
    "check_output_file",
    "check_output_root",
    "check_plot",
    "ends_cut",
    "engine_for",
    "file_entry",
    "finished_stage",
    "is_json_with",
    "json_lines",
    "lies_in",
    "make_folder",
    "planning",
    "read_json",
    "read_manifest",
    "read_toml",
    "stage_directory",
    "verify_files",
    "whole_lines",
    "write_json",
    "write_manifest",
]
