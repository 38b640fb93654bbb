"""Where work runs and how its results are kept: stages, manifests, atomic files."""

from marin.engine.files import atomic_file, write_json
from marin.engine.manifest import FileEntry, Manifest, read_manifest, verify_files, write_manifest
from marin.engine.progress import Progress, Silent
from marin.engine.stage import StageDir, finished_stage, stage_directory

__all__ = [
    "FileEntry",
    "Manifest",
    "Progress",
    "Silent",
    "StageDir",
    "atomic_file",
    "finished_stage",
    "read_manifest",
    "stage_directory",
    "verify_files",
    "write_json",
    "write_manifest",
]
