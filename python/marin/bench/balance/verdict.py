"""Both sides against each other: which one limits, and how many cores feed a device.

Compute is the faster transport of a layer times the layers, forward and backward passes of a step;
on the present device everything else of a step is left out, so its rate is an upper bound and the
cores it asks for are too many rather than too few. For a named device it is the whole step of
`marin.plan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from marin.bench.balance.data import DataRates, data_rates
from marin.bench.balance.dispatch import (
    DispatchRates,
    measured_rates,
    modelled_rates,
    peer_rates,
)
from marin.bench.balance.trained import TrainedRun
from marin.bench.corpus import DOCUMENTS
from marin.bench.results import MARIN, Results
from marin.engine import Progress
from marin.errors import MarinError
from marin.model import HeroConfig
from marin.model.count import BACKWARD
from marin.model.memory import routed_forwards
from marin.model.presets import Rung, rung
from marin.plan import Device, device, step_cost
from marin.train.devices import ensure_devices

_LAYER_RATE = "tokens/s per device and layer"
_TOKENS = 2048
_NOTICED = 0.05
"""Share of a run's time; less waiting than this is no limit, as for the watch of `marin train`."""


@dataclass(frozen=True)
class BalanceConfig:
    """What to measure. `device` is the present one where empty, else one of `marin.plan`."""

    model: str = "d768"
    device: str = ""
    row_lengths: tuple[int, ...] = (4096, 8192, 65_536)
    devices: int = 4
    tokens: int = _TOKENS
    """Of one present device in the measured layer."""
    documents: int = DOCUMENTS
    seconds: float = 1.0
    """Least time of each measurement on the data side."""
    runs: int = 5

    def __post_init__(self) -> None:
        if not self.row_lengths or min(self.row_lengths) < 2:
            raise MarinError(f"row lengths {self.row_lengths}: expected some of 2 tokens or more")
        if self.devices < 1 or self.tokens % self.devices:
            raise MarinError(
                f"{self.tokens} tokens over {self.devices} devices: expected a multiple"
            )


def model_of(config: BalanceConfig) -> Rung:
    """The rung of this name; `MarinError` where its experts do not divide over the devices."""
    found = rung(config.model)
    devices = device(config.device).group if config.device else config.devices
    if found.config.experts % devices:
        raise MarinError(
            f"{config.model}: {found.config.experts} experts over {devices} devices: expected a "
            "multiple"
        )
    return found


def of_run(run: TrainedRun) -> BalanceConfig:
    """What to measure for the verdict that a run's wait for data is to agree with: its own rows and
    devices."""
    return BalanceConfig(
        f"the model of {run.path}",
        row_lengths=run.row_lengths,
        devices=run.devices,
        tokens=_TOKENS // run.devices * run.devices or run.devices,
    )


def measure(
    config: BalanceConfig, root: Path | None, *, run: TrainedRun | None = None, progress: Progress
) -> dict[str, Any]:
    """What `marin bench balance --json` prints: `results` as every bench, and `balance`.

    Args:
      root: keeps the corpus here for another time; a temporary folder by default.
      run: measures its model, with the configuration `of_run`, and compares its wait for data.
    """
    named = device(config.device) if config.device else None
    found = model_of(config) if run is None else Rung(run.model, batch=0, steps=0)
    data: dict[int, DataRates] = {}
    with (
        TemporaryDirectory(dir=root) as name,
        progress.task("Measure", len(config.row_lengths) + 1) as task,
    ):
        for length in config.row_lengths:
            data[length] = data_rates(root or Path(name), length, config.documents, config.seconds)
            task.advance(1)
        if named is None:
            ensure_devices(config.devices)
            dispatch = measured_rates(found.config, config.tokens, config.devices, config.runs)
        else:
            tokens = found.batch * found.seq_len // found.racks // named.group
            dispatch = modelled_rates(found.config, named, tokens)
        task.advance(1)
    compute = {
        length: _modelled(found, named, length)
        if named is not None
        else _bound(found.config, dispatch)
        for length in config.row_lengths
    }
    results = Results()
    _add_lines(results, data, dispatch)
    answer = balance(config, data, dispatch, compute, named)
    if run is not None:
        answer["run"] = _agreement(run, answer["verdict"]["limits"])
    return {**results.report(), "balance": answer}


