"""Thousands of clients that ask for much and never read, and what they do to memory and to others.

    python -m bench.attack --connections 5000 --seconds 10

A polite client, a process of its own, writes one record after the other and reads it back: its
latency is measured before the attack and during it. Connections are opened first, and then all ask
at once; those who ask run with lower priority than the server. `--server Kafka` attacks Apache
Kafka. Descriptors: the limit of this shell (`ulimit -Hn`) must allow them, twice.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest

from bench.kafka.servers import BROKERHOUSE, KAFKA, Server, started
from bench.machine import machine
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of
from tests.support.wire import Wire, frame, request_body

_MIB = 1 << 20
_TOPICS = 20
_PARTITIONS = 50

Asked = Callable[[Target, int], bytes]


def _framed(request: ApiMessage, version: int) -> bytes:
    return frame(request_body(request, version))


def _fetch(target: Target, offset: int, times: int) -> bytes:
    return _framed(messages.fetch(target, offset, partition_max_bytes=50 * _MIB), 4) * times


def _long_poll(target: Target, number: int) -> bytes:
    request = messages.fetch(
        target, 0, partition_max_bytes=50 * _MIB, min_bytes=2**31 - 1, max_wait_ms=600_000
    )
    return _framed(request, 4)


KINDS: Mapping[str, Asked] = {
    "fetch": lambda target, number: _fetch(target, 0, 1),
    "pipelined": lambda target, number: _fetch(target, 0, 50),
    "elsewhere": lambda target, number: _fetch(target, number, 3),
    "long-poll": _long_poll,
    "metadata": lambda target, number: _framed(MetadataRequest(topics=None), 9) * 20,
    "half-frame": lambda target, number: frame(bytes(200_000), 1_000_000),
}


class Polite:
    """Writes a record and reads it back, in a process of its own, until `close`."""

    def __init__(self, kafka: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._taken_ms, theirs = spawn.Pipe(duplex=False)
        self._stop = spawn.Event()
        self._process = spawn.Process(target=_be_polite, args=(kafka, theirs, self._stop))
        self._process.start()
        theirs.close()
        self._taken_ms.recv()  # it has begun

    def figures(self) -> str:
        """The round trips since the last call."""
        taken: list[float] = []
        failure = ""
        while not failure and self._taken_ms.poll():
            try:
                taken.append(self._taken_ms.recv())
            except EOFError:
                failure = "and then it failed"
        if len(taken) < 2:
            return f"{len(taken)} round trips {failure}"
        p99 = statistics.quantiles(taken, n=100)[98]
        middle = statistics.median(taken)
        return (
            f"{len(taken)} round trips, p50 {middle:.1f} ms, p99 {p99:.1f} ms,"
            f" slowest {max(taken):.0f} ms {failure}"
        )

    def close(self) -> None:
        self._stop.set()
        self._process.join(60)
        self._process.kill()


@dataclass(frozen=True)
class _Address:
    kafka: str


def _be_polite(kafka: str, taken_ms: Connection, stop: Event) -> None:
    with Wire(_Address(kafka)) as wire:
        target = messages.create_topic(wire, "polite")
        batch = batch_of(Record(value=b"v" * 100), max_timestamp=messages.TIME_MS).data
        offset = 0
        while not stop.wait(0.005):
            began = time.monotonic()
            wire.ask(messages.produce(target, batch), 9)
            wire.ask(messages.fetch(target, offset), 12)
            offset += 1
            taken_ms.send((time.monotonic() - began) * 1000)


def fill(server: Server, stored_bytes: int, batch_bytes: int) -> Target:
    with Wire(server) as wire:
        for number in range(_TOPICS):
            messages.create_topic(wire, f"topic-{number}", _PARTITIONS)
        target = messages.create_topic(wire, "large")
        value = os.urandom(batch_bytes - 100)
        batch = batch_of(Record(value=value), max_timestamp=messages.TIME_MS)
        produce = _framed(messages.produce(target, batch.data), 9)
        count = stored_bytes // batch_bytes
        for first in range(0, count, 50):
            batches = min(50, count - first)
            wire.send(produce * batches)
            for _ in range(batches):
                wire.receive()
        if isinstance(server, BrokerProcess):
            server.sql("SELECT count() FROM messages")  # nothing waits in the journal then
    return target


def attack(server: Server, args: argparse.Namespace) -> None:
    stored = args.stored_mb * _MIB // args.batch_bytes
    target = fill(server, args.stored_mb * _MIB, args.batch_bytes)
    kinds = [KINDS[name] for name in args.kinds.split(",")]
    requests = [
        kinds[number % len(kinds)](target, number * 7 % stored)
        for number in range(args.connections)
    ]
    polite = Polite(server.kafka)
    os.nice(10)  # the crowd is on other machines
    polite.figures()
    time.sleep(args.calm_seconds)
    print(f"calm: RSS {server.rss_bytes() >> 20} MB, {polite.figures()}", flush=True)
    host, port = server.kafka.split(":")
    crowd: list[socket.socket] = []
    for _ in range(args.connections):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((host, int(port)))
        one.setblocking(False)
        crowd.append(one)
    time.sleep(1)
    before = server.rss_bytes()
    print(f"{len(crowd)} open connections: RSS {before >> 20} MB, {polite.figures()}", flush=True)
    for one, asked in zip(crowd, requests, strict=True):
        with suppress(OSError):
            one.send(asked)
    most = 0
    end = time.monotonic() + args.seconds
    while time.monotonic() < end and server.running:
        most = max(most, server.rss_bytes())
        if most > args.give_up_mb * _MIB:
            print("given up: too much memory")
            break
        for one in crowd[::10]:
            with suppress(OSError):
                one.recv(1)
        time.sleep(0.1)
    print(f"attacked: RSS {most >> 20} MB at most (+{(most - before) >> 20}),", end=" ")
    print(polite.figures(), flush=True)
    kernel = Path("/proc/net/sockstat").read_text().partition("TCP:")[2].splitlines()[0]
    print(f"kernel: {int(kernel.split()[-1]) * 4096 >> 20} MB of sockets")
    if isinstance(server, BrokerProcess):
        print(f"closed as slow: {server.log().count('read nothing')} lines of the log")
    for one in crowd:
        one.close()
    time.sleep(1)
    polite.figures()
    time.sleep(args.calm_seconds)
    print(f"after it: RSS {server.rss_bytes() >> 20} MB, {polite.figures()}")
    polite.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--calm-seconds", type=float, default=3)
    parser.add_argument("--stored-mb", type=int, default=110)
    parser.add_argument("--batch-bytes", type=int, default=10_000)
    parser.add_argument("--give-up-mb", type=int, default=10_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--server", choices=(BROKERHOUSE, KAFKA), default=BROKERHOUSE)
    parser.add_argument("settings", nargs="*", help="name=value of the broker")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(machine())
    settings = dict(setting.split("=", 1) for setting in args.settings)
    with started(args.server, settings) as server:
        attack(server, args)


if __name__ == "__main__":
    main()
