"""The command `brokerhouse` as a person uses it: what it prints and its exit code.

A command runs in this process, as a process of its own takes 0.8 s of processor time to import its
modules. `in_a_process` runs a real one: for commands that serve, and for one test of each family.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from click.testing import CliRunner

from brokerhouse.broker.cli.main import main
from tests.support.server_process import PROJECT

COMMAND = [sys.executable, "-m", "brokerhouse"]
LIMIT_S = 60.0
WIDTH = "100"

Ended = subprocess.CompletedProcess[str]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of its own, and with a fixed width."""
    kept = {name: value for name, value in os.environ.items() if "BROKERHOUSE_" not in name}
    return {**kept, "COLUMNS": WIDTH, **variables}


def in_a_process(*arguments: str, stdin: str = "", **variables: str) -> Ended:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def run(*arguments: str, stdin: str = "", **variables: str) -> Ended:
    """Runs it in this process, and raises what would be a traceback."""
    unset = dict.fromkeys(name for name in os.environ if "BROKERHOUSE_" in name)
    with _warnings_on_stderr(), _umask_kept():
        result = CliRunner(env={**unset, "COLUMNS": WIDTH, **variables}).invoke(
            main, arguments, input=stdin, prog_name="brokerhouse"
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(list(arguments), result.exit_code, result.stdout, result.stderr)


@contextmanager
def _umask_kept() -> Iterator[None]:
    """A command that creates files for a data directory sets it for its whole process."""
    before = os.umask(0o022)
    os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Python prints warnings of a library on stderr, unless pytest listens to them."""
    handler = logging.lastResort
    assert handler is not None
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def output(
    *arguments: str, stdin: str = "", how: Callable[..., Ended] = run, **variables: str
) -> str:
    """What a command prints on stdout; it must succeed and print nothing on stderr."""
    result = how(*arguments, stdin=stdin, **variables)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def complaint(code: int, *arguments: str, how: Callable[..., Ended] = run, **variables: str) -> str:
    """The one sentence of a command that fails with `code`."""
    result = how(*arguments, **variables)
    assert result.returncode == code, result
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")
