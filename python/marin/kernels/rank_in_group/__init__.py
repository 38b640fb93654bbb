"""Position of each assignment within its group."""

from marin.kernels.rank_in_group.api import rank_in_group

__all__ = ["rank_in_group"]
