"""Fuzzy deduplication: MinHash proposes, the text decides.

`dedup` turns document directories into a sidecar directory. Sketches can also be made and compared
alone, and exchanged with datasketch.
"""

from marin.datakit.dedup.config import DedupConfig, Shingling, hit_rate
from marin.datakit.dedup.materialize import materialize
from marin.datakit.dedup.run import dedup, dedup_into
from marin.datakit.dedup.signatures import save_index
from marin.datakit.dedup.sketches import Sketches, from_datasketch, sketch, to_datasketch

__all__ = [
    "DedupConfig",
    "Shingling",
    "Sketches",
    "dedup",
    "dedup_into",
    "from_datasketch",
    "hit_rate",
    "materialize",
    "save_index",
    "sketch",
    "to_datasketch",
]
