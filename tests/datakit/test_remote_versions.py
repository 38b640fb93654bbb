"""Sources behind fsspec file systems, which say in words of their own whether a file changed."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem

from marin import MarinError
from marin.datakit import Source, ingest
from marin.datakit.dedup.locations import open_file, parquet_files
from marin.datakit.parts import part_names, read_part
from marin.datakit.sources import _system, locate
from marin.engine import read_manifest

URL = "hf://datasets/owner/name"


class Hub(AbstractFileSystem):
    """A hub that lists a folder once; `says` turns content into what it tells of a file."""

    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    says: ClassVar[Any] = lambda data: {"ETag": _digest(data)}
    listed: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.listing: list[dict[str, Any]] | None = None
        type(self).listed = 0

    def ls(self, path: str, detail: bool = True, **_: object) -> list[dict[str, Any]]:
        if self.listing is None:
            type(self).listed += 1
            self.listing = [
                {"name": f"datasets/owner/name/{name}", "size": len(data), "type": "file"}
                | type(self).says(data)
                for name, data in self.files.items()
            ]
        return [entry for entry in self.listing if entry["name"].startswith(f"{path}/")]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listing = None

    def _open(self, path: str, *_: object, **__: object) -> io.BytesIO:
        return io.BytesIO(self.files[path.rpartition("/")[2]])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    monkeypatch.setattr("huggingface_hub.HfFileSystem", Hub)
    monkeypatch.setattr(Hub, "files", {"a.jsonl": b'{"text": "first version"}'})
    _system.cache_clear()
    yield Hub
    _system.cache_clear()


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.mark.parametrize(
    "says",
    [
        lambda data: {"blob_id": _digest(data), "last_commit": None},
        lambda data: {"ETag": _digest(data)},
        lambda data: {"blob_id": None, "last_commit": SimpleNamespace(oid=_digest(data))},
        lambda data: {"mtime": 1.5 if data.count(b"first") else 2.5},
    ],
    ids=["blob", "etag", "commit", "mtime"],
)
def test_changed_content_of_the_same_size_is_read_again(
    hub: type[Hub], says: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "says", says)
    source = Source("hub", (URL,))
    first = ingest(source, tmp_path)
    assert ingest(source, tmp_path) == first
    hub.files["a.jsonl"] = b'{"text": "other version"}'
    second = ingest(source, tmp_path)
    texts = [
        read_part(directory / part, ["text"])["text"].to_pylist()
        for directory in (first, second)
        for part in part_names(read_manifest(directory))
    ]
    assert texts == [["first version"], ["other version"]]


def test_the_files_of_a_folder_are_listed_once(hub: type[Hub]) -> None:
    rows = pa.table({"id": ["a"], "text": ["b"]})
    for number in range(5):
        file = io.BytesIO()
        pq.write_table(rows, file)
        hub.files[f"part-{number}.parquet"] = file.getvalue()
    found = list(parquet_files(URL))
    assert len(found) == 5
    assert [pq.read_table(open_file(place)).num_rows for _, place, *_ in found] == [1] * 5
    assert hub.listed == 1


def test_a_file_of_which_nothing_tells_a_change_is_refused(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "says", lambda _: {"last_commit": None})
    with pytest.raises(MarinError, match=r"hub.*a\.jsonl: .*neither a checksum nor .*; download"):
        locate(Source("hub", (URL,)))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ImportError("HTTPFileSystem requires aiohttp"),
            "https://: HTTPFileSystem requires aiohttp",
        ),
        (
            ModuleNotFoundError("No module named 'x'", name="x"),
            "https://: No module named 'x'; pip install x",
        ),
    ],
)
def test_a_missing_package_is_named(
    error: ImportError, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise error

    monkeypatch.setattr("fsspec.filesystem", missing)
    _system.cache_clear()
    with pytest.raises(MarinError) as caught:
        locate(Source("web", ("https://example.org/a.jsonl",)))
    assert str(caught.value) == line
