"""The training part of a report, from `metrics.jsonl` alone.

Runs of older versions and bare tests log less: a plot without a curve is left out.
"""

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
_ALARMS_SHOWN = 200
_NOTICED = 0.01  # of a step's time


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
    """Adds the sections on loss and optimization, alarms, evaluations (if there are any), time and
    routing."""
    steps = [record for record in metrics if "loss" in record]
    if not steps:
        page.section("Training", "The run has not logged a step yet.")
        return
    events = switches(metrics)
    _add_loss(page.section("Training"), steps, events, unigram_loss)
    _add_alarms(page.section("Watch"), steps)
    if any("eval/loss_micro" in record for record in steps):
        _add_evaluation(page.section("Evaluation"), steps, events)
    _add_time(page.section("Time"), steps, events)
    _add_routing(page.section("Expert dispatch"), steps, events)


def _plot(
    section: Section,
    caption: str,
    series: charts.Series,
    events: dict[str, float],
    *,
    y: str,
    log: bool = False,
) -> None:
    """Curves over steps; those without a point are left out, and a plot of none."""
    drawn = {name: curve for name, curve in series.items() if curve[0]}
    if drawn:
        section.plot(caption, charts.lines(drawn, x="step", y=y, events=events, log=log))


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
    section.plot(
        "Training loss. Dotted: switches of row length and mixture phase.",
        charts.lines(
            {"loss": column(steps, "loss")}, x="step", y="nats per token",
            levels=levels, events=events,
        ),
    )  # fmt: skip
    _plot(
        section, "Parts of the loss beside that of the next token.",
        {"z-loss": column(steps, "z_loss"), "balance": column(steps, "balance_loss")},
        events, y="loss",
    )  # fmt: skip
    section.plot(
        "Learning rates: warm-up, then linear decay to 5 % of the peak.",
        charts.lines(_group(steps, "lr/"), x="step", y="rate", events=events, log=True),
    )
    for key, what in (("grad", "gradient"), ("update", "update"), ("param", "parameters")):
        _plot(
            section, f"Norm of the {what}, whole and by optimizer group.",
            {"all": column(steps, f"{key}_norm"), **_group(steps, f"{key}_norm/")},
            events, y="norm", log=True,
        )  # fmt: skip
    _plot(
        section, "Scale of the attention logits.",
        {"QK scale": column(steps, "qk_scale")}, events, y="scale",
    )  # fmt: skip


def _add_alarms(section: Section, steps: Metrics) -> None:
    alarms = [
        [int(record["step"]), alarm["rule"], alarm["message"]]
        for record in steps
        for alarm in record.get("alarms", [])
    ]
    section.fact("alarms", len(alarms))
    section.text = "Where a rule of the watch began to be broken." if alarms else "No rule broken."
    if len(alarms) > _ALARMS_SHOWN:
        section.text += f" The newest {_ALARMS_SHOWN}."
    if alarms:
        section.table(["step", "rule", "what was found"], alarms[-_ALARMS_SHOWN:])


def _add_time(section: Section, steps: Metrics, events: dict[str, float]) -> None:
    _, speeds = column(steps, "tokens_per_second")
    if speeds:
        section.fact("tokens/s (median step)", float(sorted(speeds)[len(speeds) // 2]))
    _, used = column(steps, "mfu")
    if used:
        section.fact("MFU (median step)", f"{100 * sorted(used)[len(used) // 2]:.1f} %")
    _plot(
        section, "Tokens per second.",
        {"tokens/s": column(steps, "tokens_per_second")}, events, y="tokens/s",
    )  # fmt: skip
    _plot(
        section, "Share of the devices' peak FLOP/s that the model uses (MFU).",
        {"MFU": column(steps, "mfu")}, events, y="fraction",
    )  # fmt: skip
    _plot(
        section, "Seconds per step: the whole, computing, and waiting for data.",
        {part: column(steps, f"time/{part}") for part in ("step", "compute", "data")},
        events, y="seconds", log=True,
    )  # fmt: skip
    rare = {
        part: column([r for r in steps if _takes_time(r, f"time/{part}")], f"time/{part}")
        for part in ("checkpoint", "evaluation", "compile")
    }
    for part, (_, seconds) in rare.items():
        section.fact(f"seconds of {part}", sum(seconds))
    _plot(
        section, "Seconds of checkpoints, evaluations and compiling since the step drawn before.",
        rare, events, y="seconds", log=True,
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
    _plot(
        section, "Share of assignments that were dropped, by stage.",
        {
            "all": column(steps, "drop_fraction"),
            "at the sender": _share(steps, "dropped_sender"),
            "at the receiver": _share(steps, "dropped_receiver"),
        },
        events, y="fraction",
    )  # fmt: skip
    _plot(
        section, "Share of the combine weight that was dropped.",
        {"lost": column(steps, "weight_lost")}, events, y="fraction",
    )  # fmt: skip
    _plot(
        section, "Entropy of the router's choice.",
        {"entropy": column(steps, "router_entropy")}, events, y="nats",
    )  # fmt: skip
    _plot(
        section, "Norm of the router's bias, mean of the layers.",
        {"bias": column(steps, "router_bias_norm")}, events, y="norm",
    )  # fmt: skip
    for key, caption, label in (
        ("drop_fraction_by_layer", "Share of assignments that were dropped, by layer.", "share"),
        ("router_bias_norm_by_layer", "Norm of the router's bias, by layer.", "norm"),
    ):
        columns = [record[key] for record in steps if key in record]
        if columns:
            rows = [list(row) for row in zip(*columns, strict=True)]
            section.plot(caption, charts.heatmap(rows, x="logged step", y="layer", label=label))
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


def _share(steps: Metrics, key: str) -> tuple[list[float], list[float]]:
    """Steps and the share of their assignments that `key` counts."""
    found = [record for record in steps if key in record and record.get("assigned")]
    return [float(r["step"]) for r in found], [r[key] / r["assigned"] for r in found]


def _takes_time(record: Mapping[str, Any], key: str) -> bool:
    """Whether it is more than asking for it took, which every step does."""
    return bool(record.get(key, 0) > _NOTICED * record.get("time/step", 0))


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
