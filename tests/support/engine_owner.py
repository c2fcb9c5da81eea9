"""A process that has a data directory open, to be killed in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.server_process import PROJECT
from tests.support.waiting import LIMIT_S


class EngineOwner:
    """Runs a script, whose argument is the directory; it and the test send each other lines."""

    def __init__(self, directory: Path, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
