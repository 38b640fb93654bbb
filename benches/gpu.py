"""Checks and times every kernel on this machine's GPU, then trains `d768`; see benches/gpu.sh.

Needs JAX, flax and numpy alone. Writes one JSON object: machine, and results as a list of
{tool, version, metric, value, unit, runs}, where `runs` are all measured seconds. What fails is
named, and the rest still measured: a machine with a GPU may not come again.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import gpu_train
import jax

from marin.compat import lowered_for_cuda
from marin.kernels import measure
from marin.kernels.combine_rows import bench as combine_rows
from marin.kernels.grouped_swiglu import bench as grouped_swiglu
from marin.kernels.permute_rows import bench as permute_rows
from marin.kernels.rank_in_group import bench as rank_in_group


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and time the GPU kernels, train d768.")
    parser.add_argument(
        "--dry-run", action="store_true", help="small shapes on a CPU, kernels in the interpreter"
    )
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--profile", type=Path, help="where a trace of three training steps goes")
    options = parser.parse_args()
    device = jax.devices()[0]
    if not options.dry_run and device.platform != "gpu":
        print(f"gpu.sh: JAX sees {device.platform}, no GPU; --dry-run rehearses", file=sys.stderr)
        return 1
    name = "dry-run" if options.dry_run else device.device_kind.replace(" ", "-").lower()
    out = options.out or Path(__file__).parent / "results" / f"gpu-{name}.json"
    report = Report(device.device_kind, options.dry_run, out)
    report.measure_machine()
    shape = measure.SMALL if options.dry_run else measure.HERO
    for op in (permute_rows, combine_rows, rank_in_group, grouped_swiglu):
        for case in op.cases(shape):
            report.attempt(case.op, lambda case=case: report.add(case))
    report.attempt("train d768", lambda: gpu_train.bench(report, options.profile))
    print(f"\nwritten: {out}")
    for failure in report.failures:
        print(f"gpu.sh: {failure}", file=sys.stderr)
    return 1 if report.failures else 0


class Report:
    """Measured lines, printed as they come and written after every operation."""

    def __init__(self, machine: str, dry_run: bool, out: Path) -> None:
        self.machine, self.dry_run, self.out = machine, dry_run, out
        self.runs = 2 if dry_run else 20
        self.results: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.bandwidth = self.rate = 0.0

    def attempt(self, what: str, work: Any) -> bool:
        """Whether the work was done; why not is said at the end."""
        try:
            work()
        except Exception as error:
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            self.failures.append(f"{what} failed: {reason}")
            print(f"  {self.failures[-1]}")
            return False
        finally:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return True

    def measure_machine(self) -> None:
        self.bandwidth = measure.copy_bandwidth(1 << 20 if self.dry_run else 1 << 32)
        self.rate = measure.matrix_rate(64 if self.dry_run else 8192)
        print(
            f"{self.machine}: copies at {self.bandwidth / 1e9:.0f} GB/s, bfloat16 products at "
            f"{self.rate / 1e12:.1f} TFLOP/s"
        )
        self.line("xla", "copy bandwidth", self.bandwidth, "bytes/s")
        self.line("xla", "bfloat16 matrix rate", self.rate, "FLOP/s")

    def add(self, case: measure.Case) -> None:
        ours = "interpret" if self.dry_run else "pallas_gpu"
        if self.dry_run:
            lowered_for_cuda(case.check("pallas_gpu"), *case.arguments)
        actual, expected = (
            jax.jit(case.check(backend))(*case.arguments) for backend in (ours, "reference")
        )
        error = measure.largest_error(actual, expected)
        del actual, expected
        self.line("marin", f"{case.op}: largest error", error, "of the largest entry")
        print(f"\n{case.op}: largest error {error:.1e} (allowed {case.tolerance:.0e})")
        if not error <= case.tolerance:
            self.failures.append(f"{case.op} differs from its reference by {error:.1e}")
        mine = self.time("marin", case, case.run(ours))
        for tool, rival in case.rivals.items():
            self.attempt(
                f"{case.op} by {tool}", lambda t=tool, r=rival: self.compare(t, case, r, mine)
            )

    def compare(self, tool: str, case: measure.Case, rival: Any, mine: float) -> None:
        theirs = self.time(tool, case, rival)
        self.line("marin", f"{case.op}: speed over {tool}", theirs / mine, "times")
        print(f"  {theirs / mine:.2f} times as fast as {tool}")

    def time(self, tool: str, case: measure.Case, function: Any) -> float:
        runs = measure.seconds(function, *case.arguments, runs=self.runs)
        median = statistics.median(runs)
        self.line(tool, f"{case.op}: time", median, "s", runs)
        shares = []
        for what, amount, best in (
            ("copy bandwidth", case.moved_bytes, self.bandwidth),
            ("matrix rate", case.flops, self.rate),
        ):
            if amount:
                share = amount / median / best
                self.line(tool, f"{case.op}: share of the {what}", share, "fraction")
                shares.append(f"{share:.0%} of the {what}")
        print(f"  {tool:12} {median * 1e3:9.3f} ms  {', '.join(shares)}")
        return median

    def line(
        self, tool: str, metric: str, value: float, unit: str, runs: list[float] | None = None
    ) -> None:
        self.results.append(
            {
                "tool": tool,
                "version": _version(tool),
                "metric": metric,
                "value": value,
                "unit": unit,
                "runs": runs or [],
            }
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "dry_run": self.dry_run,
            "jax": jax.__version__,
            "failures": self.failures,
            "results": self.results,
        }


def _version(tool: str) -> str:
    if tool == "tokamax":
        import tokamax

        return str(getattr(tokamax, "__version__", "unknown"))
    return f"jax {jax.__version__}"


if __name__ == "__main__":
    sys.exit(main())
