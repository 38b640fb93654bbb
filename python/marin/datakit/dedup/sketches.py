"""MinHash sketches of texts on their own, and their exchange with datasketch.

Two sketches can be compared only if they were made alike; everything that decides it travels with
them, and the wrong pairing is refused rather than answered with noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from marin._native import DEDUP_NORMALIZATION, dedup_kperm, dedup_sketches
from marin.datakit.dedup.config import Shingling
from marin.errors import MarinError

if TYPE_CHECKING:
    from datasketch import LeanMinHash

Scheme = Literal["fast", "affine32", "affine64", "legacy"]

_MERSENNE = np.uint64((1 << 61) - 1)


@dataclass(frozen=True, eq=False)
class Sketches:
    """Sketches of several texts.

    Attributes:
      values: uint64[texts, values].
      scheme: `fast`, or one of datasketch's hash families.
      seed: of the hash functions.
      shingling: how the texts were cut; None for sketches from elsewhere, of which it is unknown.
      normalization: version of the normalization; None where it is unknown.
    """

    values: np.ndarray
    scheme: Scheme
    seed: int
    shingling: Shingling | None
    normalization: int | None = DEDUP_NORMALIZATION

    def similarity(self, other: "Sketches") -> np.ndarray:
        """Estimated Jaccard similarity of text i here and text i there, float64[texts].

        Raises:
          MarinError: the sketches were made with other schemes, seeds, lengths, shingles or
            normalizations.
        """
        for name in ("scheme", "seed", "shingling", "normalization"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise MarinError(
                    f"sketches of {name} {mine} and of {name} {theirs} cannot be compared; "
                    "make both alike"
                )
        if self.values.shape != other.values.shape:
            raise MarinError(
                f"sketches of shape {self.values.shape} and {other.values.shape} cannot be compared"
            )
        agreement: np.ndarray = (self.values == other.values).mean(axis=1)
        return agreement


def sketch(
    texts: Sequence[str | None],
    *,
    permutations: int = 256,
    seed: int = 1,
    scheme: Scheme = "fast",
    shingling: Shingling | None = None,
    max_shingles: int | None = None,
) -> Sketches:
    """Sketches of `texts`, by the project's fast scheme or by one of datasketch's families.

    The latter are equal, bit for bit, to `datasketch.MinHash(permutations, seed, scheme=scheme)`
    updated with the UTF-8 of every shingle: the normalized words joined by one space. Their cost
    grows with permutations times shingles; `max_shingles` bounds it by keeping the shingles with
    the least hashes, which samples the whole text (the result then differs from datasketch's).

    Raises:
      MarinError: an unknown scheme, or less than one permutation.
    """
    shingling = shingling or Shingling()
    if permutations < 1:
        raise MarinError(f"permutations={permutations}: expected at least 1")
    array = pa.array(texts, pa.large_string())
    if scheme == "fast":
        if max_shingles is not None:
            raise MarinError("max_shingles: the fast scheme needs no cap; leave it out")
        values = dedup_sketches(
            array,
            bins=permutations,
            seed=seed,
            words=shingling.words,
            characters=shingling.characters,
            unit=shingling.unit,
        )
    else:
        a, b = _parameters(permutations, seed, scheme)
        values = dedup_kperm(
            array,
            family=scheme,
            a=a,
            b=b,
            cap=max_shingles,
            words=shingling.words,
            characters=shingling.characters,
            unit=shingling.unit,
        )
    return Sketches(values, scheme, seed, shingling)


def to_datasketch(sketches: Sketches) -> "list[LeanMinHash]":
    """As datasketch's sketches, for its indexes.

    Raises:
      MarinError: the scheme is `fast`, which datasketch does not know.
    """
    from datasketch import LeanMinHash

    if sketches.scheme == "fast":
        raise MarinError(
            "datasketch does not know the scheme 'fast'; sketch with scheme='affine32', 'affine64' "
            "or 'legacy'"
        )
    return [
        LeanMinHash(seed=sketches.seed, hashvalues=values, scheme=sketches.scheme)
        for values in sketches.values
    ]


def from_datasketch(
    minhashes: "Iterable[Any]", *, shingling: Shingling | None, normalization: int | None
) -> Sketches:
    """Takes `MinHash` or `LeanMinHash` objects over. datasketch does not record how texts were
    cut: give the `shingling` and `normalization` that the sets were made with, or None for both to
    compare them only with others of unknown making.

    Raises:
      MarinError: none is given, or they differ in scheme, seed or length.
    """
    minhashes = list(minhashes)
    made = {(minhash.scheme, minhash.seed, len(minhash)) for minhash in minhashes}
    if len(made) != 1:
        found = ", ".join(f"{scheme} seed {seed} x {n}" for scheme, seed, n in sorted(made))
        raise MarinError(
            f"sketches of one scheme, seed and length expected, found {found or 'none'}"
        )
    ((scheme, seed, _),) = made
    values = np.stack([np.asarray(minhash.hashvalues, dtype=np.uint64) for minhash in minhashes])
    return Sketches(values, scheme, int(seed), shingling, normalization)


def _parameters(permutations: int, seed: int, scheme: str) -> tuple[np.ndarray, np.ndarray]:
    """Factors and offsets as datasketch draws them from NumPy's frozen generator RandomState."""
    try:
        random = np.random.RandomState(seed)
    except ValueError as error:
        raise MarinError(f"seed={seed}: {error}") from None
    if scheme == "legacy":
        pairs = np.array(
            [
                (
                    random.randint(1, _MERSENNE, dtype=np.uint64),
                    random.randint(0, _MERSENNE, dtype=np.uint64),
                )
                for _ in range(permutations)
            ],
            dtype=np.uint64,
        )
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    if scheme not in ("affine32", "affine64"):
        raise MarinError(f"scheme={scheme!r}: expected fast, affine32, affine64 or legacy")
    width, kind = (32, np.uint32) if scheme == "affine32" else (64, np.uint64)
    a = random.randint(0, 1 << (width - 1), permutations, dtype=kind) * kind(2) + kind(1)
    b = random.randint(0, 1 << width, permutations, dtype=kind)
    return a.astype(np.uint64), b.astype(np.uint64)
