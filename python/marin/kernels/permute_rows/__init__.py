"""Gather rows into a padded buffer."""

from marin.kernels.permute_rows.api import invert_slots, permute_rows

__all__ = ["invert_slots", "permute_rows"]
