"""SwiGLU of every expert on its own rows."""

from marin.kernels.grouped_swiglu.api import grouped_swiglu
from marin.kernels.grouped_swiglu.layout import BlockLayout, block_layout

__all__ = ["BlockLayout", "block_layout", "grouped_swiglu"]
