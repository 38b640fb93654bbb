"""`marin bench pack`: how fast lengths become plans and stores become shards, how full rows are."""

from marin.bench.packing.measure import measure
from marin.bench.packing.peers import PEERS

__all__ = ["PEERS", "measure"]
