"""Trains `d768` with all 384 experts on one GPU for 50 steps; part of benches/gpu.sh.

Transport `local`, 16 rows of 4,096 tokens per step (what one of the rung's 64 devices has), packed
documents of a synthetic language that a model can learn. Reports tokens per second, model FLOPs
utilization and memory, and how the step's time splits.
"""

import contextlib
import dataclasses
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import jax
import numpy as np

from marin.model import Batch, HeroConfig, make_mesh, preset
from marin.model.count import train_flops_per_token

# The package itself would load the data side of training, which a bare machine lacks.
if "marin.train" not in sys.modules:
    package = ModuleType("marin.train")
    package.__path__ = [str(Path(__file__).parents[1] / "python" / "marin" / "train")]
    sys.modules["marin.train"] = package

from marin.train.curriculum import Segment, StepPlan
from marin.train.devices import peak_flops
from marin.train.rates import compute_scaled_rates
from marin.train.state import take_apart
from marin.train.step import batch_gradients, compile_step, constants_of

STEPS, WARM_UP, PROFILED = 50, 5, 3
RATES_OF_STEPS = 1_000
"""Learning rates are those of a run of this length; of 50 steps they would be far too high."""


class Report(Protocol):
    dry_run: bool
    rate: float
    failures: list[str]

    def line(
        self, tool: str, metric: str, value: float, unit: str, runs: list[float] | None = None
    ) -> None: ...


def shape(dry_run: bool) -> tuple[HeroConfig, int, int]:
    """Configuration, rows and row length; a rehearsal keeps the experts and cuts the width."""
    config = dataclasses.replace(preset("d768"), transport="local")
    if not dry_run:
        return config, 16, 4096
    small = {"hidden": 64, "layers": 2, "heads": 2, "head_dim": 32, "latent": 32}
    small |= {"expert_width": 32, "gate_rank": 16, "vocab": 512, "window": 64}
    return dataclasses.replace(config, **small, cross_entropy_block=256), 4, 256


def rows_of(step: int, rows: int, length: int, vocab: int) -> Batch:
    """Documents of 50 to `length` tokens that count up modulo the vocabulary in a stride of their
    own, so that their loss falls as soon as a model learns to look back."""
    draw = np.random.default_rng(step)
    tokens, segments, positions = (np.zeros((rows, length), np.int32) for _ in range(3))
    for row in range(rows):
        start = document = 0
        while start < length:
            end = min(length, start + int(draw.integers(50, length)))
            here, document = slice(start, end), document + 1
            count = np.arange(end - start)
            tokens[row, here] = (draw.integers(vocab) + count * draw.integers(1, 5)) % vocab
            segments[row, here], positions[row, here] = document, count
            start = end
    mask = np.pad(segments[:, 1:] == segments[:, :-1], ((0, 0), (0, 1)))
    return Batch(tokens, segments, positions, mask)


def bench(report: Report, profile: Path | None) -> None:
    config, rows, length = shape(report.dry_run)
    tokens = rows * length
    mesh = make_mesh()
    trainee = take_apart(config, mesh)
    plan = StepPlan(
        step=0,
        first_row=0,
        tokens=0,
        segment=Segment(STEPS, rows, length, "main"),
        rates=compute_scaled_rates(RATES_OF_STEPS * tokens, config.hidden, tokens),
        qk_scale=1.0,
    )
    constants = constants_of(plan)
    cells = np.zeros(rows, np.int32)
    start = time.perf_counter()
    step = compile_step(trainee, rows, length, cells=1)
    report.line("marin", "train d768: compilation", time.perf_counter() - start, "s")
    report.line("marin", "train d768: memory of the step as compiled", _memory_of(step), "bytes")
    state = trainee.initial(0)
    parts = _time_of_parts(trainee, state, rows_of(0, rows, length, config.vocab))
    losses, seconds = [], []
    for index in range(STEPS):
        batch = rows_of(index, rows, length, config.vocab)
        traced = profile and WARM_UP <= index < WARM_UP + PROFILED
        with jax.profiler.trace(str(profile)) if traced else contextlib.nullcontext():
            start = time.perf_counter()
            state, metrics = step(state, batch, cells, constants)
            losses.append(float(metrics.ce))
            seconds.append(time.perf_counter() - start)
    if not losses[-1] < losses[0]:
        report.failures.append(f"train d768: loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    median = statistics.median(seconds[WARM_UP + PROFILED :])
    parts["optimizer"] = max(0.0, median - parts["forward"] - parts["backward"])
    _report(report, config, tokens, length, median, seconds, parts)
    report.line("marin", "train d768: first loss", losses[0], "nats/token")
    report.line("marin", "train d768: last loss", losses[-1], "nats/token")
    memory = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in memory:
        peak = memory["peak_bytes_in_use"]
        report.line("marin", "train d768: peak memory of the whole script", peak, "bytes")
        print(f"  peak memory {peak / 2**30:.1f} GiB")
    print(f"  loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps")


def _memory_of(step: Any) -> int:
    """Bytes that a compiled step holds at once by the compiler's account: state, batch, what is
    between, and results that do not take the place of the donated state."""
    sizes = step.memory_analysis()
    held: int = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    return held + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def _time_of_parts(trainee: Any, state: Any, batch: Batch) -> dict[str, float]:
    """Seconds of the forward and of the backward pass, each the median of five."""

    def loss(parameters: Any, bias: Any, batch: Batch) -> Any:
        return trainee.model(parameters, bias).loss(batch, mesh=trainee.mesh)[0]

    def gradients(parameters: Any, bias: Any, batch: Batch) -> Any:
        held = state._replace(parameters=parameters, router_bias=bias)
        return batch_gradients(trainee, held, batch, np.float32(1), 1)[1]

    medians = []
    for function in (loss, gradients):
        compiled = jax.jit(function)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            jax.block_until_ready(compiled(state.parameters, state.router_bias, batch))
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times[1:]))
    return {"forward": medians[0], "backward": medians[1] - medians[0]}


def _report(
    report: Report,
    config: HeroConfig,
    tokens: int,
    length: int,
    median: float,
    seconds: list[float],
    parts: dict[str, float],
) -> None:
    achieved = tokens / median * train_flops_per_token(config, length)
    report.line("marin", "train d768: step", median, "s", seconds)
    report.line("marin", "train d768: tokens", tokens / median, "tokens/s")
    report.line("marin", "train d768: model FLOPs", achieved, "FLOP/s")
    of_measured = achieved / report.rate
    report.line("marin", "train d768: share of the measured matrix rate", of_measured, "fraction")
    print(
        f"\ntrain d768: {median * 1e3:.1f} ms per step of {tokens:,} tokens, "
        f"{tokens / median:,.0f} tokens/s, {of_measured:.1%} of the measured matrix rate"
    )
    nominal = peak_flops(jax.devices()[0])
    if nominal:
        report.line("marin", "train d768: MFU", achieved / nominal, "fraction")
        print(f"  MFU {achieved / nominal:.1%} of the nominal {nominal / 1e12:.0f} TFLOP/s")
    for part, value in parts.items():
        report.line("marin", f"train d768: {part}", value, "s")
        print(f"  {part:12} {value * 1e3:9.1f} ms  {value / median:.0%} of a step")
