"""Texts to token ids in batches, long texts in pieces; nothing but ids leaves the library."""

import re
from itertools import chain

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

TOKENS_TYPE = pa.large_list(pa.field("item", pa.uint32(), nullable=False))
# Text given to the library at once: its encodings take some hundred bytes per token.
BATCH_CHARACTERS = 2 << 20
PIECE_CHARACTERS = 256 << 10
# Between a letter or digit and a space with a letter after it: there, the pre-tokenizers of
# byte-level BPE split anyway, so pieces give the tokens of the whole.
_BOUNDARY = re.compile(r"(?<=[^\W_])(?= [^\W\d_])")
_BOUNDARY_SEARCH = 4096


class Encoder:
    """Encodes columns of texts; `tokens` counts what it wrote, BOS and EOS included."""

    def __init__(self, tokenizer: Tokenizer, bos: int | None, eos: int | None) -> None:
        self.tokens = 0
        self._tokenizer = tokenizer
        self._bos = [] if bos is None else [bos]
        self._eos = [] if eos is None else [eos]

    def encode(self, texts: pa.Array) -> pa.Array:
        """`large_list<uint32>` of the texts' tokens, null for null."""
        present = texts.is_valid().to_numpy(zero_copy_only=False)
        lengths: list[np.ndarray] = []
        ids: list[np.ndarray] = []
        pieces: list[str] = []
        owners: list[int] = []
        waiting = 0
        for row, text in enumerate(texts.drop_null().to_pylist()):
            for piece in pieces_of(text):
                pieces.append(piece)
                owners.append(row)
                waiting += len(piece)
                if waiting >= BATCH_CHARACTERS:
                    self._encode_batch(pieces, lengths, ids)
                    pieces, waiting = [], 0
        self._encode_batch(pieces, lengths, ids)
        counts = np.zeros(len(texts), dtype=np.int64)
        inside = np.zeros(int(present.sum()), dtype=np.int64)
        np.add.at(inside, np.array(owners, dtype=np.int64), np.concatenate(lengths))
        counts[present] = inside + len(self._bos) + len(self._eos)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        flat = np.empty(offsets[-1], dtype=np.uint32)
        starts, ends = offsets[:-1][present], offsets[1:][present]
        framing = np.zeros(len(flat), dtype=bool)
        for at, token in [(starts, t) for t in self._bos] + [(ends - 1, t) for t in self._eos]:
            flat[at] = token
            framing[at] = True
        flat[~framing] = np.concatenate(ids)
        self.tokens += len(flat)
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(flat), mask=pa.array(~present), type=TOKENS_TYPE
        )

    def _encode_batch(
        self, pieces: list[str], lengths: list[np.ndarray], ids: list[np.ndarray]
    ) -> None:
        encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        sizes = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        tokens = chain.from_iterable(encoding.ids for encoding in encodings)
        ids.append(np.fromiter(tokens, dtype=np.uint32, count=int(sizes.sum())))
        lengths.append(sizes)


def pieces_of(text: str) -> list[str]:
    """`text`, or pieces of about 256 Ki characters that join to it, cut at word boundaries."""
    if len(text) <= 2 * PIECE_CHARACTERS:
        return [text]
    pieces = []
    start = 0
    while len(text) - start > 2 * PIECE_CHARACTERS:
        target = start + PIECE_CHARACTERS
        found = _BOUNDARY.search(text, target, target + _BOUNDARY_SEARCH)
        end = found.start() if found else target
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]
