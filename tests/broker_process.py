"""A real `brokerhouse serve` process for tests.

The process takes free ports, and keeps them over restarts, so that a client that was connected
finds it again. Everything it prints goes into one log file, over all its lives. Waiting is on its
output and on its exit, each with a limit.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
SQL_LIMIT_S = 120.0
READY = "ready "

started: list["BrokerProcess"] = []
"""Every broker of this test session, for a look into its log when a test fails."""


class BrokerError(Exception):
    """The process did not do what it was told; the message ends with what it printed last."""


class SqlError(Exception):
    """The broker's SQL interface answered with an error."""


class BrokerProcess:
    """One data directory and the process that serves it.

    `settings` are the broker's own setting names, given to it through its environment.
    """

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.settings = dict(settings or {})
        self.kafka = "127.0.0.1:0"
        self.http = "127.0.0.1:0"
        self.start_s = 0.0
        """How long the last start took, from exec to the ready line."""
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None
        self._ready: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._launched = 0.0
        started.append(self)

    @property
    def http_url(self) -> str:
        return f"http://{self.http}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when the broker said that it is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        assert not self.running, "started twice"
        environment = dict(os.environ)
        for name, value in self.settings.items():
            environment[f"BROKERHOUSE_{name.upper()}"] = value
        command = [sys.executable, "-m", "broker.cli", "serve", "--data-dir", str(self.data_dir)]
        command += ["--kafka", self.kafka, "--http", self.http]
        self._launched = time.monotonic()
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self._ready = queue.SimpleQueue()
        self._pump = threading.Thread(
            target=_copy_output,
            args=(self._process.stdout, self.log_path, self._ready),
            daemon=True,
        )
        self._pump.start()

    def await_ready(self) -> None:
        try:
            line = self._ready.get(timeout=START_LIMIT_S)
        except queue.Empty:
            self.kill()
            raise BrokerError(f"not ready after {START_LIMIT_S:.0f} s\n{self.log()}") from None
        if line is None:
            code = self._running().wait(STOP_LIMIT_S)
            raise BrokerError(f"ended with code {code} before it was ready\n{self.log()}")
        self.start_s = time.monotonic() - self._launched
        addresses = dict(word.split("=", 1) for word in line.removeprefix(READY).split())
        self.kafka, self.http = addresses["kafka"], addresses["http"]

    def stop(self) -> None:
        """SIGTERM; a clean exit is part of what the broker promises, so anything else fails."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(
                f"still there {STOP_LIMIT_S:.0f} s after SIGTERM\n{self.log()}"
            ) from None
        self._join()
        if code != 0:
            raise BrokerError(f"exit code {code} after SIGTERM\n{self.log()}")

    def kill(self, after_s: float = 0.0) -> None:
        """SIGKILL: the process gets no chance to finish anything."""
        process = self._running()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.kill()
        process.wait(STOP_LIMIT_S)
        self._join()

    def restart(self) -> None:
        self.stop()
        self.start()

    def await_topic(self, topic: str) -> None:
        """Until every broker there is knows the topic as it is now."""

    def coordinator(self, group: str) -> tuple[int, str]:
        """The node id and the address of the broker that looks after the group."""
        return 1, self.kafka

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log(self, start: int = 0, limit: int = 8000) -> str:
        """What the broker printed from byte `start` on; of much, the last `limit` bytes."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[start:][-limit:].decode(errors="replace")

    def sql(
        self,
        query: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        user: str | None = None,
        password: str = "",
    ) -> list[dict[str, Any]]:
        """The rows of a query's result. Needs no FORMAT; 64-bit integers come as ints."""
        arguments = {f"param_{name}": value for name, value in (parameters or {}).items()}
        arguments["default_format"] = "JSONEachRow"
        arguments["output_format_json_quote_64bit_integers"] = 0
        request = urllib.request.Request(
            f"{self.http_url}/?{urllib.parse.urlencode(arguments)}", data=query.encode()
        )
        if user is not None:
            request.add_header("X-ClickHouse-User", user)
            request.add_header("X-ClickHouse-Key", password)
        try:
            with urllib.request.urlopen(request, timeout=SQL_LIMIT_S) as response:
                return [json.loads(line) for line in response.read().splitlines()]
        except urllib.error.HTTPError as error:
            raise SqlError(error.read().decode(errors="replace")) from error

    def _running(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "never started"
        return self._process

    def _join(self) -> None:
        if self._pump is not None:
            self._pump.join(STOP_LIMIT_S)


def _copy_output(output: IO[str], log_path: Path, ready: "queue.SimpleQueue[str | None]") -> None:
    """Runs in a thread for as long as the process lives, so that its output never blocks it."""
    with output, log_path.open("a") as log:
        for line in output:
            log.write(line)
            log.flush()
            if line.startswith(READY):
                ready.put(line)
    ready.put(None)
