"""Embedding models: texts to unit vectors. Heavy libraries are imported when a model is used.

`lexical` needs nothing; `harrier` is the open model Harrier 0.6B (a Qwen3 decoder: the hidden state
of the last token, scaled to unit length; documents take no instruction); any other name is a
sentence-transformers model, on disk or on the hub.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from marin._native import lexical_embedding
from marin.errors import MarinError

LEXICAL = "lexical"
HARRIER = "microsoft/harrier-oss-v1-0.6b"
_HARRIER_PREFIX = "harrier"
_MISSING = "{} is missing; pip install '.[embed]' in the repository"


class Embedder(Protocol):
    """`embed` gives int8 vectors [n, dimensions] and float32 scales [n]; value = int8 * scale. A
    text that is null or has no token has the zero vector and scale 0."""

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]: ...


@lru_cache(maxsize=1)
def open_embedder(model: str, dimensions: int, max_tokens: int, batch_tokens: int) -> Embedder:
    """`lexical`, `harrier`, `harrier:FOLDER` (a copy on disk), or a sentence-transformers name.

    Raises:
      MarinError: a library or the model is missing.
    """
    if model == LEXICAL:
        return Lexical(dimensions)
    if model == _HARRIER_PREFIX or model.startswith(f"{_HARRIER_PREFIX}:"):
        _, _, folder = model.partition(":")
        return LastToken(folder or HARRIER, max_tokens, batch_tokens)
    return SentenceModel(model, max_tokens, batch_tokens)


class Lexical:
    """Hashed word n-grams (see the Rust module `lexical`)."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def embed(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        found = pa.record_batch(lexical_embedding(texts, self.dimensions, 0))
        values = found["embedding"].flatten().to_numpy().reshape(-1, self.dimensions)
        return values, found["scale"].to_numpy()


class LastToken:
    """A decoder by transformers: the last token's hidden state, unit length.

    Texts are cut at `max_tokens` and batched by length, at most `batch_tokens` with padding at
    once. Padding stands on the left, so the last position is a text's last token.
    """

    def __init__(self, name: str, max_tokens: int, batch_tokens: int) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise MarinError(_MISSING.format(error.name)) from None
        self._torch: Any = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        kind = torch.bfloat16 if self._device == "cuda" else torch.float32
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
            self._model = AutoModel.from_pretrained(name, dtype=kind).to(self._device).eval()
        except (OSError, ValueError) as error:
            raise MarinError(f"embedding model {name}: {_first_line(error)}") from None
        self._max_tokens = max_tokens
        self._batch_tokens = batch_tokens
        self.dimensions = int(self._model.config.hidden_size)

    def embed(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        encoded = self._tokenizer(
            [text or "" for text in texts.to_pylist()],
            truncation=True,
            max_length=self._max_tokens,
        )["input_ids"]
        present = np.flatnonzero([len(ids) for ids in encoded])
        encoded = [encoded[row] for row in present]
        for rows in token_batches([len(ids) for ids in encoded], self._batch_tokens):
            padded = self._tokenizer.pad(
                {"input_ids": [encoded[row] for row in rows]}, return_tensors="pt"
            ).to(self._device)
            with self._torch.inference_mode():
                last = self._model(**padded).last_hidden_state[:, -1]
            vectors[present[rows]] = last.float().cpu().numpy()
        return quantize(vectors)


class SentenceModel:
    """A sentence-transformers model with its own pooling."""

    def __init__(self, name: str, max_tokens: int, batch_tokens: int) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MarinError(_MISSING.format(error.name)) from None
        try:
            self._model = SentenceTransformer(name)
        except (OSError, ValueError) as error:
            raise MarinError(f"embedding model {name}: {_first_line(error)}") from None
        limit = self._model.max_seq_length or max_tokens
        self._model.max_seq_length = min(limit, max_tokens)
        self._batch = max(1, batch_tokens // self._model.max_seq_length)
        self.dimensions = int(self._model.get_sentence_embedding_dimension())

    def embed(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        present = texts.is_valid().to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        if present.any():
            vectors[present] = self._model.encode(
                texts.drop_null().to_pylist(), batch_size=self._batch, show_progress_bar=False
            )
        return quantize(vectors)


def token_batches(lengths: Sequence[int], batch_tokens: int) -> list[np.ndarray]:
    """Rows grouped by length, longest first, so that rows times the longest stay within
    `batch_tokens`; a longer text is a batch of its own."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches, start = [], 0
    while start < len(order):
        count = max(1, batch_tokens // max(1, lengths[order[start]]))
        batches.append(order[start : start + count])
        start += count
    return batches


def quantize(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit-length int8 vectors and their scales, as `Embedder` gives them; zero stays zero."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    largest = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float64)
    safe = np.where(largest > 0, largest, 1.0)
    values = np.rint(vectors / safe[:, None] * 127).astype(np.int8)
    scales = np.where(norms > 0, largest / np.where(norms > 0, norms, 1.0) / 127, 0.0)
    return values, scales.astype(np.float32)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
