"""The scaling ladder: plan rungs of one recipe, forecast the big run, register it, watch it."""

from marin.ladder.answer import fit_answer, forecast_answer
from marin.ladder.backtest import Backtest, backtests, summarize
from marin.ladder.forecast import Forecast, Model, Target, find_target, forecast
from marin.ladder.grid import Ladder, Rung, build_ladder, load_grid
from marin.ladder.law import Law, fit_law, fit_parts

__all__ = [
    "Backtest",
    "Forecast",
    "Ladder",
    "Law",
    "Model",
    "Rung",
    "Target",
    "backtests",
    "build_ladder",
    "find_target",
    "fit_answer",
    "fit_law",
    "fit_parts",
    "forecast",
    "forecast_answer",
    "load_grid",
    "summarize",
]
