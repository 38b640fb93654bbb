"""Attention backends: each sees its own document alone, and one that cannot is refused."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.hero import packed

from marin.compat import QUICK_COMPILE, lowered_for_cuda
from marin.errors import MarinError
from marin.model.attend import attend, choose, fused

ROWS = packed([[20, 12], [5, 9, 3], [32]], 32, 50)
BFLOAT16 = jnp.dtype(jnp.bfloat16)
Attention = Callable[..., Any]


def in_blocks(q: Any, k: Any, v: Any, segments: Any, window: int | None) -> Any:
    return attend(q, k, v, segments, window=window, backend="reference")


def through_jax(q: Any, k: Any, v: Any, segments: Any, window: int | None) -> Any:
    return fused(q * q.shape[-1] ** -0.5, k, v, segments, window, "xla")


def run(attention: Attention, window: int | None) -> Callable[..., Any]:
    """Output and gradients of a loss over the output of rows' valid positions."""

    def both(arrays: Any, weights: Any) -> Any:
        out, back = jax.vjp(lambda a: attention(*a, ROWS.segment_ids, window), arrays)
        return out, back(weights)[0]

    return jax.jit(both, compiler_options=QUICK_COMPILE)


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = ((3, 32, 4, 16), (3, 32, 2, 16), (3, 32, 2, 16))
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def weights_where(mask: np.ndarray) -> Any:
    rng = np.random.default_rng(1)
    return np.where(mask[..., None, None], rng.standard_normal((3, 32, 4, 16)), 0).astype(
        np.float32
    )


@pytest.mark.parametrize("window", [None, 6])
def test_the_arguments_that_cudnn_gets_mean_the_reference(arrays: Any, window: int | None) -> None:
    valid = ROWS.segment_ids > 0
    ours = run(through_jax, window)(arrays, weights_where(valid))
    theirs = run(in_blocks, window)(arrays, weights_where(valid))
    np.testing.assert_allclose(ours[0][valid], theirs[0][valid], atol=1e-5)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("attention", [in_blocks, through_jax])
def test_no_document_reaches_another_in_value_or_gradient(
    attention: Attention, window: int | None, arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin.model.attend.QUERY_BLOCK", 12)
    changed = ROWS.segment_ids == 2
    others = (ROWS.segment_ids > 0) & ~changed
    program = run(attention, window)
    moved = tuple(np.where(changed[..., None, None], a + 3, a) for a in arrays)
    before, after = (program(a, weights_where(others)) for a in (arrays, moved))
    np.testing.assert_array_equal(before[0][others], after[0][others])
    assert np.abs(before[0] - after[0])[changed].max() > 0.1
    for a, b in zip(before[1], after[1], strict=True):
        np.testing.assert_array_equal(a[others], b[others])
        assert not np.asarray(b)[changed].any()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.mark.parametrize(
    ("length", "head_dim", "dtype", "obstacle"),
    [
        (4096, 128, jnp.float32, "needs bfloat16"),
        (4096, 256, jnp.bfloat16, "up to 128, found 256"),
        (4097, 128, jnp.bfloat16, "even length, found 4097"),
        (65536, 128, jnp.bfloat16, "rows over 8192"),
    ],
)
def test_cudnn_is_refused_where_it_cannot_honour_everything_and_auto_says_why(
    as_on_a_gpu: None, length: int, head_dim: int, dtype: Any, obstacle: str, caplog: Any
) -> None:
    with pytest.raises(MarinError, match=f"attention = 'cudnn': .*{obstacle}"):
        choose("cudnn", length, head_dim, jnp.dtype(dtype))
    with caplog.at_level(logging.INFO, "marin.model.attend"):
        assert choose("auto", length, head_dim, jnp.dtype(dtype)) == "reference"
    assert f"attention of length {length}: reference (cuDNN: " in caplog.text


def test_the_choice_is_by_device_and_logged(as_on_a_gpu: None, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "marin.model.attend"):
        assert choose("auto", 4096, 128, BFLOAT16) == "cudnn"
    assert "attention of length 4096: cudnn" in caplog.text
    assert choose("reference", 4096, 128, BFLOAT16) == "reference"


def test_on_a_cpu_the_reference_runs_and_cudnn_is_refused() -> None:
    choose.cache_clear()
    with pytest.raises(MarinError, match=r"cudnn.*needs a GPU"):
        choose("cudnn", 4096, 128, BFLOAT16)
    assert choose("auto", 4096, 128, BFLOAT16) == "reference"


@pytest.mark.parametrize("window", [None, 2048])
def test_both_passes_lower_to_the_fused_kernels_with_documents_and_window(
    as_on_a_gpu: None, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "jax._src.cudnn.fused_attention_stablehlo"
    monkeypatch.setattr(f"{module}.check_cudnn_version", lambda: 91_100)

    def loss(q: Any, k: Any, v: Any, segments: Any) -> Any:
        out = attend(q, k, v, segments, window=window, backend="auto")
        return out.astype(jnp.float32).sum()

    def rows(heads: int) -> Any:
        return jax.ShapeDtypeStruct((2, 4096, heads, 128), jnp.bfloat16)

    program = lowered_for_cuda(
        jax.grad(loss, argnums=(0, 1, 2)),
        *(rows(heads) for heads in (6, 1, 1)),
        jax.ShapeDtypeStruct((2, 4096), jnp.int32),
    )
    for kernel in ("__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"):
        assert f"@{kernel}(" in program
    assert f"\\22sliding_window_length\\22: {window or 0}" in program
    assert "\\22mask_type\\22: \\22CAUSAL\\22" in program
