"""Starts of a broker that cannot succeed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server_process import PROJECT


def start_that_fails(
    data_dir: Path, *flags: str, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit code, and what was printed on stderr."""
    command = [sys.executable, "-m", "brokerhouse", "serve", "--data-dir", str(data_dir)]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ready" not in done.stdout
    return done.returncode, done.stderr


def one_sentence(printed: str) -> str:
    """The error; all else is progress, and nothing is a traceback."""
    assert "Traceback" not in printed
    lines = [line for line in printed.splitlines() if not line.startswith("brokerhouse: ")]
    (line,) = (line for line in lines if not line.startswith(("Usage:", "Try ")) and line)
    return line
