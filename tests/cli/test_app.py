"""How every command fails: one line on stderr, exit code 2, no traceback."""

import subprocess
import sys


def marin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marin.cli", *arguments], capture_output=True, text=True
    )


def test_help_lists_the_commands_and_loads_no_part() -> None:
    code = (
        "import sys; sys.argv = ['marin', '--help']\n"
        "from marin.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'jax', 'pyarrow', 'polars', 'wandb'} & set(sys.modules), 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "quickstart" in done.stdout


def test_an_unknown_command_exits_with_2() -> None:
    done = marin("no-such-command")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
