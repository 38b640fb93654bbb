"""`marin bench dedup`: speed, memory and quality, against exact truth and other libraries."""

from marin.bench.dedup.corpus import PACKAGES, make_corpus
from marin.bench.dedup.measure import BenchConfig, measure

__all__ = ["PACKAGES", "BenchConfig", "make_corpus", "measure"]
