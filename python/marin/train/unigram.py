"""The loss of the best unigram model: what a model must beat to have learned any context."""

from collections.abc import Callable

import numpy as np

from marin.errors import MarinError
from marin.stream import Batch as HostBatch
from marin.train.curriculum import Curriculum

# An entropy of N tokens out of V falls short by about V / 2N: 0.002 nats for V = 128,256.
_ENOUGH_TOKENS = 1 << 25
_FEWEST_BATCHES = 8  # where one alone has enough tokens, for the phases of the mixture


def unigram_loss(read: Callable[[int], HostBatch], curriculum: Curriculum, vocab: int) -> float:
    """Entropy in nats of the tokens that a run predicts: the loss of the best unigram model.

    Exact for runs of up to 2^25 tokens, else of about as many in evenly spaced batches, 8 at least.
    A start does not wait long: of the largest preset it reads 0.4 G tokens.

    Raises:
      MarinError: a token is not below `vocab`.
    """
    counts = np.zeros(vocab, np.int64)
    steps = curriculum.steps
    batches = min(steps, max(_FEWEST_BATCHES, steps * _ENOUGH_TOKENS // curriculum.tokens))
    for step in np.linspace(0, steps - 1, batches).astype(np.int64):
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
