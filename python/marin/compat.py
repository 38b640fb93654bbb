"""The one place for differences between JAX 0.10, 0.11 and 0.12."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

_GPU = "NVIDIA H200"

QUICK_COMPILE: dict[str, bool | int | str] = {"xla_backend_optimization_level": 0}
"""Options under which small programs compile soonest on a CPU. Fusion emitters take more than half
of that time; from JAX 0.11 on they cannot be turned off."""
if jax.__version_info__ < (0, 11):
    QUICK_COMPILE["xla_cpu_use_fusion_emitters"] = False


def lowered_for_cuda(function: Callable[..., Any], *arguments: Any) -> str:
    """The program (StableHLO) of `function` for one GPU that need not be there.

    JAX 0.10 needs no more than the platform's name; from 0.11 on Pallas asks which GPU is meant and
    finds it in the mesh of the context.
    """
    device = AbstractDevice(_GPU, None, "cuda")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    with use_abstract_mesh(mesh):
        traced = jax.jit(function).trace(*arguments)
        program: str = traced.lower(lowering_platforms=("cuda",)).as_text()
    return program
