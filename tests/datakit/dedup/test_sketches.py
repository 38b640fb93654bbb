"""Sketches: equal to datasketch's, unbiased, and refused when they do not belong together."""

import numpy as np
import pytest
from datasketch import LeanMinHash, MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.datakit.dedup import Shingling, from_datasketch, sketch, to_datasketch
from marin.errors import MarinError

TEXTS = st.lists(st.text(alphabet="ab cdé_ß.\n字", max_size=60), min_size=1, max_size=4)


def by_datasketch(text: str, n: int, **options: object) -> MinHash:
    minhash = MinHash(**options)
    words = text.split()
    minhash.update_batch([" ".join(words[i : i + n]).encode() for i in range(len(words) - n + 1)])
    return minhash


@pytest.mark.parametrize("scheme", ["affine32", "affine64", "legacy"])
@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["alpha", "b", "gamma_3", "δέλτα", "e" * 70]), max_size=30).map(
            " ".join
        ),
        min_size=1,
        max_size=3,
    ),
    permutations=st.sampled_from([1, 16, 128]),
    seed=st.integers(0, 2**32 - 1),
)
def test_kperm_equals_datasketch(scheme, texts, permutations, seed) -> None:
    ours = sketch(
        texts,
        permutations=permutations,
        seed=seed,
        scheme=scheme,
        shingling=Shingling(words=3, characters=3),
    )
    theirs = [by_datasketch(t, 3, num_perm=permutations, seed=seed, scheme=scheme) for t in texts]
    for mine, other in zip(to_datasketch(ours), theirs, strict=True):
        assert mine == LeanMinHash(other)
    back = from_datasketch(theirs, shingling=ours.shingling, normalization=ours.normalization)
    assert np.array_equal(back.similarity(ours), np.ones(len(texts)))


def test_a_datasketch_index_finds_our_sketches() -> None:
    texts = [" ".join(f"w{i + j}" for j in range(50)) for i in (0, 1, 500)]
    index = MinHashLSH(threshold=0.5, num_perm=128)
    index.insert("known", by_datasketch(texts[0], 5, num_perm=128))
    found = [
        index.query(m) for m in to_datasketch(sketch(texts, permutations=128, scheme="affine32"))
    ]
    assert found == [["known"], ["known"], []]


def test_sketches_that_were_made_differently_are_refused() -> None:
    base = sketch(["one two three four five six"], permutations=64)
    for other in (
        sketch(["one two three four five six"], permutations=64, seed=2),
        sketch(["one two three four five six"], permutations=64, scheme="affine32"),
        sketch(["one two three four five six"], permutations=32),
        sketch(["one two three four five six"], permutations=64, shingling=Shingling(words=3)),
        from_datasketch([MinHash(64)], shingling=None, normalization=None),
    ):
        with pytest.raises(MarinError, match="cannot be compared"):
            base.similarity(other)
    with pytest.raises(MarinError, match="datasketch does not know"):
        to_datasketch(base)
    with pytest.raises(MarinError, match="one scheme, seed and length"):
        from_datasketch([MinHash(64), MinHash(32)], shingling=None, normalization=None)


@pytest.mark.parametrize("scheme", ["fast", "affine32", "affine64"])
@pytest.mark.parametrize("truth", [0.2, 0.5, 0.8])
def test_the_estimate_is_unbiased(scheme, truth) -> None:
    """Within 4 standard errors, over 40 seeds, for sets of 1,000 shingles."""
    union, n = 1000, 40
    shared = int(union * truth)
    only = (union - shared) // 2
    single = Shingling(words=1)
    a = " ".join(f"w{i}" for i in range(shared + only))
    b = " ".join(f"w{i}" for i in [*range(shared), *range(shared + only, union)])
    estimates = []
    for seed in range(n):
        mine, theirs = (
            sketch([text], permutations=64, seed=seed, scheme=scheme, shingling=single)
            for text in (a, b)
        )
        estimates.append(mine.similarity(theirs)[0])
    error = np.sqrt(truth * (1 - truth) / 64 / n)
    assert abs(np.mean(estimates) - truth) < 4 * error


def test_a_cap_samples_the_whole_text() -> None:
    """Cutting the tail would make these two look equal: they differ in their second halves."""
    head = [f"h{i}" for i in range(1000)]
    a, b = (" ".join([*head, *(f"{t}{i}" for i in range(1000))]) for t in "ab")
    options = {"permutations": 256, "scheme": "affine32", "shingling": Shingling(words=1)}
    similarity = sketch([a], max_shingles=400, **options).similarity(
        sketch([b], max_shingles=400, **options)
    )
    assert 0.15 < similarity[0] < 0.55


@settings(deadline=None, max_examples=50)
@given(texts=TEXTS)
def test_any_text_has_a_sketch(texts) -> None:
    for scheme in ("fast", "affine32"):
        sketches = sketch(texts, permutations=8, scheme=scheme, shingling=Shingling(2, 2))
        assert sketches.values.shape == (len(texts), 8)
