"""Sources in an object store: the S3 of moto on this machine, behind a door that fails at will."""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from marin import MarinError
from marin.datakit import Source, ingest
from marin.datakit.parts import part_names, read_part
from marin.engine import read_manifest


@dataclass
class Bucket:
    """A bucket; every `fails`-th request to it is answered with `status`."""

    client: Any
    url: str
    fails: int = 0
    status: int = 503
    requests: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def failing(self) -> bool:
        with self.lock:
            self.requests += 1
            bad = self.fails > 0 and self.requests % self.fails == 0
            self.failed += bad
            return bad

    def put(self, objects: dict[str, bytes]) -> None:
        for key, data in objects.items():
            self.client.put_object(Bucket="data", Key=key, Body=data)

    def clear(self) -> None:
        for item in self.client.list_objects_v2(Bucket="data").get("Contents", []):
            self.client.delete_object(Bucket="data", Key=item["Key"])


class Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("marin.datakit.sources._FIRST_WAIT", 0.001)
    moto = DomainDispatcherApplication(create_backend_app)

    def door(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not state.failing():
            return moto(environ, start_response)
        start_response(f"{state.status} On Purpose", [("Content-Length", "0")])
        return [b""]

    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Quiet)
    endpoint = f"127.0.0.1:{server.server_port}"
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1")
    url = f"s3://data/corpus?endpoint_override={endpoint}&scheme=http&region=us-east-1"
    state = Bucket(client, url)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client.create_bucket(Bucket="data")
    yield state
    state.fails = 0
    state.clear()
    client.delete_bucket(Bucket="data")
    server.shutdown()
    server.server_close()


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


@pytest.mark.parametrize("fails", [10, 4])
def test_objects_that_fail_now_and_then_are_read_in_whole(
    bucket: Bucket, tmp_path: Path, fails: int
) -> None:
    bucket.put(_objects())
    whole = ingest(Source("store", (bucket.url,)), tmp_path / "a")
    assert len(_texts(whole)) == 801
    bucket.fails = fails
    directory = ingest(Source("store", (bucket.url,)), tmp_path / "b")
    assert bucket.failed > 0
    assert read_manifest(directory).files == read_manifest(whole).files
    requests = bucket.requests
    assert ingest(Source("store", (bucket.url,)), tmp_path / "b") == directory
    assert bucket.requests - requests < 10


def test_a_store_that_refuses_is_one_line_and_leaves_nothing_finished(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put(_objects())
    ingest(Source("store", (bucket.url,)), tmp_path / "a")
    bucket.fails, bucket.status = 1, 403
    with pytest.raises(MarinError, match="s3://data/corpus") as error:
        ingest(Source("store", (bucket.url,)), tmp_path / "b")
    assert "\n" not in str(error.value)
    bucket.fails = 0
    bucket.clear()
    with pytest.raises(MarinError, match="nothing there"):
        ingest(Source("store", (bucket.url,)), tmp_path / "b")
