"""A corpus with natural near duplicates: the text files of several versions of many packages.

The packages come through the ordinary pip client from the index it is set up for, as wheels, so
that nothing of them is run. Most files hardly change from one version to the next: about a third of
the documents repeat another exactly, and many more nearly.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from marin.engine import Progress, atomic_file, stage_directory
from marin.errors import MarinError

STAGE = "bench-corpus"
_VERSIONS = 8
_STEP = 2
_PIP_SECONDS = 600
_PART_BYTES = 256 << 20
_GROUP_BYTES = 32 << 20
_LEAST_BYTES = 64
_MOST_BYTES = 4 << 20
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
    ]
)

PACKAGES = [
    "ansible-core",
    "apache-airflow",
    "bokeh",
    "botocore",
    "diffusers",
    "django",
    "faker",
    "jupyterlab",
    "kubernetes",
    "langchain-community",
    "litellm",
    "matplotlib",
    "moto",
    "mypy",
    "networkx",
    "numba",
    "pandas",
    "plotly",
    "pygments",
    "scikit-learn",
    "sphinx",
    "sqlalchemy",
    "statsmodels",
    "streamlit",
    "sympy",
    "transformers",
    "babel",
    "black",
    "boto3",
    "celery",
    "conan",
    "cryptography",
    "dask",
    "datasets",
    "distributed",
    "django-cms",
    "django-extensions",
    "djangorestframework",
    "docutils",
    "fastapi",
    "flask",
    "flax",
    "gensim",
    "geopandas",
    "gunicorn",
    "hypothesis",
    "ipython",
    "jax",
    "jedi",
    "jinja2",
    "jupyter-server",
    "keras",
    "kombu",
    "langchain",
    "lightning",
    "luigi",
    "mako",
    "markdown",
    "mercurial",
    "mistune",
    "mkdocs-material",
    "nltk",
    "notebook",
    "openai",
    "paramiko",
    "peft",
    "phonenumbers",
    "pip",
    "pip-tools",
    "poetry",
    "pre-commit",
    "prefect",
    "prompt-toolkit",
    "pulumi",
    "pycparser",
    "pydantic",
    "pyinstaller",
    "pylint",
    "pymongo",
    "pytest",
    "pytest-django",
    "python-telegram-bot",
    "qiskit",
    "redis",
    "requests",
    "rich",
    "salt",
    "scikit-image",
    "scrapy",
    "seaborn",
    "sentry-sdk",
    "setuptools",
    "sqlglot",
    "textual",
    "tornado",
    "trl",
    "twisted",
    "virtualenv",
    "wagtail",
]
"""Mostly text, published as wheels, with many releases. The first 26 at 8 versions each are some
240,000 documents of together 3.9 GB."""


def make_corpus(root: Path, *, packages: Sequence[str], versions: int, progress: Progress) -> Path:
    """Downloads `versions` releases of each package and writes the documents directory.

    A package that cannot be had is left out and named in the manifest's summary, which also has
    `text_bytes`. Documents: text files of 64 bytes to 4 MiB. Finished packages are kept when the
    command is interrupted.

    Raises:
      MarinError: no package can be had.
    """
    parameters = {"packages": sorted(packages), "versions": versions}
    with stage_directory(root, STAGE, parameters, {}) as stage:
        if stage.finished:
            return stage.path
        rows: dict[str, int] = {}
        missing, text_bytes = [], 0
        with progress.task("Download packages", total=len(packages)) as task:
            for package in sorted(packages):
                path = stage.path / f"part-{package}.parquet"
                if not path.exists() and not _write_package(path, package, versions):
                    missing.append(package)
                else:
                    metadata = pq.read_metadata(path)
                    rows[path.name] = metadata.num_rows
                    text_bytes += int(metadata.metadata[b"text_bytes"])
                task.advance(1)
        if not rows:
            raise MarinError(f"{stage.path}: none of {len(packages)} packages could be downloaded")
        stage.finish(rows, {"missing": missing, "text_bytes": text_bytes})
        return stage.path


def _write_package(path: Path, package: str, versions: int) -> bool:
    documents: list[tuple[str, str, str, str]] = []
    for version in _releases(package, versions):
        with TemporaryDirectory() as folder:
            if _pip(
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
                folder,
                f"{package}=={version}",
            ):
                for wheel in sorted(Path(folder).glob("*.whl")):
                    documents += _texts(wheel, package, version)
    if not documents:
        return False
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*documents, strict=True), _SCHEMA, strict=True)
    ]
    text_bytes = sum(len(text.encode()) for _, text, _, _ in documents)
    schema = _SCHEMA.with_metadata({"text_bytes": str(text_bytes)})
    group_rows = max(1, len(documents) * _GROUP_BYTES // max(text_bytes, 1))
    with atomic_file(path) as partial:
        table = pa.table(columns, schema=schema)
        pq.write_table(table, partial, compression="zstd", row_group_size=group_rows)
    return True


def _releases(package: str, count: int) -> list[str]:
    """Every second one of the latest final releases, the newest first."""
    listed = _pip("index", "versions", package)
    for line in (listed or "").splitlines():
        if line.startswith("Available versions:"):
            every = [version.strip() for version in line.partition(":")[2].split(",")]
            return every[::_STEP][:count]
    return []


def _pip(*arguments: str) -> str | None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _texts(wheel: Path, package: str, version: str) -> Iterator[tuple[str, str, str, str]]:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not _LEAST_BYTES <= entry.file_size <= _MOST_BYTES:
                continue
            data = archive.read(entry)
            if b"\0" in data:
                continue
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue
            yield f"{package}/{version}/{entry.filename}", text, package, entry.filename
