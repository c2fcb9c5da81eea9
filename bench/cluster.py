"""`make bench-cluster`: three brokers on two embedded engines, with default settings.

Idle: the cores that each process uses. Producing: kafka-producer-perf-test with its defaults, and
one record at a time; at the end the same producer with a single broker. Failover: one broker is
killed while a client sends a record to every partition again and again; how long the partitions of
that broker take none. All processes and the clients share the machine's cores. Prints Markdown
tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka.loads import java_producer
from bench.kafka.servers import Reachable
from bench.machine import compiled_client, cpu_seconds, machine, run_client, running_broker
from brokerhouse.broker.settings.config import Settings
from tests.support.cluster_processes import Broker, Cluster

_PARTITIONS = 24
_SIZES = (("1 KB", 1000), ("100 B", 100))
_SEND_EVERY_S = 0.05
_SILENCE_MAX_S = 60.0
_MOVED_MAX_S = 120.0
_STEADY_S = 5.0
"""So long all partitions take records before a broker is killed."""
_SETTLED_S = 10.0
"""So long after the start the slots are given to their brokers: not part of what idle costs."""
_CHANGED_FOR_TESTS = (
    "group_min_session_timeout_ms",
    "group_initial_rebalance_delay_ms",
    "retention_check_interval_ms",
)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Three brokers on two engines, with default settings."""
    defaults = {name: str(Settings.model_fields[name].default) for name in _CHANGED_FOR_TESTS}
    timeout_ms = int(Settings.model_fields["broker_session_timeout_ms"].default)
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        cluster = Cluster(Path(folder), settings=defaults, session_timeout_ms=timeout_ms)
        with closing(cluster):
            cluster.start()
            yield cluster


def _create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def _idle(cluster: Cluster, seconds: float) -> list[tuple[str, str]]:
    processes = [*cluster.engines, *cluster.brokers]
    before = [cpu_seconds(part.pid) for part in processes]
    time.sleep(seconds)
    return [
        (f"idle, {part.name}", f"{(cpu_seconds(part.pid) - was) / seconds:.3f} cores")
        for part, was in zip(processes, before, strict=True)
    ]


def _java_defaults(server: Reachable, records: int) -> list[tuple[str, str]]:
    rows = []
    for name, size in _SIZES:
        topic = f"defaults-{size}"
        _create(server.kafka, topic, 1)
        java_producer(server, topic, size, records // 4)
        result = java_producer(server, topic, size, records)
        rows.append((f"Java defaults, {name}", f"{result.records_per_s:,.0f} records/s"))
    return rows


def _alone(folder: Path, records: int) -> list[tuple[str, str]]:
    with running_broker(folder / "alone", {}) as broker:
        found = _java_defaults(broker, records)
    return [(f"{what}, one broker alone", figure) for what, figure in found]


def _produce(cluster: Cluster, client: Path, records: int) -> list[tuple[str, str]]:
    rows = _java_defaults(cluster.brokers[0], records)
    _create(cluster.bootstrap, "single", 1)
    single = run_client(
        client, "latency", cluster.brokers[0].kafka, "single", 2000, 100, ("linger.ms=0",)
    )
    shares = ("p50", "p99")
    return rows + [
        (f"one record at a time, {one}", f"{single[f'{one}_ms']:.1f} ms") for one in shares
    ]


class _Sender:
    """Sends a record to every partition again and again, and knows when each was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 2}
        )
        self._topic = topic
        self._acknowledged_at: list[list[float]] = [[] for _ in range(_PARTITIONS)]

    def send_until(self, end: float, *, wanted: Sequence[int] = (), since: float = 0.0) -> None:
        """Send until this time, or until each of the wanted partitions has taken a record."""
        while time.monotonic() < end:
            for partition in range(_PARTITIONS):
                self._producer.produce(
                    self._topic, b"x", partition=partition, callback=partial(self._told, partition)
                )
            time.sleep(_SEND_EVERY_S)
            self._producer.poll(0)
            if wanted and all(self.first_after(one, since) is not None for one in wanted):
                return

    def first_after(self, partition: int, since: float) -> float | None:
        return next((at for at in self._acknowledged_at[partition] if at > since), None)

    def leaders(self) -> dict[int, int]:
        found = self._producer.list_topics(self._topic, 30).topics[self._topic].partitions
        return {number: one.leader for number, one in found.items()}

    def close(self) -> None:
        self._producer.flush(_SILENCE_MAX_S)

    def _told(self, partition: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._acknowledged_at[partition].append(time.monotonic())


def _failover(cluster: Cluster, rounds: int) -> list[tuple[str, str]]:
    _create(cluster.bootstrap, "failover", _PARTITIONS)
    sender = _Sender(cluster, "failover")
    silences = []
    with closing(sender):
        for number in range(rounds):
            broker = cluster.brokers[number % len(cluster.brokers)]
            _await_leader(sender, broker)
            silences.append(_silence(sender, broker))
    shown = ", ".join(f"{one:.1f}" for one in silences)
    return [
        ("failover, median", f"{median(silences):.1f} s"),
        ("failover, each round, its slowest partition", f"{shown} s"),
    ]


def _await_leader(sender: _Sender, broker: Broker) -> None:
    """Send until the broker leads partitions: they move back some time after its start."""
    deadline = time.monotonic() + _MOVED_MAX_S
    sender.send_until(time.monotonic() + _STEADY_S)
    while broker.node_id not in sender.leaders().values():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{broker} leads no partition after {_MOVED_MAX_S:.0f} s")
        sender.send_until(time.monotonic() + 1)


def _silence(sender: _Sender, broker: Broker) -> float:
    """Seconds from the broker's end until every partition that it led takes records again."""
    led = [partition for partition, leader in sender.leaders().items() if leader == broker.node_id]
    broker.kill()
    since = time.monotonic()
    sender.send_until(since + _SILENCE_MAX_S, wanted=led, since=since)
    broker.start()
    firsts = [sender.first_after(partition, since) for partition in led]
    return max(_SILENCE_MAX_S if first is None else first - since for first in firsts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=600_000, help="of each Java run")
    parser.add_argument("--rounds", type=int, default=5, help="brokers that are killed")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    options = parser.parse_args()
    print(f"{machine()}\n\n| | |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        client = compiled_client(Path(folder))
        with running_cluster() as cluster:
            time.sleep(_SETTLED_S)
            _show(_idle(cluster, options.idle))
            _show(_produce(cluster, client, options.records))
            _show(_failover(cluster, options.rounds))
        _show(_alone(Path(folder), options.records))


def _show(rows: Sequence[tuple[str, str]]) -> None:
    for what, figure in rows:
        print(f"| {what} | {figure} |", flush=True)


if __name__ == "__main__":
    main()
