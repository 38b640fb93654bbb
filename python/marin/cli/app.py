"""`marin`: the commands, and how every one of them fails.

Each command lives in a module of its own that imports its part only when it runs, so `marin
--help` stays quick.
"""

import errno
import logging
import os
import sys

import typer

from marin.cli.bench_balance import (
    bench_balance,
    bench_compare,
    bench_dispatch,
    bench_history,
)
from marin.cli.bench_data import bench_mixture, bench_pack, bench_stream
from marin.cli.bench_dedup import bench_dedup
from marin.cli.datakit import app as datakit
from marin.cli.dedup import dedup
from marin.cli.doctor import doctor
from marin.cli.export import export
from marin.cli.generate import generate
from marin.cli.ladder import ladder
from marin.cli.mix import app as mix_app
from marin.cli.pack import pack
from marin.cli.params import params
from marin.cli.plan import plan
from marin.cli.quickstart import quickstart
from marin.cli.report import report
from marin.cli.simulate import simulate
from marin.cli.train import app as train
from marin.errors import MarinError

PIPE_CLOSED = 141
"""The exit code of a program that SIGPIPE ended."""
INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

_FULL = "the disk is full; make room, then the same command goes on from here"
_DENIED = "this user may not write there or read it; choose another place"
_OF_THE_DISK = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only; choose another place",
}
"""What the user can mend, by the number of the error."""

app = typer.Typer(
    name="marin",
    help="From raw documents to a trained mixture-of-experts model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# In the order of the data flow, which is the order in `marin --help`. Groups: app.add_typer.
app.command()(quickstart)
app.add_typer(datakit, name="datakit")
app.command()(dedup)
app.add_typer(mix_app, name="mix")
app.command()(pack)
app.command()(params)
app.command()(plan)
app.add_typer(train, name="train")
app.command()(generate)
app.command()(export)
app.add_typer(ladder)
app.command()(report)
app.add_typer(simulate, name="simulate")
app.command()(doctor)
bench = typer.Typer(help="Measure a part, also against other libraries.", no_args_is_help=True)
bench.command("dedup")(bench_dedup)
bench.command("mixture")(bench_mixture)
bench.command("pack")(bench_pack)
bench.command("stream")(bench_stream)
bench.command("dispatch")(bench_dispatch)
bench.command("balance")(bench_balance)
bench.command("compare")(bench_compare)
bench.command("history")(bench_history)
app.add_typer(bench, name="bench")


def main() -> None:
    """Runs the command line. A mistake of the user is one line on stderr and exit code 2.

    Where the reader of the output has gone, as in `marin ... | head`, it ends without a word.
    """
    _log_to_stderr()
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        if not _pipe_closed(error):
            raise
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(PIPE_CLOSED)


def _pipe_closed(error: BaseException | None) -> bool:
    """Whether `error` says so: typer and rich make an exit with code 1 of a closed pipe."""
    if isinstance(error, SystemExit) and error.code != 1:
        return False
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__
    return error is not None


def _run() -> None:
    try:
        app()
    except MarinError as error:
        print(f"marin: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"marin: {place}{_OF_THE_DISK[error.errno]}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes an exit of its own of Ctrl-C.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("marin: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _log_to_stderr() -> None:
    """What the package says and warns of looks like its errors, whatever a library configures."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("marin: %(message)s"))
    logger = logging.getLogger("marin")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs what it raises as well
