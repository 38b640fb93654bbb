"""What the compiler makes of the model: memory, compile time over depth, collectives."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support.compilation import quick_flags
from support.hero import assert_same_gradients, by_path

from marin.compat import QUICK_COMPILE
from marin.model import Batch, Hero, HeroConfig, abstract, make_mesh
from marin.model.cross_entropy import cross_entropy

VOCAB, HIDDEN, TOKENS = 128_256, 64, 2048


def test_cross_entropy_needs_under_a_fifth_of_the_plain_versions_memory() -> None:
    def plain(hidden: Any, readout: Any, targets: Any) -> Any:
        logits = hidden @ readout.T
        return jnp.mean(
            jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
        )

    def blockwise(hidden: Any, readout: Any, targets: Any) -> Any:
        return jnp.mean(cross_entropy(hidden, readout, targets, 8192)[0])

    shapes = (
        jax.ShapeDtypeStruct((TOKENS, HIDDEN), jnp.float32),
        jax.ShapeDtypeStruct((VOCAB, HIDDEN), jnp.float32),
        jax.ShapeDtypeStruct((TOKENS,), jnp.int32),
    )
    peak = {}
    for loss in (plain, blockwise):
        both = jax.jit(jax.value_and_grad(loss, (0, 1)), compiler_options=QUICK_COMPILE)
        memory = both.lower(*shapes).compile().memory_analysis()
        peak[loss] = memory.temp_size_in_bytes
    assert peak[plain] > 4 * TOKENS * VOCAB
    assert peak[blockwise] < peak[plain] / 5


def lowered(config: HeroConfig) -> Any:
    graph, params, state = nnx.split(abstract(config), nnx.Param, ...)
    integers: Any = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    batch = Batch(integers, integers, integers, jax.ShapeDtypeStruct((2, 16), jnp.bool_))

    def loss(params: Any, state: Any, batch: Any) -> Any:
        model: Hero = nnx.merge(graph, params, state)
        return model.loss(batch, mesh=make_mesh())

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK_COMPILE).lower(
        params, state, batch
    )


def test_depth_costs_no_compile_time(tiny: HeroConfig) -> None:
    seconds, size = {}, {}
    for layers in (4, 48):
        program = lowered(dataclasses.replace(tiny, layers=layers))
        size[layers] = len(program.as_text().splitlines())
        start = time.process_time()
        program.compile()
        seconds[layers] = time.process_time() - start
    assert size[48] <= 1.02 * size[4]
    assert seconds[48] < 1.5 * seconds[4]


def test_two_processes_agree_with_one_device(result: Any, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "cases" / "model" / "process.py"
    port = 20_000 + os.getpid() % 20_000
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "XLA_FLAGS": " ".join(["--xla_force_host_platform_device_count=2", *quick_flags()]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    files = [tmp_path / f"{process}.npz" for process in range(2)]
    runs = [
        subprocess.Popen(
            [sys.executable, str(script), str(process), "2", str(port), str(file)], env=env
        )
        for process, file in enumerate(files)
    ]
    assert [run.wait(timeout=280) for run in runs] == [0, 0]
    (loss, _), gradients = result
    for file in files:
        answer = dict(np.load(file))
        assert answer.pop("devices") == 4
        np.testing.assert_allclose(answer.pop("loss"), loss, rtol=1e-5)
        assert_same_gradients(answer, by_path(gradients), 1e-5)
