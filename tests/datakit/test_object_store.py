"""Sources in an object store, from a small S3 server on this machine that fails on purpose."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin import MarinError
from marin.datakit import Source, ingest
from marin.datakit.parts import part_names, read_part
from marin.engine import read_manifest


@dataclass
class Bucket:
    """Objects by key; every `fails`-th request is answered with `status`."""

    objects: dict[str, bytes]
    fails: int = 0
    status: int = 503
    requests: int = 0
    failed: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def failing(self) -> bool:
        with self.lock:
            self.requests += 1
            bad = self.fails > 0 and self.requests % self.fails == 0
            self.failed += bad
            return bad


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("marin.datakit.sources._FIRST_WAIT", 0.001)
    state = Bucket({})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            key = unquote(parts.path).removeprefix("/data").lstrip("/")
            if state.failing():
                self.answer(state.status)
            elif not key and "list-type" in query:
                self.answer(200, _listing(state.objects, query.get("prefix", "")))
            elif key not in state.objects:
                self.answer(404)
            elif self.command == "HEAD":
                self.answer(200, Content_Length=str(len(state.objects[key])))
            else:
                data = state.objects[key]
                start, _, end = self.headers.get("Range", "bytes=0-")[6:].partition("-")
                chunk = data[int(start) : int(end) + 1 if end else None]
                span = f"bytes {start}-{int(start) + len(chunk) - 1}/{len(data)}"
                self.answer(206, chunk, Content_Range=span)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"127.0.0.1:{server.server_address[1]}"
    state.url = f"s3://data/corpus?endpoint_override={endpoint}&scheme=http&region=us-east-1"
    yield state
    server.shutdown()
    server.server_close()


def _listing(objects: dict[str, bytes], prefix: str) -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, data in sorted(objects.items())
        if key.startswith(prefix)
    )
    return (
        f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()
    )


def _objects() -> dict[str, bytes]:
    sink = pa.BufferOutputStream()
    texts = [f"parquet {i} " + "x" * 3000 for i in range(300)]
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=50, compression="none")
    lines = "".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(500))
    return {
        "corpus/a.parquet": sink.getvalue().to_pybytes(),
        "corpus/sub/b.jsonl": lines.encode(),
        "corpus/c.txt": b"plain text",
    }


def _texts(directory: Path) -> set[str]:
    parts = part_names(read_manifest(directory))
    return {text for p in parts for text in read_part(directory / p, ["text"])["text"].to_pylist()}


def test_objects_that_fail_now_and_then_are_read_in_whole(bucket: Bucket, tmp_path: Path) -> None:
    bucket.objects = _objects()
    whole = ingest(Source("store", (bucket.url,)), tmp_path / "a")
    assert len(_texts(whole)) == 801
    bucket.fails = 4
    directory = ingest(Source("store", (bucket.url,)), tmp_path / "b")
    assert bucket.failed > 1
    assert read_manifest(directory).files == read_manifest(whole).files
    requests = bucket.requests
    assert ingest(Source("store", (bucket.url,)), tmp_path / "b") == directory
    assert bucket.requests - requests < 10


def test_a_store_that_refuses_is_one_line_and_leaves_nothing_finished(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.objects = _objects()
    ingest(Source("store", (bucket.url,)), tmp_path / "a")
    bucket.fails, bucket.status = 1, 403
    with pytest.raises(MarinError, match="s3://data/corpus") as error:
        ingest(Source("store", (bucket.url,)), tmp_path / "b")
    assert "\n" not in str(error.value)
    bucket.fails = 0
    bucket.objects = {}
    with pytest.raises(MarinError, match="nothing there"):
        ingest(Source("store", (bucket.url,)), tmp_path / "b")
