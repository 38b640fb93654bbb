"""Stands in for jaxtyping on a machine that lacks it: its annotations, without their meaning."""

from typing import Any


class _Annotation:
    def __class_getitem__(cls, item: Any) -> Any:
        return Any


Array = Any
Bool = Float = Int = Shaped = UInt32 = _Annotation
