"""`marin bench stream`: how fast rows become batches, in what memory, how soon after a resume."""

from marin.bench.stream.measure import measure
from marin.bench.stream.peers import PEERS

__all__ = ["PEERS", "measure"]
