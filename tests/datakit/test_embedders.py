import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import MarinError
from marin.datakit.embedders import Lexical, open_embedder, quantize, token_batches


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 500))
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = token_batches(lengths, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


def test_quantized_vectors_are_of_unit_length_and_near_the_original() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 128)).astype(np.float32)
    vectors[7] = 0
    values, scales = quantize(vectors)
    restored = values * scales[:, None]
    assert scales[7] == 0
    norms = np.linalg.norm(np.delete(restored, 7, 0), axis=1)
    assert np.abs(norms - 1).max() < 0.01
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    assert np.abs(restored - unit).max() < 0.002


def test_the_lexical_model_gives_zero_for_null() -> None:
    values, scales = Lexical(32).embed(pa.array(["some words", None], pa.large_string()))
    assert values.shape == (2, 32)
    assert scales[0] > 0
    assert not values[1].any()
    assert scales[1] == 0


def test_a_model_that_cannot_be_opened_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "sentence_transformers"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for model in ("harrier", "some/model"):
        with pytest.raises(MarinError, match=r"is missing; pip install '\.\[embed\]'"):
            open_embedder(model, 256, 128, 1024)
