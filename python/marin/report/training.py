"""The training part of a report, from `metrics.jsonl` alone."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from marin.report import charts
from marin.report.data import add_mixture
from marin.report.metrics import read_metrics
from marin.report.page import Page, Section

Metrics = Sequence[Mapping[str, Any]]

_DOMAINS_DRAWN = 12  # lines that one plot can tell apart


def column(metrics: Metrics, key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the records that have `key`."""
    found = [(record["step"], record[key]) for record in metrics if key in record]
    return [float(step) for step, _ in found], [float(value) for _, value in found]


def switches(metrics: Metrics) -> dict[str, float]:
    """Where row length or phase change: a label and the first step after it."""
    events = {}
    steps = [record for record in metrics if "loss" in record]
    for before, after in pairwise(steps):
        if before.get("seq_len") != after.get("seq_len"):
            events[f"rows of {after['seq_len']:,}"] = float(after["step"])
        if before.get("phase") != after.get("phase"):
            events[f"phase {after['phase']}"] = float(after["step"])
    return events


def add_training(page: Page, metrics: Metrics, *, unigram_loss: float | None = None) -> None:
    """Adds the sections on loss, optimization, time, evaluations (if there are any) and routing."""
    steps = [record for record in metrics if "loss" in record]
    if not steps:
        page.section("Training", "The run has not logged a step yet.")
        return
    events = switches(metrics)
    _add_loss(page.section("Training"), steps, events, unigram_loss)
    if any("eval/loss_micro" in record for record in steps):
        _add_evaluation(page.section("Evaluation"), steps, events)
    _add_routing(page.section("Expert dispatch"), steps, events)


