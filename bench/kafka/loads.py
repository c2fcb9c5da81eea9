"""Loads on a server: Kafka's own perf tools and `client.c`, and the CPU time that both sides took.

A load is bounded by time. client.c stops by the clock; ProducerPerformance takes a number of
records only, so a warm-up run finds how many the server takes in that time.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.kafka.figures import Consumed, Figure, Produced, consumed, produced
from bench.kafka.servers import Reachable, Server, java_tool, name_of, settle
from bench.machine import cpu_seconds, run_client

T = TypeVar("T")

_FAILED = re.compile(r"^\S*Exception\b|\] ERROR ", re.MULTILINE)
"""A stack trace, or a line of the log. What the client tries again is a warning."""

_FIRST_BYTES = 2_000_000
_RUNS_MAX, _LONG_ENOUGH = 5, 0.75
"""A run that is over before this share of its time is repeated with more records."""
WARM_UP_SHARE = 0.25
"""How long the run before a measured run lasts, which warms up the server, as a share of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how large loads are.

    `records`: no run sends more. `quiet_s`: the longest wait for a server to finish its work after
    a load. `rates`: what each server took of a load when it was last measured; it sizes the next
    run.
    """

    client: Path
    seconds: float
    records: int
    quiet_s: float
    quick: bool
    rates: dict[tuple[str, str], float] = field(default_factory=dict)

    def count(self, records_per_s: float, seconds: float) -> int:
        return max(1, min(self.records, int(records_per_s * seconds)))


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds: of the server during the load, and until it was quiet again; of the clients."""

    server_s: float
    settled_s: float
    clients_s: float

    def per_million(self, case: str, records: float) -> list[Figure]:
        return [
            Figure(case, "broker's CPU s per million", self.settled_s / records * 1e6),
            Figure(case, "client's CPU s per million", self.clients_s / records * 1e6),
        ]


def watched(server: Server, plan: Plan, load: Callable[[], T]) -> tuple[T, Used]:
    """What the load returns, and the CPU time of the server and of the clients that it starts."""
    before, clients_before = cpu_seconds(server.pid), _children_s()
    result = load()
    clients_s, during_s = _children_s() - clients_before, cpu_seconds(server.pid) - before
    settle(server, plan.quiet_s)
    return result, Used(during_s, cpu_seconds(server.pid) - before, clients_s)


def _children_s() -> float:
    """CPU time of child processes that have ended. The server has not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_tool(command: Sequence[str]) -> str:
    """What a command prints; shows its errors and raises when it fails.

    The perf tools end with 0 even if records were not stored, but print the exceptions.
    """
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode or _FAILED.search(result.stderr):
        sys.stderr.write(f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}\n")
        raise subprocess.CalledProcessError(result.returncode, command)
    return result.stdout


def java_producer_command(
    server: Reachable, topic: str, size: int, count: int, *, throughput: int = -1, warmup: int = 0
) -> Sequence[str]:
    """ProducerPerformance with its defaults.

    They are acks=all, idempotent, batches of 16 KB, 5 requests in flight.
    """
    what = ("--topic", topic, "--num-records", str(count), "--record-size", str(size))
    pace = ("--throughput", str(throughput), *(("--warmup-records", str(warmup)) if warmup else ()))
    return (*java_tool("ProducerPerformance"), "--bootstrap-server", server.kafka, *what, *pace)


def java_producer(
    server: Reachable, topic: str, size: int, count: int, *, throughput: int = -1, warmup: int = 0
) -> Produced:
    command = java_producer_command(
        server, topic, size, count, throughput=throughput, warmup=warmup
    )
    return produced(run_tool(command))


def java_consumer(server: Server, topic: str, count: int) -> Consumed:
    """ConsumerPerformance with its defaults, until it has `count` records."""
    what = ("--topic", topic, "--num-records", str(count), "--timeout", "60000")
    tool = (*java_tool("ConsumerPerformance"), "--bootstrap-server", server.kafka, *what)
    result = consumed(run_tool(tool))
    if result.records < count:
        raise AssertionError(f"{name_of(server)}: {result.records:,} of {count:,} records came")
    return result


def full_rate(server: Server, plan: Plan, case: str, topic: str, size: int) -> float:
    """Records per second that a Java producer reaches in a short run, which warms up the server.

    A run that is over too soon shows how fast a producer starts, so a longer one follows.
    """
    seconds = plan.seconds * WARM_UP_SHARE
    least = _FIRST_BYTES / size
    rate = max(plan.rates.get((name_of(server), case), least), least)
    for _ in range(_RUNS_MAX):
        warm = java_producer(server, topic, size, plan.count(rate, seconds))
        if warm.seconds >= seconds * _LONG_ENOUGH:
            return warm.records_per_s
        rate = max(rate, warm.records_per_s)
    return rate


def full_speed(
    server: Server, plan: Plan, case: str, topic: str, size: int
) -> tuple[Produced, Used]:
    """A Java producer at full speed for about `plan.seconds`."""
    rate = full_rate(server, plan, case, topic, size)
    for _ in range(_RUNS_MAX):
        count = plan.count(rate, plan.seconds)
        result, used = watched(server, plan, partial(java_producer, server, topic, size, count))
        rate = plan.rates[name_of(server), case] = result.records_per_s
        if result.seconds >= plan.seconds * _LONG_ENOUGH or count == plan.records:
            break
    return result, used


def c_client(
    server: Server,
    plan: Plan,
    mode: str,
    topic: str,
    size: int,
    properties: Sequence[str],
    count: int | None = None,
) -> dict[str, float]:
    """`client.c` on librdkafka, for `count` records or, without a count, for `plan.seconds`."""
    limit = () if count is not None else (f"seconds={plan.seconds}",)
    return run_client(
        plan.client, mode, server.kafka, topic, count or plan.records, size, (*properties, *limit)
    )
