"""The job `feed`: in a process of its own, which tests kill, and in that of the tests."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from types import TracebackType

from brokerhouse.spark_jobs import feed
from tests.spark.history import run_job
from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.process_session import signal_session
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER

LIMIT_S = 180


class FeedJob:
    """Starts with `with`, and is killed at its end."""

    def __init__(self, broker: BrokerProcess, *arguments: str, target: str | None = None) -> None:
        """`target`: URL of the ClickHouse that has the table; the broker's own, if not given."""
        self._command = [
            sys.executable,
            *shlex.split("-m brokerhouse jobs run feed"),
            *arguments,
            *shlex.split(f"--bootstrap {broker.kafka} --http {target or broker.http_url}"),
            *shlex.split("--master local[2] --jars"),
            ",".join(tools.spark_source_jars()),
        ]
        if target is None:
            self._command += ["--user", USER, "--password", PASSWORD]

    def __enter__(self) -> FeedJob:
        self.process = subprocess.Popen(
            self._command,
            cwd=PROJECT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        printed, _ = self.process.communicate()
        if printed:
            print(printed)

    def signal(self, number: int) -> None:
        """To the driver with its Java and its workers."""
        signal_session(self.process.pid, number)

    def ends(self, code: int = 0) -> str:
        """Wait for the end of the job. Returns what it printed."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == code, printed
        return printed


def run_feed(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    """Run the job to its end, on the test's Spark session. Returns what it printed.

    With `--once` or `--dry-run`: a stream would call this process back (test_stream.py).
    """
    jars = ",".join(tools.spark_source_jars())
    ended = run_job(
        feed.command, broker.http_url, *arguments, "--bootstrap", broker.kafka, "--jars", jars
    )
    assert ended.code == code, ended
    return ended.stdout + ended.stderr
