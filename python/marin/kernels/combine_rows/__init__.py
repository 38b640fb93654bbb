"""Weighted gather-sum of buffer rows back into tokens."""

from marin.kernels.combine_rows.api import combine_rows

__all__ = ["combine_rows"]
