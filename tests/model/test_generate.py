from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.hero import LENGTH, packed

from marin.compat import QUICK_COMPILE
from marin.errors import MarinError
from marin.model.generate import empty_cache, extend, generate


@pytest.fixture(scope="module")
def model(one_device: Any, random_bias: Any) -> Any:
    return one_device.merge(one_device.params, random_bias)


def test_a_cache_extended_in_pieces_gives_the_logits_of_the_whole(
    one_device: Any, random_bias: Any, model: Any
) -> None:
    whole = one_device.place(packed([[20]] * 8, LENGTH, one_device.config.vocab))
    expected = one_device.logits(one_device.params, random_bias, whole)[:2, :20]
    graph, state = nnx.split(model)
    run = jax.jit(
        lambda state, cache, tokens: extend(
            nnx.merge(graph, state), cache, tokens, mesh=one_device.mesh
        ),
        compiler_options=QUICK_COMPILE,
    )
    cache = empty_cache(one_device.config, 2, 24)
    pieces = []
    for start, end in ((0, 13), (13, 14), (14, 15), (15, 16)):
        logits, cache = run(state, cache, whole.tokens[:2, start:end])
        pieces.append(logits)
    got = jnp.concatenate(pieces, axis=1)
    np.testing.assert_allclose(got, expected[:, :16], atol=2e-5)


def test_greedy_tokens_are_the_likeliest_and_sampling_follows_seed_and_top_k(
    one_device: Any, random_bias: Any, model: Any
) -> None:
    prompt = jnp.asarray(packed([[7]], 7, one_device.config.vocab).tokens)
    cache = empty_cache(one_device.config, 1, 8)
    every, _ = extend(model, cache, prompt, mesh=one_device.mesh)
    last, _ = extend(model, cache, prompt, mesh=one_device.mesh, last=True)
    np.testing.assert_allclose(last, every[:, -1:], atol=1e-6)
    greedy = generate(model, prompt, count=5, mesh=one_device.mesh)
    rows = np.zeros((8, LENGTH), np.int32)
    rows[0, :12] = np.concatenate([prompt[0], greedy[0]])
    batch = one_device.place(packed([[12]] * 8, LENGTH, 1)._replace(tokens=rows))
    logits = one_device.logits(one_device.params, random_bias, batch)[0]
    np.testing.assert_array_equal(greedy[0], logits.argmax(-1)[6:11])
    one = generate(model, prompt, count=5, mesh=one_device.mesh, temperature=2.0, top_k=1)
    np.testing.assert_array_equal(one, greedy)


def test_a_value_out_of_range_is_named(one_device: Any, model: Any) -> None:
    for wrong, named in (({"count": 0}, "count"), ({"count": 1, "temperature": -1.0}, "temper")):
        with pytest.raises(MarinError, match=named):
            generate(model, jnp.zeros((1, 3), jnp.int32), mesh=one_device.mesh, **wrong)
    with pytest.raises(MarinError, match="prompt"):
        generate(model, jnp.zeros((1, 0), jnp.int32), count=1, mesh=one_device.mesh)
