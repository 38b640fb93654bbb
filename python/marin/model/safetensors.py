"""Files in the safetensors format: named arrays, memory-mapped when read.

A file is the length of its header (8 bytes, little-endian), a JSON header of name, type, shape and
byte range of every tensor, and the bytes. https://huggingface.co/docs/safetensors
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marin.errors import MALFORMED, MarinError

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ALIGNMENT = 8  # bytes, of the data's start

Tensors = Mapping[str, NDArray[Any]]


def write(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Writes little-endian float32, float64 or int32 arrays in the mapping's order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, mapped from it. `MarinError` for a file that is not whole."""
    try:
        data = np.memmap(path, np.uint8, "r")
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _tensor(data[start:], entry) for name, entry in header.items()}
    except (OSError, *MALFORMED) as error:
        raise MarinError(f"{path}: not a whole safetensors file ({error})") from None


def _tensor(data: NDArray[Any], entry: Mapping[str, Any]) -> NDArray[Any]:
    start, end = entry["data_offsets"]
    dtype = _TYPES[entry["dtype"]]
    if end - start != math.prod(entry["shape"]) * dtype.itemsize:
        raise ValueError(f"{end - start} bytes for shape {entry['shape']}")
    tensor: NDArray[Any] = data[start:end].view(dtype).reshape(entry["shape"])
    return tensor
