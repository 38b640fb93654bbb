"""Which metric a ladder compares, of all that its rungs logged."""

from collections.abc import Collection, Mapping

from marin.errors import MarinError

# What is compared unless asked, first to last: the mean over domains says more than the mean over
# tokens, and without drops more than with the transport that trained.
PREFERRED = (
    "eval/dropless/loss_macro", "dropless_paloma_macro_loss", "eval/loss_macro",
    "paloma_macro_loss", "eval/dropless/loss_micro", "eval/loss_micro",
)  # fmt: skip
_TRAINING = "loss"
_HELD_OUT = ("eval", "valid", "paloma", "held")
_ONE_DOMAIN = "/loss/"


def choose_metric(logged: Mapping[str, Collection[str]], metric: str | None, source: str) -> str:
    """The wanted metric, or the best one that every rung logged.

    Args:
      logged: rung -> the names of its metrics.

    Raises:
      MarinError: a rung lacks the wanted metric, or there is none that all have.
    """
    common = set.intersection(*(set(names) for names in logged.values()))
    if metric is None:
        if not common:
            listed = "; ".join(f"{rung}: {', '.join(names)}" for rung, names in logged.items())
            raise MarinError(f"{source}: no metric is in every rung ({listed})")
        return min(common, key=lambda name: (_rank(name), name))
    missing = [rung for rung, names in logged.items() if metric not in names]
    if missing:
        have = ", ".join(sorted(common)) or "none"
        raise MarinError(
            f"{source}: metric {metric} is missing in {', '.join(missing)}; metrics of all rungs: "
            f"{have}"
        )
    return metric


def _rank(name: str) -> int:
    """The place in `PREFERRED`; then other held-out losses, the training loss, other losses, losses
    of one domain, anything else."""
    if name in PREFERRED:
        return PREFERRED.index(name)
    if name == _TRAINING:
        place = 1
    elif _ONE_DOMAIN in name:
        place = 3
    elif "loss" not in name:
        place = 4
    else:
        place = 0 if any(word in name for word in _HELD_OUT) else 2
    return len(PREFERRED) + place
