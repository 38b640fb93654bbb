"""Marin: from raw documents to a trained mixture-of-experts model.

The parts are packages of their own, in the order in which data flows through them: `datakit`,
`mixture`, `packing`, `stream`, `model` with `dispatch` and `kernels`, `train`, `ladder`. Each knows
only the file formats of the parts before it; importing `marin` imports none of them.
"""

from marin.errors import MarinError

__all__ = ["MarinError", "__version__"]


def __getattr__(name: str) -> str:
    # Late, so that model, dispatch and kernels run on an accelerator machine without the native
    # module.
    if name == "__version__":
        from marin._native import __version__

        return __version__
    raise AttributeError(f"module 'marin' has no attribute {name!r}")
