"""Types of the Rust module; the docstrings of the functions stand here.

`ArrowLike` arguments take any object with `__arrow_c_array__`; `ArrowArray` results become pyarrow
arrays with `pa.array(x)`, or record batches with `pa.record_batch(x)`. Nothing is copied.
"""

import os
from typing import Any, Protocol

__version__: str

class ArrowLike(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...

class ArrowArray:
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...
    def __len__(self) -> int: ...

# checksum

def xxh3_file(path: str | os.PathLike[str]) -> str:
    """128-bit xxh3 of a file's content as 32 hex digits. Raises `OSError`."""

def xxh3_bytes(data: bytes) -> str:
    """128-bit xxh3 of `data` as 32 hex digits."""

# dedup

# datakit

# mixture

# packing

# stream
