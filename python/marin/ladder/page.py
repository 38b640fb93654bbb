"""`ladder.html`: rungs, trajectories, the forecast's band, residuals, backtests and the watch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from marin.ladder.answer import figure, number
from marin.ladder.grid import Ladder
from marin.ladder.law import Law
from marin.report import Page, charts
from marin.report.page import Section


def ladder_page(
    ladder: Ladder, law: Law, answer: Mapping[str, Any], watched: Mapping[str, Any] | None
) -> Page:
    """The page of a forecast (`forecast_answer`), the laws and, if there is one, a watch."""
    target = answer["target"]
    page = Page(
        f"Ladder: {ladder.metric}",
        f"{len(ladder.fitted)} rungs, forecast of {target['name']}.",
        f"From {ladder.source}.",
    )
    _add_forecast(page, ladder, answer)
    _add_rungs(page, ladder, law, answer)
    _add_backtests(page, answer)
    if watched is not None:
        _add_watch(page, watched)
    return page


def _add_forecast(page: Page, ladder: Ladder, answer: Mapping[str, Any]) -> None:
    final, target = answer["final"], answer["target"]
    section = page.section(
        "Forecast",
        "The middle and the 90 % interval at matched progress: all rungs and progress points "
        "fitted jointly, the floor integrated over. The baseline fits each progress point alone, "
        "above a fixed floor.",
    )
    section.fact(f"{target['name']} at {final['progress']:.0%}", f"{final['loss']:.4f}")
    section.fact("90 % interval", f"{final['low']:.4f} to {final['high']:.4f}")
    section.fact("baseline", figure(final["baseline"]))
    section.fact("beyond the largest rung", f"{target['extrapolation']:.3g} times")
    curves = {rung.name: _lists(*rung.curve(ladder.metric)) for rung in ladder.fitted}
    curves |= {
        f"{name}, extrapolated": (band["progress"], band["loss"])
        for name, band in answer["extrapolated_rungs"].items()
    }
    section.plot(
        "Trajectories of the rungs, and the forecast.",
        charts.lines(
            {**curves, target["name"]: (answer["progress"], answer["loss"])},
            x="progress", y=ladder.metric,
        ),
    )  # fmt: skip
    section.plot(
        "The forecast's band and the baseline.",
        charts.lines(
            {
                key: (answer["progress"], answer[name])
                for key, name in (
                    ("middle", "loss"), ("low", "low"), ("high", "high"), ("baseline", "baseline"),
                )
            },
            x="progress", y=ladder.metric,
        ),
    )  # fmt: skip
    section.table(
        ["if the floor were", "end", "low", "high", "backtest error"],
        [[entry[key] for key in ("floor", "loss", "low", "high", "backtest_error")]
         for entry in answer["sensitivity"]],
    )  # fmt: skip


def _add_rungs(page: Page, ladder: Ladder, law: Law, answer: Mapping[str, Any]) -> None:
    floor = number(law.floor)
    section = page.section(
        "Rungs",
        "No power law is fitted: not all values are positive."
        if floor is None
        else f"Above a floor of {floor:.4f}, fitted by least squares over all rungs.",
    )
    for entry in answer["off_trend"]:
        label = f"{entry['rung']} off the trend (deviations)"
        section.fact(label, figure(entry["deviations"], "+.1f"))
    if floor is not None:
        _plot_law(section, ladder, law)
    section.table(
        ["rung", "FLOPs", "tokens", "active parameters", "evaluations", "progress", "last"],
        [list(rung.values()) for rung in answer["rungs"]],
    )


def _plot_law(section: Section, ladder: Ladder, law: Law) -> None:
    logs = [float(np.log10(rung.train_flops)) for rung in ladder.fitted]
    lines = {}
    for index in range(0, len(law.progress), max(1, len(law.progress) // 4)):
        scale, exponent = law.log_scale[index], law.exponent[index]
        values = np.exp(scale - exponent * np.log(10) * np.array(logs))
        measured = (1 + law.residual[:, index]) * (law.floor + values) - law.floor
        lines[f"{law.progress[index]:.0%} of the run, law"] = (logs, values.tolist())
        seen = np.isfinite(measured)
        lines[f"{law.progress[index]:.0%} of the run"] = (
            np.array(logs)[seen].tolist(), measured[seen].tolist(),
        )  # fmt: skip
    section.plot(
        "Value above the floor against compute, on log axes.",
        charts.lines(lines, x="log10 FLOPs", y=f"{ladder.metric} - floor", log=True),
    )
    residuals = {
        rung.name: (law.progress[seen].tolist(), (100 * row[seen]).tolist())
        for rung, row in zip(ladder.fitted, law.residual, strict=True)
        for seen in [np.isfinite(row)]
    }
    section.plot(
        "Residuals of the law.", charts.lines(residuals, x="progress", y="percent of the value")
    )


def _add_backtests(page: Page, answer: Mapping[str, Any]) -> None:
    section = page.section(
        "Backtests", "What the same model says about evaluations that it has not seen."
    )
    for name, summary in answer["backtest_summary"].items():
        section.fact(f"mean absolute error, {name}", f"{summary['error']:.4f}")
        section.fact(f"baseline, {name}", figure(summary["baseline_error"]))
        section.fact(f"inside the 90 % interval, {name}", f"{summary['covered']:.0%}")
    for test in answer["backtests"]:
        if test["protocol"] == "other rung":
            continue
        section.plot(
            f"{test['rung']} ({test['protocol']}): actual minus forecast.",
            charts.lines(
                {
                    label: (test["progress"], _minus(test[key], test["forecast"]))
                    for label, key in (
                        ("actual", "actual"), ("low", "low"), ("high", "high"),
                        ("baseline", "baseline"),
                    )
                },
                x="progress", y="difference from the forecast",
            ),
        )  # fmt: skip
    section.table(
        ["held out", "rung", "error", "baseline", "inside 90 %"],
        [[test[key] for key in ("protocol", "rung", "error", "baseline_error", "covered")]
         for test in answer["backtests"]],
    )  # fmt: skip


def _add_watch(page: Page, watched: Mapping[str, Any]) -> None:
    section = page.section("Watch", f"{watched['run']} against its registration.")
    section.fact("verdict", watched["verdict"])
    section.fact("last value", f"{watched['value']:.4f}")
    forecast = "not forecast" if watched["forecast"] is None else figure(watched["error"], "+.2%")
    section.fact("difference from the forecast", forecast)
    points = watched["evaluations"]
    progress = [point["progress"] for point in points]
    section.plot(
        "The run in the registered band.",
        charts.lines(
            {key: (progress, [point[key] for point in points])
             for key in ("value", "forecast", "low", "high")},
            x="progress", y=watched["metric"],
        ),
    )  # fmt: skip
    section.table(
        ["differs", "registered", "run", "voids"],
        [[entry[key] for key in ("what", "registered", "run", "voids")]
         for entry in watched["differences"]],
    )  # fmt: skip


def _lists(progress: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    return progress.tolist(), values.tolist()


def _minus(values: list[float | None], forecast: list[float]) -> list[float]:
    return [
        float("nan") if value is None else value - middle
        for value, middle in zip(values, forecast, strict=True)
    ]
