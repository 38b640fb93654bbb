"""Routings to simulate with: a stated model of documents, or tokens of real documents.

A simulated group of n devices holds a stream of rows, each one document, contiguous over devices as
in training: with rows longer than a device's tokens a row spans several devices. A row is
represented by a sample of its tokens, so a simulation may use fewer tokens per device than the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marin.errors import MarinError

COMBINE_SUM = 2.5
"""What the combine weights of one token sum to in the model of the run."""


class Group(NamedTuple):
    """The routing of one expert-parallel group: experts [n, T, K] int32, weights [n, T, K]."""

    experts: NDArray[np.int32]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class DocumentModel:
    """Synthetic routing in which the tokens of a document like the same experts.

    Document d prefers expert e by a logit N(0, spread^2); a token's scores are its document's
    logits plus independent standard Gumbel noise, and it takes the `top_k` highest: choices without
    replacement from softmax(logits). Over all documents experts are equally popular, so a balancing
    bias would be zero. Combine weights are the sigmoids of the chosen scores about their mean,
    scaled to sum to `COMBINE_SUM`. With the default spread, a cell of one sender and one expert at
    capacity 1.15 drops 10 % with 16 documents per device and 40 % with one; an earlier large run is
    said to have dropped about 7 % in rows of 4K and 40 % in rows of 65K.
    """

    experts: int = 384
    top_k: int = 8
    spread: float = 1.17

    def tokens(
        self, rows: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Experts and weights [len(rows), K] of one token per entry; `rows` ascends from 0."""
        shape = (int(rows[-1]) + 1, self.experts)
        logits = rng.normal(0, self.spread, shape).astype(np.float32)
        chosen = np.empty((len(rows), self.top_k), np.int32)
        weights = np.empty((len(rows), self.top_k), np.float32)
        for start in range(0, len(rows), 8192):
            part = slice(start, start + 8192)
            scores = logits[rows[part]]
            noise = rng.standard_exponential(scores.shape, np.float32)
            scores -= np.log(np.maximum(noise, np.finfo(np.float32).tiny))
            best = np.argpartition(scores, -self.top_k, axis=1)[:, -self.top_k :]
            top = np.take_along_axis(scores, best, axis=1)
            gate = 1 / (1 + np.exp(top.mean(axis=1, keepdims=True) - top))
            chosen[part] = best
            weights[part] = COMBINE_SUM * gate / gate.sum(axis=1, keepdims=True)
        return chosen, weights


@dataclass(frozen=True)
class RealDocuments:
    """Routing of real tokens: each row is a document drawn in proportion to its length, each token
    of it drawn from that document's tokens with replacement.

    `chosen`, `weights` [tokens, K] sorted by document; `starts` [documents + 1].
    """

    experts: int
    chosen: NDArray[np.int32]
    weights: NDArray[np.float32]
    starts: NDArray[np.int64]

    @property
    def top_k(self) -> int:
        return int(self.chosen.shape[1])

    def tokens(
        self, rows: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        lengths = np.diff(self.starts)
        share = lengths / lengths.sum()
        document = rng.choice(len(lengths), size=int(rows[-1]) + 1, p=share)[rows]
        token = self.starts[document] + (rng.random(len(rows)) * lengths[document]).astype(np.int64)
        return self.chosen[token], self.weights[token]


def read_routing(path: Path) -> RealDocuments:
    """Reads a `.npz` with `experts` [tokens, K], `weights` [tokens, K], `documents` [tokens] and
    the scalar `num_experts`.

    Raises MarinError if it cannot be read or the arrays do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found: dict[str, NDArray[Any]] = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise MarinError(f"{path}: cannot be read as .npz arrays ({error})") from error
    missing = {"experts", "weights", "documents", "num_experts"} - found.keys()
    if missing:
        raise MarinError(f"{path}: has no array {', '.join(sorted(missing))}")
    chosen, weights, documents = found["experts"], found["weights"], found["documents"]
    num_experts = int(found["num_experts"])
    if chosen.ndim != 2 or weights.shape != chosen.shape or documents.shape != chosen.shape[:1]:
        raise MarinError(
            f"{path}: experts {chosen.shape}, weights {weights.shape}, documents "
            f"{documents.shape}; expected (tokens, K), (tokens, K), (tokens,)"
        )
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= num_experts:
        raise MarinError(f"{path}: experts must be in [0, {num_experts}) and not empty")
    return by_document(chosen, weights, documents, num_experts)


def by_document(
    chosen: NDArray[Any], weights: NDArray[Any], documents: NDArray[Any], num_experts: int
) -> RealDocuments:
    """Sorts tokens by the document that each of them belongs to; at least one token."""
    order = np.argsort(documents, kind="stable")
    first = np.flatnonzero(np.diff(documents[order], prepend=documents[order[0]] - 1))
    starts = np.append(first, len(order)).astype(np.int64)
    return RealDocuments(
        num_experts, chosen[order].astype(np.int32), weights[order].astype(np.float32), starts
    )


def simulate_group(
    source: DocumentModel | RealDocuments,
    *,
    seq_len: int,
    devices: int,
    tokens_per_device: int,
    sampled: int,
    seed: int,
) -> Group:
    """The routing of one group for rows of `seq_len`, with `sampled` tokens per device standing for
    `tokens_per_device`."""
    position = np.arange(devices * sampled, dtype=np.int64) * tokens_per_device // sampled
    rng = np.random.default_rng([seed, seq_len])
    chosen, weights = source.tokens(position // seq_len, rng)
    shape = (devices, sampled, source.top_k)
    return Group(chosen.reshape(shape), weights.reshape(shape))
