"""The meaning of `permute_rows`."""

from jaxtyping import Array, Float, Int


def permute_rows(x: Float[Array, "T w"], sources: Int[Array, " R"]) -> Float[Array, "R w"]:
    """Row `r` is `x[sources[r]]`, or zero where `sources[r]` is -1."""
    rows: Array = x.at[sources].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return rows