def measure_dispatch(config: BalanceConfig, *, peers: bool, progress: Progress) -> dict[str, Any]:
    """What `marin bench dispatch --json` prints: parts and transports on the present device."""
    found = model_of(config)
    ensure_devices(config.devices)
    results = Results()
    with progress.task("Measure", 1 + peers) as task:
        rates = measured_rates(found.config, config.tokens, config.devices, config.runs)
        _add_lines(results, {}, rates)
        task.advance(1)
        if peers:
            others = peer_rates(found.config, config.tokens, config.devices, config.runs)
            for name, rate in others.items():
                tool = "tokamax" if name.endswith("tokamax") else "jax"
                results.add(tool, f"dispatch: {name}", rate, _LAYER_RATE)
            task.advance(1)
    return results.report()


def _bound(config: HeroConfig, dispatch: DispatchRates) -> float:
    """Training tokens per second and device, if nothing but the experts cost time."""
    return dispatch.fastest[1] / config.layers / (routed_forwards(config) + BACKWARD)


def _modelled(found: Rung, named: Device, length: int) -> float:
    rows = found.batch // found.racks * found.seq_len // length // named.group * named.group
    step = step_cost(found.config, named, groups=1, rows=max(rows, named.group), seq_len=length)
    return step.tokens_per_second / named.group


def balance(
    config: BalanceConfig,
    data: Mapping[int, DataRates],
    dispatch: DispatchRates,
    compute: Mapping[int, float],
    named: Device | None,
) -> dict[str, Any]:
    """The verdict and what it rests on. Cores are for streaming from shards, and from the store."""
    cores = {
        source: max(compute[length] / rate(data[length]) for length in compute)
        for source, rate in _SOURCES.items()
    }
    per_device = cores["from shards"]
    # A named device has hosts of its own; present devices share this machine's cores.
    spare = _host_cores(named) / (named.node if named else config.devices)
    limits = "data" if per_device > spare else "compute"
    where = named.name if named else f"one of {config.devices} devices here"
    node, group = (named.node, named.group) if named else (config.devices, config.devices)
    slowest = min(data.values(), key=lambda rates: rates.stream_shards).stream_shards
    line = (
        f"{limits} limits: {where} takes at most {max(compute.values()):,.0f} tokens/s of "
        f"{config.model}, one core here streams {slowest:,.0f} from shards; such cores for one "
        f"device {per_device:.3g}, one node {per_device * node:.3g}, one rack "
        f"{per_device * group:.3g}"
    )
    return {
        "model": config.model,
        "device": named.name if named else "present",
        "data": {str(length): rates.as_json() for length, rates in data.items()},
        "dispatch": {"parts": dispatch.parts, "transports": dispatch.transports},
        "compute": {str(length): rate for length, rate in compute.items()},
        "verdict": {
            "limits": limits,
            "line": line,
            "expected_data_wait": max(0.0, 1 - spare / per_device),
            "cores_per_device": per_device,
            "cores_per_node": per_device * node,
            "cores_per_rack": per_device * group,
            "cores_per_device_from_store": cores["from the store"],
        },
    }


_SOURCES: dict[str, Callable[[DataRates], float]] = {
    "from shards": lambda rates: rates.stream_shards,
    "from the store": lambda rates: rates.from_store,
}


def _host_cores(named: Device | None) -> int:
    from marin.bench.machine import describe_machine

    return named.cores if named else int(describe_machine()["cores"])


def _agreement(run: TrainedRun, limits: str) -> dict[str, Any]:
    """Whether a run's wait for data agrees with the verdict: at least 5 % of its time is waiting
    where data limits, less where compute does."""
    found = "data" if run.data_wait >= _NOTICED else "compute"
    return {
        "run": str(run.path),
        "steps": run.steps,
        "data_wait": run.data_wait,
        "limits": found,
        "agrees": found == limits,
    }


def _add_lines(results: Results, data: Mapping[int, DataRates], dispatch: DispatchRates) -> None:
    for length, rates in data.items():
        for name, rate in rates.as_json().items():
            metric = f"{name.replace('_', ' ')}, rows of {length}, one core"
            results.add(MARIN, metric, rate, "tokens/s")
    for name, rate in dispatch.parts.items():
        results.add(MARIN, f"dispatch: {name}", rate, _LAYER_RATE)
    for name, rate in dispatch.transports.items():
        results.add(MARIN, f"dispatch: {name}", rate, _LAYER_RATE)
