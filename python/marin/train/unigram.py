"""The loss of the best unigram model: what a model must beat to have learned any context."""

from collections.abc import Callable

import numpy as np

from marin.errors import MarinError
from marin.stream import Batch as HostBatch

_MAX_BATCHES = 1_000  # a sample of evenly spaced batches is enough: tokens by the million


def unigram_loss(read: Callable[[int], HostBatch], steps: int, vocab: int) -> float:
    """Entropy in nats of the tokens that a run predicts: the loss of the best unigram model.

    Exact for up to 1,000 steps, else over 1,000 evenly spaced ones.

    Raises:
      MarinError: a token is not below `vocab`.
    """
    counts = np.zeros(vocab, np.int64)
    for step in np.unique(np.linspace(0, steps - 1, min(steps, _MAX_BATCHES)).astype(np.int64)):
        batch = read(int(step))
        targets = batch.tokens[:, 1:][batch.loss_mask[:, :-1]]
        if targets.max(initial=0) >= vocab:
            raise MarinError(
                f"model.vocab = {vocab}: batch {step} holds token {targets.max()}; set model.vocab "
                "to the size of the tokenizer that made the shards, or more"
            )
        counts += np.bincount(targets, minlength=vocab)
    return entropy(counts)


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution that non-negative counts describe; 0 without any."""
    present = counts[counts > 0].astype(np.float64)
    total = present.sum()
    return float(np.log(total) - np.sum(present * np.log(present)) / total) if len(present) else 0.0
