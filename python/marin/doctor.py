"""What works on this machine, what is missing, and how to get it.

Every check looks and changes nothing; none needs a network. A check is of the core (without it
Marin does not run), of an option, or a note.
"""

import importlib
import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "note"]

_CORE = (
    "datasketch", "flax", "jaxtyping", "jinja2", "matplotlib", "numpy", "optax", "orbax.checkpoint",
    "polars", "pyarrow", "pydantic", "rich", "scipy", "sklearn", "tokenizers", "typer", "wandb",
)  # fmt: skip
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "gpu": (("jax_cuda12_plugin",), "training on NVIDIA GPUs"),
    "ray": (("ray",), "the data side on a cluster (--engine auto, ray://...)"),
    "embed": (("transformers", "sentence_transformers", "torch"), "embeddings by a model"),
    "bench": (("grain", "datatrove", "gaoya", "rensa"), "other libraries beside ours"),
    "docs": (("mkdocs", "material", "mkdocstrings"), "building this project's site"),
}
"""Modules of each optional extra, and what it is for."""

_LEAST_PYTHON = (3, 11)
_LITTLE_DISK = 5 * 10**9  # bytes; the quickstart writes about 0.3 GB
_LITTLE_MEMORY = 4 * 10**9
_FEW_FILES = 1024


@dataclass(frozen=True)
class Check:
    """`found` says what is there; `remedy` what to do, and is empty where nothing is."""

    name: str
    state: State
    found: str
    remedy: str = ""
    core: bool = False


def examine() -> list[Check]:
    """All checks, the core first."""
    found: list[Check] = []
    for check in (_python, _native, _packages, _jax, _accelerator, _wandb, _extras, _machine):
        found.extend(check())
    return found


def works(checks: list[Check]) -> bool:
    """Whether nothing of the core is missing."""
    return all(check.state != "missing" for check in checks if check.core)


def _python() -> Iterator[Check]:
    version = platform.python_version()
    if sys.version_info < _LEAST_PYTHON:
        yield Check("python", "missing", version, "install Python 3.11 or newer", core=True)
    else:
        yield Check("python", "ok", f"{version} at {sys.executable}", core=True)


def _native() -> Iterator[Check]:
    try:
        native = importlib.import_module("marin._native")
    except ImportError as error:
        remedy = "build it: make quickstart, or maturin develop --release (needs cargo and cc)"
        yield Check("native module", "missing", str(error), remedy, core=True)
        for tool, package in (("cargo", "rustup"), ("cc", "gcc")):
            if shutil.which(tool) is None:
                yield Check(tool, "missing", "not on PATH", f"install it (package {package})")
        return
    yield Check("native module", "ok", native.__version__, core=True)


def _packages() -> Iterator[Check]:
    absent = [name for name in _CORE if not _is_there(name)]
    if absent:
        remedy = f"pip install {' '.join(name.partition('.')[0] for name in absent)}"
        yield Check("packages", "missing", f"without {', '.join(absent)}", remedy, core=True)
    else:
        yield Check("packages", "ok", f"all {len(_CORE)} that are needed", core=True)


def _jax() -> Iterator[Check]:
    try:
        jax = importlib.import_module("jax")
        devices = jax.devices()
    except (ImportError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        yield Check("jax", "missing", first, "pip install 'jax>=0.10'", core=True)
        return
    kinds = sorted({device.device_kind for device in devices})
    found = f"{jax.__version__}, {len(devices)} x {', '.join(kinds)} ({devices[0].platform})"
    yield Check("jax", "ok", found, core=True)


def _accelerator() -> Iterator[Check]:
    driver = Path("/proc/driver/nvidia/version")
    if not driver.exists():
        yield Check("cuda", "note", "no NVIDIA driver; everything runs on the processor, slowly")
        return
    version = driver.read_text().split("\n")[0].partition("Kernel Module")[2].split()
    found = f"driver {version[0] if version else 'present'}"
    if _is_there("jax_cuda12_plugin"):
        yield Check("cuda", "ok", found)
    else:
        yield Check(
            "cuda",
            "missing",
            f"{found}, but JAX sees none",
            "pip install '.[gpu]' in the repository",
        )


def _wandb() -> Iterator[Check]:
    mode = os.environ.get("WANDB_MODE", "")
    yield Check(
        "weights & biases",
        "note",
        f"runs are recorded offline{f' (WANDB_MODE={mode})' if mode else ''}",
        "to upload one: wandb login, then wandb sync RUN/wandb/offline-run-*",
    )


def _extras() -> Iterator[Check]:
    for extra, (modules, purpose) in EXTRAS.items():
        absent = [module for module in modules if not _is_there(module)]
        if not absent:
            versions = ", ".join(f"{module} {_version(module)}".strip() for module in modules)
            yield Check(f"extra {extra}", "ok", versions)
        else:
            remedy = f"for {purpose}: pip install '.[{extra}]' in the repository"
            yield Check(f"extra {extra}", "note", f"without {', '.join(absent)}", remedy)


def _machine() -> Iterator[Check]:
    yield Check("processor", "note", f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}")
    memory = _memory()
    yield _enough("memory", memory, _LITTLE_MEMORY, "available", "close programs")
    free = shutil.disk_usage(".").free
    yield _enough("disk", free, _LITTLE_DISK, f"free in {Path.cwd()}", "choose another --out")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    remedy = "" if files > _FEW_FILES else "for stores of thousands of files: ulimit -n 65536"
    yield Check("open files", "note", f"at most {files:,}", remedy)
    yield _huge_pages()


def _enough(name: str, amount: int, least: int, where: str, remedy: str) -> Check:
    found = f"{amount / 1e9:.1f} GB {where}"
    if amount >= least:
        return Check(name, "ok", found)
    return Check(name, "note", found, f"less than {least / 1e9:g} GB: {remedy}")


def _huge_pages() -> Check:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        return Check("huge pages", "note", "not told by this system")
    chosen = path.read_text().partition("[")[2].partition("]")[0]
    if chosen == "never":
        remedy = f"large arrays are faster with: echo madvise > {path} (as root)"
        return Check("huge pages", "note", chosen, remedy)
    return Check("huge pages", "ok", chosen)


def _memory() -> int:
    """Bytes available now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(module: str) -> str:
    names = metadata.packages_distributions().get(module, [])
    return metadata.version(names[0]) if names else ""
