"""From send to row: how long until SQL finds a record.

Ten times a second a probe record is sent beside a steady load of a Java producer, on the same
partition. With brokerhouse, a SELECT over HTTP asks for its offset as soon as it is acknowledged,
and again until it is found. With Kafka, a consumer inserts the records (sink.py); a probe is
visible when its insert returns.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import confluent_kafka

from bench.kafka.figures import Figure, percentile
from bench.kafka.loads import Plan, full_rate, java_producer_command
from bench.kafka.servers import Server, create_topic, settle
from bench.kafka.sink import MAX_S, Sink, probe, running_sink
from bench.machine import cpu_seconds
from tests.support.broker_process import BrokerProcess

_RATES = (1_000, 20_000)
_EACH_S = 0.1
_LEAST_S = 4 * MAX_S
_LIMIT_S = 120.0


@dataclass
class _Probes:
    """Seconds of each probe: from send to acknowledgement, and from send to row."""

    acknowledged_s: list[float] = field(default_factory=list)
    visible_s: list[float] = field(default_factory=list)
    found_at_once: int = 0


def visible(server: Server, plan: Plan) -> Iterator[Figure]:
    """From send to the moment when SQL finds the record, while others of 100 B arrive steadily."""
    seconds = MAX_S + 1 if plan.quick else max(plan.seconds, _LEAST_S)
    create_topic(server, "warm-up")
    full_rate(server, plan, "100 B", "warm-up", 100)
    for rate in _RATES:
        case, topic = f"{rate:,} records/s", f"visible-{rate}"
        create_topic(server, topic)
        settle(server, plan.quiet_s)
        if isinstance(server, BrokerProcess):
            with _steady(server, topic, rate, seconds):
                load = partial(_brokerhouse, server, topic, seconds)
                probes, figures = _watched(case, server, [server.pid], topic, load)
            share = probes.found_at_once / len(probes.acknowledged_s) * 100
            yield Figure(case, "first statement after the acknowledgement finds it, %", share)
        else:
            with (
                tempfile.TemporaryDirectory(prefix="bench-kafka-sink-") as folder,
                running_sink(server.kafka, topic, Path(folder, "data")) as sink,
                _steady(server, topic, rate, seconds),
            ):
                load = partial(_kafka, server, sink, topic, seconds)
                probes, figures = _watched(case, server, [server.pid, sink.pid], topic, load)
        for what, found in (
            ("send to acknowledgement", probes.acknowledged_s),
            ("send to row", probes.visible_s),
        ):
            ascending = sorted(found)
            yield Figure(case, f"{what}, p50 ms", percentile(ascending, 50) * 1e3)
            yield Figure(case, f"{what}, p99 ms", percentile(ascending, 99) * 1e3)
        yield from figures


def _watched(
    case: str, server: Server, pids: Sequence[int], topic: str, load: Callable[[], _Probes]
) -> tuple[_Probes, list[Figure]]:
    """What the probes found; the rate of records and the cores of the processes meanwhile."""
    records, cpu_s, began = _end(server, topic), sum(map(cpu_seconds, pids)), time.monotonic()
    probes = load()
    cpu_s, seconds = sum(map(cpu_seconds, pids)) - cpu_s, time.monotonic() - began
    return probes, [
        Figure(case, "records/s reached", (_end(server, topic) - records) / seconds),
        Figure(case, "cores of the broker, and of the consumer that inserts", cpu_s / seconds),
    ]


@contextmanager
def _steady(server: Server, topic: str, rate: int, seconds: float) -> Iterator[None]:
    """A Java producer of so many records per second. Begins when its first records have arrived."""
    count = int(rate * (seconds + 60))
    command = java_producer_command(server, topic, 100, count, throughput=rate)
    with tempfile.TemporaryFile() as printed:
        producer = subprocess.Popen(command, stdout=printed, stderr=printed)
        try:
            _await_records(server, topic)
            yield
            if producer.poll() is not None:
                printed.seek(0)
                raise RuntimeError(f"the producer ended: {printed.read().decode()[-4000:]}")
        finally:
            producer.kill()
            producer.wait()


def _await_records(server: Server, topic: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while _end(server, topic) == 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record arrived within {_LIMIT_S:.0f} s")
        time.sleep(0.1)


def _end(server: Server, topic: str) -> int:
    """The end offset of the topic's partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.kafka, "group.id": "look"})
    partition = confluent_kafka.TopicPartition(topic, 0)
    _, end = consumer.get_watermark_offsets(partition, _LIMIT_S)
    consumer.close()
    return end


def _send_probes(
    server: Server, topic: str, seconds: float, probes: _Probes, then: Callable[[float, int], None]
) -> None:
    """Send a probe each 0.1 s. `then` gets the time of the send and the acknowledged offset."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.kafka, "linger.ms": 0, "acks": "all"}
    )
    acknowledged: list[tuple[float, int]] = []

    def on_delivery(
        error: confluent_kafka.KafkaError | None, stored: confluent_kafka.Message
    ) -> None:
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        offset = stored.offset()
        assert offset is not None
        acknowledged.append((time.monotonic(), offset))

    began = time.monotonic()
    due = began
    while due < began + seconds:
        time.sleep(max(due - time.monotonic(), 0.0))
        sent = time.monotonic()
        producer.produce(topic, probe(), partition=0, on_delivery=on_delivery)
        if producer.flush(_LIMIT_S):
            raise TimeoutError(f"a record was not acknowledged within {_LIMIT_S:.0f} s")
        at, offset = acknowledged.pop()
        probes.acknowledged_s.append(at - sent)
        then(sent, offset)
        due = max(due + _EACH_S, time.monotonic())


def _brokerhouse(server: BrokerProcess, topic: str, seconds: float) -> _Probes:
    probes = _Probes()
    with closing(HTTPConnection(server.http, timeout=_LIMIT_S)) as sql:

        def ask(sent: float, offset: int) -> None:
            statements = 1
            while not _is_row(sql, topic, offset):
                if time.monotonic() > sent + _LIMIT_S:
                    raise TimeoutError(f"SQL did not find offset {offset} in {_LIMIT_S:.0f} s")
                statements += 1
            probes.visible_s.append(time.monotonic() - sent)
            probes.found_at_once += statements == 1

        _send_probes(server, topic, seconds, probes, ask)
    return probes


def _is_row(sql: HTTPConnection, topic: str, offset: int) -> bool:
    sql.request(
        "POST",
        "/",
        "SELECT count() FROM messages"
        f" WHERE topic = '{topic}' AND partition = 0 AND offset = {offset} FORMAT TSV",
    )
    response = sql.getresponse()
    answer = response.read().decode()
    if response.status != 200:
        raise RuntimeError(f"SQL answered {response.status}: {answer}")
    return answer.strip() == "1"


def _kafka(server: Server, sink: Sink, topic: str, seconds: float) -> _Probes:
    probes = _Probes()
    _send_probes(server, topic, seconds, probes, lambda _sent, _offset: None)
    probes.visible_s = sink.finish(len(probes.acknowledged_s))
    return probes
