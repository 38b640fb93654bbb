"""`marin bench balance`: does the data side keep up with the experts, and with how many cores?"""

from marin.bench.balance.verdict import BalanceConfig, check_run, measure, measure_dispatch

__all__ = ["BalanceConfig", "check_run", "measure", "measure_dispatch"]
