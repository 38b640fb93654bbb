"""What the compiler makes of the model: memory, compile time over depth, collectives."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from marin.errors import MarinError
from marin.model import Batch, Hero, HeroConfig, abstract, make_mesh
from marin.model.attend import choose
from marin.model.cross_entropy import cross_entropy

VOCAB, HIDDEN, TOKENS = 128_256, 64, 2048
FAST = {"xla_backend_optimization_level": 0}


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
        both = jax.jit(jax.value_and_grad(loss, (0, 1)), compiler_options=FAST)
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

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST).lower(
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


def test_no_device_gathers_scores_or_rows_of_others(
    one_device: Any, compiled: Any, tiny: HeroConfig, batch: Batch
) -> None:
    many = compiled(tiny, make_mesh(expert=4), one_device.params)
    text = many.loss_and_grad.lower(many.params, many.bias, batch).compile().as_text()
    gathered = re.findall(r"= (\S+)\[([\d,]*)\]\S* all-gather", text)
    rows, length = batch.tokens.shape
    for dtype, shape in gathered:
        sizes = [int(n) for n in shape.split(",")]
        # Token numbers may travel (the embedding's gradient is cut by width), activations may not.
        assert np.prod(sizes) <= rows * length or (rows not in sizes[:1]), (dtype, shape)


def test_a_backend_that_cannot_honour_documents_is_refused() -> None:
    with pytest.raises(MarinError, match=r"cudnn.*needs a GPU"):
        choose("cudnn", 4096, 128, jnp.dtype(jnp.bfloat16))
    assert choose("auto", 4096, 128, jnp.dtype(jnp.bfloat16)) == "reference"


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "cases" / "model" / "process.py"
    port = 20_000 + os.getpid() % 20_000

    def start(process: int, processes: int) -> subprocess.Popen[str]:
        devices = 4 // processes
        env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        command = [sys.executable, str(script), str(process), str(processes), str(port)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)

    runs = [start(0, 2), start(1, 2), start(0, 1)]
    answers = []
    for run in runs:
        out, _ = run.communicate(timeout=280)
        assert run.returncode == 0
        answers.append(json.loads(out.splitlines()[-1]))
    first, second, alone = answers
    assert first == second
    assert first["devices"] == alone["devices"] == 4
    np.testing.assert_allclose(first["loss"], alone["loss"], rtol=1e-5)
    for path, norm in alone["norms"].items():
        np.testing.assert_allclose(first["norms"][path], norm, rtol=1e-5, err_msg=path)