def _add_loss(
    section: Section, steps: Metrics, events: dict[str, float], unigram_loss: float | None
) -> None:
    last = steps[-1]
    section.fact("steps", int(last["step"]) + 1)  # the first one is step 0
    section.fact("tokens", int(last["tokens"]))
    section.fact("final loss (nats/token)", float(last["loss"]))
    levels = {}
    if unigram_loss is not None:
        section.fact("loss of the best unigram model", unigram_loss)
        levels["best unigram model"] = unigram_loss
    _, speeds = column(steps, "tokens_per_second")
    if speeds:
        section.fact("tokens/s (median step)", float(sorted(speeds)[len(speeds) // 2]))
    section.plot(
        "Training loss. Dotted: switches of row length and mixture phase.",
        charts.lines(
            {"loss": column(steps, "loss")}, x="step", y="nats per token",
            levels=levels, events=events,
        ),
    )  # fmt: skip
    section.plot(
        "Learning rates: warm-up, then linear decay to 5 % of the peak.",
        charts.lines(_group(steps, "lr/"), x="step", y="rate", events=events, log=True),
    )
    section.plot(
        "Norm of the gradient, whole and by optimizer group.",
        charts.lines(
            {"all": column(steps, "grad_norm"), **_group(steps, "grad_norm/")},
            x="step", y="norm", log=True, events=events,
        ),
    )  # fmt: skip
    section.plot(
        "Seconds per step: waiting for data, and the step itself.",
        charts.lines(
            {"data": column(steps, "time/data"), "step": column(steps, "time/step")},
            x="step", y="seconds", log=True,
        ),
    )  # fmt: skip


def _add_evaluation(section: Section, steps: Metrics, events: dict[str, float]) -> None:
    section.text = (
        "Losses on held-out documents, in nats per token: micro over all domains together, macro "
        "the mean of the domains. As trained: with the transport of the run, which may drop; "
        "dropless: the same weights with no assignment dropped."
    )
    kinds = {"as trained": "eval/", "dropless": "eval/dropless/"}
    means = {"micro": "loss_micro", "macro": "loss_macro"}
    curves = {
        f"{mean}, {kind}": column(steps, prefix + key)
        for mean, key in means.items()
        for kind, prefix in kinds.items()
    }
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    for name, (_, values) in curves.items():
        section.fact(f"last {name}", values[-1])
    for label, key in (
        ("bits per byte, as trained", "eval/bits_per_byte"),
        ("dropped in the last evaluation", "eval/drop_fraction"),
    ):
        _, values = column(steps, key)
        if values:
            section.fact(label, values[-1])
    section.plot(
        "Loss on held-out documents.",
        charts.lines(curves, x="step", y="nats per token", events=events),
    )
    domains = {kind: _group(steps, f"{prefix}loss/") for kind, prefix in kinds.items()}
    trained = domains["as trained"]
    worst = sorted(trained, key=lambda name: -trained[name][1][-1])[:_DOMAINS_DRAWN]
    if not worst:
        return
    some = "" if len(worst) == len(trained) else f", the {len(worst)} of highest loss"
    section.plot(
        f"Loss by domain, as trained{some}.",
        charts.lines(
            {name: trained[name] for name in sorted(worst)},
            x="step", y="nats per token", events=events,
        ),
    )  # fmt: skip
    section.table(
        ["domain", *(f"last loss, {kind}" for kind in kinds)],
        [
            [name, *(curves[name][1][-1] if name in curves else "" for curves in domains.values())]
            for name in trained
        ],
    )


def _add_routing(section: Section, steps: Metrics, events: dict[str, float]) -> None:
    assigned = sum(record.get("assigned", 0) for record in steps)
    dropped = sum(
        record.get("dropped_sender", 0) + record.get("dropped_receiver", 0) for record in steps
    )
    section.text = (
        "An assignment is one (token, expert) pair. It is dropped where the sender's part of a "
        "pool or the receiver's pool is full; the shared experts still serve the token."
    )
    section.fact("assignments", int(assigned))
    section.fact("dropped", f"{100 * dropped / assigned:.3f} %" if assigned else "none")
    section.plot(
        "Share of assignments that were dropped.",
        charts.lines(
            {"dropped": column(steps, "drop_fraction")}, x="step", y="fraction", events=events
        ),
    )
    section.plot(
        "Entropy of the router's choice.",
        charts.lines(
            {"entropy": column(steps, "router_entropy")}, x="step", y="nats", events=events
        ),
    )
    loads = [record for record in steps if "expert_load" in record]
    if loads:
        layers = loads[-1]["expert_load"]
        experts = len(layers[0])
        section.plot(
            f"Load of each expert over the run, mean of the layers; 1 is an even share "
            f"({experts} experts).",
            charts.heatmap(
                _load_over_time(loads), x="logged step", y="expert",
                label="share / even share", center=1.0,
            ),
        )  # fmt: skip
        section.plot(
            "Load of each expert by layer at the last logged step.",
            charts.heatmap(
                [[value * experts for value in layer] for layer in layers],
                x="expert", y="layer", label="share / even share", center=1.0,
            ),
        )  # fmt: skip


def _load_over_time(loads: Metrics) -> list[list[float]]:
    """Rows are experts, columns logged steps; mean over layers, in units of an even share."""
    columns = []
    for record in loads:
        layers = record["expert_load"]
        experts = len(layers[0])
        columns.append(
            [experts * sum(layer[e] for layer in layers) / len(layers) for e in range(experts)]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _group(steps: Metrics, prefix: str) -> charts.Series:
    """The metrics below `prefix`, by the rest of their name."""
    names = sorted({key for record in steps for key in record if key.startswith(prefix)})
    return {name.removeprefix(prefix): column(steps, name) for name in names}


def write_run_report(run: Path) -> Path:
    """Writes `report.html` into the run directory and returns its path."""
    metrics = read_metrics(run)
    page = Page(f"Run {run.resolve().name}", "Drawn from metrics.jsonl.")
    unigram = next((r["unigram_loss"] for r in metrics if "unigram_loss" in r), None)
    add_training(page, metrics, unigram_loss=unigram)
    add_mixture(page, metrics)
    path = run / "report.html"
    page.write(path)
    return path
