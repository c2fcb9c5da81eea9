"""A server in a process of its own that a test may stop, kill, pause and start again.

It prints into one log file, also after restarts. It keeps its ports, so that clients find it again.
Every wait is for a condition, with a limit.
"""

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import tokens

PROJECT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
READY_LIMIT_S = 180.0
"""Long enough for a busy machine; no test of start-up time uses it."""
LOOK_AGAIN_S = 0.02
ENDED_JAVA = (0, 143)
"""Exit codes of a Java process that was told to end."""
_PORTS_OF_A_PROCESS = 500
_claims: list[socket.socket] = []


class ServerProcessError(Exception):
    """The process did not start or stop as it should; the message ends with its last output."""


class ServerProcess:
    """One server. A subclass says how it is started and when it is ready."""

    def __init__(self, log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log_path = log_path
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._printed_before = 0

    def command(self) -> Sequence[str]:
        """The command line, with the ports of the last run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Environment variables in addition to those of the tests."""
        return self._environment

    def is_ready(self) -> bool:
        """Whether it can be used now; called until it returns true."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        return self._running().pid

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        assert not self.running, "started twice"
        self._printed_before = self.log_size()
        command = self.command()
        tokens.take_for(command)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def await_ready(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while not self.is_ready():
            if not self.running:
                code = self._running().returncode
                raise ServerProcessError(
                    f"ended with code {code} before it was ready\n{self.log()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise ServerProcessError(f"not ready after {READY_LIMIT_S:.0f} s\n{self.log()}")
            time.sleep(LOOK_AGAIN_S)

    def stop(self) -> None:
        """SIGTERM, and a clean exit."""
        process = self._running()
        process.terminate()
        try:
            code = process.wait(self.stop_limit_s)
        except subprocess.TimeoutExpired:
            busy_with = self.busy_with()
            self.kill()
            raise ServerProcessError(
                f"still there {self.stop_limit_s:.0f} s after SIGTERM\n{self.log()}\n{busy_with}"
            ) from None
        if code not in self.clean_exit_codes:
            raise ServerProcessError(f"exit code {code} after SIGTERM\n{self.log()}")

    clean_exit_codes: Sequence[int] = (0,)
    stop_limit_s = LIMIT_S

    def busy_with(self) -> str:
        """What it does now, as it says itself: shown when it does not end."""
        return ""

    def kill(self, after_s: float = 0.0) -> None:
        """SIGKILL, without time to finish anything. Does nothing if it has ended already."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(after_s)
            self._process.kill()
            self._process.wait(LIMIT_S)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the system still accepts connections, but nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def printed(self) -> str:
        """Everything that it has printed since its last start."""
        return self.log_path.read_bytes()[self._printed_before :].decode(errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log(self, start: int = 0, limit: int = 8000) -> str:
        """What it printed from byte `start` on, at most the last `limit` bytes."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[start:][-limit:].decode(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "never started"
        return self._process


def free_port() -> int:
    """A TCP port of the loopback for a server that starts later, and maybe more than once.

    No other process of the tests takes it. The kernel gives it to nobody either: it chooses ports
    for clients, and for servers that listen on port 0, above these.
    """
    ports = _ports()
    for _ in range(_PORTS_OF_A_PROCESS):
        port = next(ports)
        with contextlib.suppress(OSError), socket.socket() as probe:  # else it is in use
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerProcessError("each port that this process may take is in use")


@functools.cache
def _ports() -> Iterator[int]:
    """The ports of this process, from first to last and again."""
    for first in range(16_000, 32_000, _PORTS_OF_A_PROCESS):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # else another process has them
            claim.bind(f"\0brokerhouse-test-ports-{first}")  # no file; gone with this process
            _claims.append(claim)
            return itertools.cycle(range(first, first + _PORTS_OF_A_PROCESS))
        claim.close()
    raise ServerProcessError("other processes have all ports for tests")
