"""The command `brokerhouse` as a person uses it: a process, what it prints and its exit code."""

import os
import subprocess
import sys

from tests.support.server_process import PROJECT

COMMAND = [sys.executable, "-m", "broker.cli"]
LIMIT_S = 60.0


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of its own, and with a fixed width."""
    kept = {name: value for name, value in os.environ.items() if "BROKERHOUSE_" not in name}
    return {**kept, "COLUMNS": "100", **variables}


def run(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
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


def output(*arguments: str, stdin: str = "", **variables: str) -> str:
    """What a command prints on stdout; it must succeed and print nothing on stderr."""
    result = run(*arguments, stdin=stdin, **variables)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def complaint(code: int, *arguments: str, **variables: str) -> str:
    """The one sentence of a command that fails with `code`."""
    result = run(*arguments, **variables)
    assert result.returncode == code, result
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")
