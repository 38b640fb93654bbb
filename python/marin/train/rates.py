"""Compute-scaled learning rates: one formula for every rung of the ladder and the big run."""

from dataclasses import dataclass

BETA1 = 0.9
MUON_MOMENTUM = 0.95
MUONH_OVER_ADAM = 13 / 3
WARMUP_FRACTION = 0.01
FLOOR_FRACTION = 0.05

_REFERENCE_BATCH = 131_072  # tokens per batch at which beta2 is 0.999
_BETA2_RANGE = (0.95, 0.9999)


@dataclass(frozen=True)
class Rates:
    """Peak rates and Adam constants of one run at one batch size.

    `muonh` is the relative length of a step of the norm-keeping groups (MuonH, AdamH), `adam` the
    step of the others.
    """

    muonh: float
    adam: float
    beta2: float
    eps: float


def compute_scaled_rates(tokens: int, hidden: int, batch_tokens: int) -> Rates:
    """Rates for a run of `tokens` at width `hidden` and `batch_tokens` per step.

    `adam = 0.087571 T^-0.3461 d^-0.3448 sqrt(B)`, `muonh = 13/3 adam`,
    `beta2 = clip(0.999^(B/131072), 0.95, 0.9999)`, `eps = 9.676e-18 sqrt(T/B)`: the published
    scaling of the Marin 535B-A23B ladder.
    """
    adam = 0.087571 * tokens**-0.3461 * hidden**-0.3448 * batch_tokens**0.5
    low, high = _BETA2_RANGE
    return Rates(
        muonh=MUONH_OVER_ADAM * adam,
        adam=adam,
        beta2=min(max(0.999 ** (batch_tokens / _REFERENCE_BATCH), low), high),
        eps=9.676e-18 * (tokens / batch_tokens) ** 0.5,
    )
