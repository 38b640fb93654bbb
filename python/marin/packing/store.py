"""Reads a store: documents and tokens of each cell, as Arrow files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from marin._native import StoreCell, xxh3_bytes, xxh3_file
from marin.engine import Manifest, read_manifest
from marin.errors import MarinError
from marin.validation import CELL_NAME, is_cell_name

TOKENS_TYPE = pa.large_list(pa.uint32())
_STAGE = "store"


@dataclass(frozen=True)
class CellInfo:
    documents: int
    tokens: int


class Store:
    """A finished store directory.

    Raises:
      MarinError: it is unfinished, of another stage, or a file is not as the contract says.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        if self.manifest.stage != _STAGE:
            raise MarinError(
                f"{self.path}: a directory of stage {self.manifest.stage}, expected {_STAGE}"
            )

    @cached_property
    def cells(self) -> dict[str, CellInfo]:
        """Documents and tokens by cell, from the manifest."""
        cells = self.manifest.summary["cells"]
        for name in cells:
            if not is_cell_name(name):
                raise MarinError(f"{self.path}: cell {name!r:.60}, expected {CELL_NAME}")
        return {
            name: CellInfo(int(cell["documents"]), int(cell["tokens"]))
            for name, cell in sorted(cells.items())
        }

    @property
    def tokenizer_hash(self) -> str:
        return str(self.manifest.summary["tokenizer"]["hash"])

    @property
    def vocab_size(self) -> int | None:
        """Tokens of the tokenizer; None for a store that does not say."""
        size = self.manifest.summary["tokenizer"].get("vocab_size")
        return None if size is None else int(size)

    def files(self, cell: str) -> list[Path]:
        """The Arrow files of a cell, in the order that numbers its documents."""
        prefix = f"{cell}/"
        names = sorted(file.name for file in self.manifest.files if file.name.startswith(prefix))
        return [self.path / name for name in names]

    def checksums(self, cell: str) -> dict[Path, str]:
        """The checksum of each file of a cell, as the manifest says."""
        by_path = {self.path / file.name: file.xxh3 for file in self.manifest.files}
        return {path: by_path[path] for path in self.files(cell)}

    def cell(self, name: str) -> StoreCell:
        """Opens the tokens of a cell for reading by document."""
        files = [str(path) for path in self.files(name)]
        chunks = self.chunks(name)
        try:
            opened = StoreCell(files, chunks)
        except ValueError as error:
            raise MarinError(f"{self.path}: cell {name}: {error}; build the store again") from None
        ends = [(tokens.offsets[0].as_py(), tokens.offsets[-1].as_py()) for _, _, tokens in chunks]
        found = CellInfo(opened.documents, sum(end - begin for begin, end in ends))
        if found != self.cells.get(name, found):
            raise MarinError(
                f"{self.path}: cell {name} holds {found}, the manifest says {self.cells[name]}; "
                "build the store again"
            )
        return opened

    def check_lengths(self, name: str) -> None:
        """Compares the lengths of a cell's documents with the manifest's checksums of them.

        The files of a store that has none, which datakit once made, are read whole instead.

        Raises:
          MarinError: a file is damaged.
        """
        known: dict[str, str] = self.manifest.summary.get("lengths", {})
        for path, xxh3 in self.checksums(name).items():
            lengths = known.get(str(path.relative_to(self.path)))
            found = xxh3_file(path) if lengths is None else _lengths_checksum(path)
            if found != (lengths or xxh3):
                raise MarinError(f"{path}: differs from its checksum; build the store again")

    def chunks(self, name: str) -> list[tuple[int, int, pa.LargeListArray]]:
        """Record batches of a cell: number of the file, position of the first token value in it in
        bytes, and the `tokens` column."""
        return [
            (number, position, tokens)
            for number, path in enumerate(self.files(name))
            for position, tokens in _token_chunks(path)
        ]

    def ids(self, name: str) -> pa.ChunkedArray:
        """The documents' ids, in their order."""
        columns = [batch.column("id") for path in self.files(name) for batch in _open(path)[1]]
        return pa.chunked_array(columns, type=pa.string())


def _open(path: Path) -> tuple[int, list[pa.RecordBatch]]:
    """Address of the memory-mapped file, and its record batches, which point into it."""
    try:
        mapped = pa.memory_map(str(path))
        whole = mapped.read_buffer()
        reader = pa.ipc.open_file(pa.BufferReader(whole))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None
    return whole.address, [batch for batch in batches if batch.num_rows]


def _unreadable(path: Path, error: Exception) -> MarinError:
    return MarinError(f"{path}: not a readable Arrow file ({error}); build the store again")


def _lengths_checksum(path: Path) -> str:
    lengths = [np.diff(tokens.offsets.to_numpy()) for _, tokens in _token_chunks(path)]
    return xxh3_bytes(np.concatenate([np.empty(0, np.int64), *lengths]).astype("<i8").tobytes())


def _is_token_list(type_: pa.DataType) -> bool:
    """Whatever a writer calls the items, and whether or not it says that none is null."""
    return bool(pa.types.is_large_list(type_) and type_.value_type == TOKENS_TYPE.value_type)


def _token_chunks(path: Path) -> list[tuple[int, pa.Array]]:
    """Per record batch, where in the file its token values lie, and its `tokens` column."""
    begin, batches = _open(path)
    try:
        return [_token_chunk(path, begin, batch) for batch in batches]
    except (ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _token_chunk(path: Path, begin: int, batch: pa.RecordBatch) -> tuple[int, pa.Array]:
    if "tokens" not in batch.schema.names:
        raise MarinError(f"{path}: no column tokens; build the store again")
    tokens = batch.column("tokens")
    tokens.validate()
    nulls = tokens.null_count + (tokens.values.null_count if _is_token_list(tokens.type) else 0)
    if not _is_token_list(tokens.type) or nulls:
        raise MarinError(
            f"{path}: tokens are {tokens.type} with {nulls} nulls, expected "
            f"{TOKENS_TYPE} without; build the store again"
        )
    values = tokens.values.buffers()[1]
    position = values.address - begin if values is not None and values.size else 0
    if not 0 <= position < path.stat().st_size:
        raise MarinError(f"{path}: compressed; a store's Arrow files are uncompressed")
    # Without what the writer calls the items, which damage may have made unreadable.
    return position, pa.LargeListArray.from_arrays(tokens.offsets, tokens.values)
