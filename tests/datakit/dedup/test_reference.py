"""Fast sketches against the scheme in Python's big integers, and against the S-curve."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.datakit.dedup import DedupConfig, Shingling, hit_rate, sketch

M = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15
K0, K1, K2 = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3
K3, CHARACTER = 0x589965CC75374CC3, 0x1D8E4E27C47D124F


def fold_product(a: int, b: int) -> int:
    return (a * b & M) ^ (a * b >> 64)


def mix(x: int) -> int:
    x = (x ^ x >> 27) * 0x3C79AC492BA7B653 & M
    x = (x ^ x >> 33) * 0x1C69B3F74AC4AE35 & M
    return x ^ x >> 27


def word(text: str) -> int:
    """ASCII letters, digits and underscores only."""
    data = bytes(byte | 0x20 for byte in text.encode())
    if len(data) <= 8:
        return fold_product(int.from_bytes(data, "little") ^ K0, K1)
    last = int.from_bytes(data[-8:], "little")
    if len(data) <= 16:
        return fold_product(int.from_bytes(data[:8], "little") ^ K0, last ^ K2)
    state = K3 ^ len(data)
    for at in range(0, len(data) - 8, 8):
        state = fold_product(state ^ int.from_bytes(data[at : at + 8], "little"), K1)
    return fold_product(state ^ K0, last ^ K2)


def shingle_hashes(tokens: list[int], n: int) -> set[int]:
    runs = (tokens[i : i + n] for i in range(len(tokens) - n + 1))
    return {mix(sum(t * BASE ** (n - 1 - j) for j, t in enumerate(run)) & M) for run in runs}


def reference(shingles: set[int], bins: int, seed: int) -> list[int]:
    """Every bin keeps the least (round, value) that falls into it."""
    if not shingles:
        return [M] * bins
    start = mix(seed ^ BASE)
    best: list[tuple[int, int] | None] = [None] * bins
    for turn in range(2 * bins):
        salt = mix((start + turn * BASE) & M)
        for shingle in shingles:
            value = mix(shingle ^ salt)
            bin, value = divmod(value * bins, 1 << 64) if turn < bins else (turn - bins, value)
            if best[bin] is None or (turn, value) < best[bin]:
                best[bin] = (turn, value)
    return [value for _, value in best]


@settings(deadline=None, max_examples=30)
@given(
    words=st.lists(st.text("abcXYZ019_", min_size=1, max_size=30), max_size=12),
    bins=st.sampled_from([1, 2, 7, 16]),
    seed=st.integers(0, M),
    n=st.integers(1, 6),
)
def test_words_equal_the_reference(words, bins, seed, n) -> None:
    found = sketch([" ".join(words)], permutations=bins, seed=seed, shingling=Shingling(words=n))
    expected = reference(shingle_hashes([word(w) for w in words], n), bins, seed)
    assert found.values[0].tolist() == expected


def test_characters_equal_the_reference() -> None:
    text = "天地玄黄宇宙洪荒日月盈昃"
    tokens = [fold_product(ord(character) ^ K2, CHARACTER) for character in text]
    found = sketch([text], permutations=16, seed=3)
    assert found.values[0].tolist() == reference(shingle_hashes(tokens, 5), 16, 3)


@pytest.mark.parametrize("truth", [0.2, 0.5, 0.8])
def test_the_fast_estimate_is_unbiased_for_large_sets(truth) -> None:
    """100,000 shingles: within 4 standard errors."""
    union, bins, seeds = 100_000, 1024, 3
    shared = int(union * truth)
    only = (union - shared) // 2
    a = " ".join(f"w{i}" for i in range(shared + only))
    b = " ".join(f"w{i}" for i in [*range(shared), *range(shared + only, union)])
    options = {"permutations": bins, "shingling": Shingling(words=1)}
    estimates = []
    for seed in range(seeds):
        both = sketch([a, b], seed=seed, **options).values
        estimates.append((both[0] == both[1]).mean())
    assert abs(np.mean(estimates) - truth) < 4 * np.sqrt(truth * (1 - truth) / bins / seeds)


@pytest.mark.parametrize("truth", [0.5, 0.65, 0.8])
def test_the_hit_rate_of_500_pairs_fits_the_s_curve(truth) -> None:
    bands, rows = DedupConfig().bands
    union = 200
    shared = int(union * truth)
    only = (union - shared) // 2
    texts = []
    for pair in range(500):
        common = [f"p{pair}s{i}" for i in range(shared)]
        texts.append(" ".join([*common, *(f"p{pair}a{i}" for i in range(only))]))
        texts.append(" ".join([*common, *(f"p{pair}b{i}" for i in range(only))]))
    values = sketch(texts, permutations=bands * rows, shingling=Shingling(words=1)).values
    equal = (values[::2] == values[1::2]).reshape(500, bands, rows)
    rate = equal.all(axis=2).any(axis=1).mean()
    expected = hit_rate(truth, bands, rows)
    assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / 500) + 0.01
