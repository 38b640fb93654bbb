"""Texts to token ids in batches, long texts in pieces; nothing but ids leaves the library."""

import re
from array import array
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
from tokenizers import Encoding, Tokenizer

from marin.datakit.parts import map_ahead

TOKENS_TYPE = pa.large_list(pa.field("item", pa.uint32(), nullable=False))
# Text given to the library at once: its encodings take some hundred bytes per token.
BATCH_CHARACTERS = 3 << 18
PIECE_CHARACTERS = 256 << 10
# Between a letter or digit and a space or line feed with a letter after it: there, the
# pre-tokenizers of byte-level BPE split anyway, so pieces give the tokens of the whole.
_BOUNDARY = re.compile(r"(?<=[^\W_])(?=[ \n][^\W\d_])")
_LEFT = ("the river", "x12", "It's é", "你好")
_RIGHT = (" mill", "\nmill", " É's", " 你 a")


class Encoder:
    """Encodes columns of texts with `bos` before and `eos` after each (None: nothing)."""

    def __init__(self, tokenizer: Tokenizer, bos: int | None, eos: int | None) -> None:
        self._tokenizer = tokenizer
        self._cuts = may_cut(tokenizer)
        self._bos = [] if bos is None else [bos]
        self._eos = [] if eos is None else [eos]

    def encode(self, texts: pa.Array) -> pa.Array:
        """`large_list<uint32>` of the texts' tokens, null for null."""
        present = texts.is_valid().to_numpy(zero_copy_only=False)
        whole = texts.drop_null().to_pylist()
        pieces = [pieces_of(text) if self._cuts else [text] for text in whole]
        owners = np.repeat(np.arange(len(pieces)), np.fromiter(map(len, pieces), np.int64))
        lengths, ids = self._encode_pieces(list(chain.from_iterable(pieces)))
        counts = np.zeros(len(texts), dtype=np.int64)
        inside = np.zeros(len(pieces), dtype=np.int64)
        np.add.at(inside, owners, lengths)
        counts[present] = inside + len(self._bos) + len(self._eos)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        flat = np.empty(offsets[-1], dtype=np.uint32)
        starts, ends = offsets[:-1][present], offsets[1:][present]
        framing = np.zeros(len(flat), dtype=bool)
        for at, token in [(starts, t) for t in self._bos] + [(ends - 1, t) for t in self._eos]:
            flat[at] = token
            framing[at] = True
        flat[~framing] = ids
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(flat), mask=pa.array(~present), type=TOKENS_TYPE
        )

    def _encode_pieces(self, pieces: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens per piece and all tokens; a batch is converted while the next one is encoded."""
        lengths: list[int] = []
        ids = array("I")
        for encodings in map_ahead(self._encode, _batches(pieces), at_once=1):
            for encoding in encodings:
                tokens = encoding.ids
                lengths.append(len(tokens))
                # The fastest way from a list of int to a buffer of uint32.
                ids.fromlist(tokens)
        return np.array(lengths, dtype=np.int64), np.frombuffer(ids, dtype=np.uint32)

    def _encode(self, batch: list[str]) -> list[Encoding]:
        return self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)


def _batches(pieces: list[str]) -> Iterator[list[str]]:
    start = size = 0
    for index, piece in enumerate(pieces):
        size += len(piece)
        if size >= BATCH_CHARACTERS or index == len(pieces) - 1:
            yield pieces[start : index + 1]
            start, size = index + 1, 0


def may_cut(tokenizer: Tokenizer) -> bool:
    """Whether the pieces of a text give the tokens of the whole, as far as probes tell.

    They do if normalizer and pre-tokenizer treat both sides of a boundary as they treat the whole.
    Those that put something before a text (the prefix of SentencePiece) do not; without a
    pre-tokenizer, tokens may reach over any boundary.
    """
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    if pre_tokenizer is None:
        return False
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or _BOUNDARY.search(token.content):
            return False

    def words(text: str) -> list[str]:
        normal = text if normalizer is None else normalizer.normalize_str(text)
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    return all(words(a + b) == words(a) + words(b) for a in _LEFT for b in _RIGHT)


def pieces_of(text: str) -> list[str]:
    """`text`, or pieces that join to it, cut at the first boundary after 256 Ki characters, or
    anywhere where there is none in as many more."""
    if len(text) <= 2 * PIECE_CHARACTERS:
        return [text]
    pieces = []
    start = 0
    while len(text) - start > 2 * PIECE_CHARACTERS:
        target = start + PIECE_CHARACTERS
        found = _BOUNDARY.search(text, target, target + PIECE_CHARACTERS)
        end = found.start() if found else target
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]
