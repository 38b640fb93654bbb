"""`marin bench balance`: does the data side keep up with the experts, and with how many cores?"""

from marin.bench.balance.trained import TrainedRun, read_run
from marin.bench.balance.verdict import BalanceConfig, measure, measure_dispatch, of_run

__all__ = ["BalanceConfig", "TrainedRun", "measure", "measure_dispatch", "of_run", "read_run"]
