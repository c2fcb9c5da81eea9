"""`brokerhouse groups` with --watch, piped and on a terminal, while the broker stops and starts."""

import os
import pty
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, LIMIT_S, complaint, environment, output
from tests.support.group_commands import (
    node,
)
from tests.support.group_consumer import consuming
from tests.support.server_process import PROJECT


class Watching:
    """A command with --watch whose output is piped: lines as they come."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "groups", *arguments],
            cwd=PROJECT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def until(self, *words: str) -> None:
        """Reads on to a line that has exactly these words."""
        while self._lines.get(timeout=LIMIT_S).split() != list(words):
            pass

    def until_line_with(self, text: str) -> None:
        while text not in self._lines.get(timeout=LIMIT_S):
            pass

    def stop(self) -> tuple[int, str]:
        """Ctrl-C; the exit code and what stands on stderr."""
        assert self._process.stderr is not None
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code, self._process.stderr.read()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


@contextmanager
def watching(*arguments: str) -> Iterator[Watching]:
    watch = Watching(*arguments)
    try:
        yield watch
    finally:
        watch.kill()


def test_a_watched_list_follows_its_groups_until_ctrl_c(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    at = node(broker, stopped_group)
    with watching("list", "--watch", "0.1", *to) as watch:
        watch.until(stopped_group, "Empty", "consumer", "0", at)
        with consuming(broker, stopped_group, filled) as consumer:
            consumer.values_to_the_end()
            watch.until(stopped_group, "Stable", "consumer", "range", "1", at)
        watch.until(stopped_group, "Empty", "consumer", "0", at)
        assert watch.stop() == (0, "")


def test_a_watched_group_is_shown_again_after_the_broker_restarts(
    own_broker: Callable[..., BrokerProcess], group: str, topic: str
) -> None:
    own = own_broker()
    to = ("--bootstrap", own.kafka)
    output("topics", "create", topic, *to)
    output("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute", *to)
    with watching("describe", group, "--watch=0.1", *to) as watch:
        watch.until("state", "Empty")
        own.stop()
        watch.until_line_with(f"no broker at {own.kafka} (Connection refused)")
        own.start()
        watch.until("state", "Empty")
        assert watch.stop() == (0, "")


def test_a_watch_on_a_terminal_draws_over_its_last_frame(
    broker: BrokerProcess, stopped_group: str, to: tuple[str, str]
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "groups", "describe", stopped_group, "--watch", "0.1", *to],
        cwd=PROJECT,
        env=environment(TERM="xterm"),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    printed = b""
    try:
        # Up one line and erase: how a frame is taken away.
        while printed.count(b"\x1b[1A\x1b[2K") < 20:
            assert select.select([ours], [], [], LIMIT_S)[0], printed
            printed += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait(LIMIT_S)
        os.close(ours)
    assert printed.count(b"coordinator") > 1


def test_a_watch_of_an_unknown_group_ends_with_an_error(to: tuple[str, str]) -> None:
    assert complaint(1, "groups", "describe", "nobody", "--watch", "1", *to) == (
        "group nobody does not exist"
    )
