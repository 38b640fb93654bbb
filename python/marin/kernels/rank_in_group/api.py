"""`rank_in_group`; integers in and out, so there is no gradient."""

from jaxtyping import Array, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.rank_in_group import reference


def rank_in_group(
    groups: Int[Array, " A"], num_groups: int, backend: Backend | None = None
) -> tuple[Int[Array, " A"], Int[Array, " G"]]:
    """How many earlier assignments have the same group, and the size of each group.

    Both int32. A group outside [0, num_groups) is no group: rank -1, counted nowhere.
    """
    chosen = choose("rank_in_group", backend)
    if chosen == "reference" or groups.size == 0 or num_groups == 0:
        return reference.rank_in_group(groups, num_groups)
    from marin.kernels.rank_in_group import pallas_gpu

    return pallas_gpu.rank_in_group(groups, num_groups, interpret=chosen == "interpret")
