"""How every command fails: one line on stderr, exit code 2, no traceback."""

import errno
import os
import subprocess
import sys

import pytest

from marin.cli import app


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


def test_a_reader_that_goes_away_is_no_error() -> None:
    for arguments in (["--help"], ["mix", "check", "harrier-2026.08.18", "--json"]):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "marin.cli", *arguments]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_what_the_user_can_mend_of_a_disk_is_one_line_and_other_system_errors_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/data/part")

    def fail() -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as exit_:
        app.main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == (
        "marin: /data/part: the disk is full; make room, then the same command goes on from here\n"
    )
    for number, says in ((errno.EACCES, "may not write there"), (errno.EROFS, "read-only")):
        error = OSError(number, os.strerror(number), "/data/part")
        with pytest.raises(SystemExit):
            app.main()
        assert says in capsys.readouterr().err
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        app.main()


def test_an_interrupt_is_one_line_and_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in (KeyboardInterrupt(), SystemExit(130)):

        def interrupted(end: BaseException = end) -> None:
            raise end

        monkeypatch.setattr(app, "app", interrupted)
        with pytest.raises(SystemExit) as exit_:
            app.main()
        assert exit_.value.code == 130
        assert capsys.readouterr().err.startswith("marin: interrupted; the same command")
