"""`marin bench mixture`: what quotas and order cost and how exact they are, beside other mixers."""

from marin.bench.mixture.measure import measure
from marin.bench.mixture.peers import PEERS

__all__ = ["PEERS", "measure"]
