"""Clients in processes of their own: `python -m bench.soak.clients KIND LIBRARY ADDRESS ...`.

`produce TOPIC PARTITION RATE` writes numbered records, `compact TOPIC RATE` records of a few keys,
`member TOPIC GROUP` reads as a member of a group and commits, `audit TOPIC PARTITIONS` reads all
records and checks their numbers. Each goes on until its standard input is closed. The last line
that it prints is a JSON object with what it did; `problems` are sentences, there should be none.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import confluent_kafka
import kafka

_TICK_S = 0.05
_PATIENCE_S = 600.0
"""A broker that is being restarted is waited for; a soak is over long before records expire."""
_FILLER = b"." * 180
_KEYS = 500
_COMMIT_EVERY_S = 1.0
_PROBLEMS_MAX = 20

stopped = threading.Event()
Delivered = Callable[[str | None, int], None]
"""Called with an error, or with the offset that the broker gave; -1 if the client has not heard."""


def value_of(number: int) -> bytes:
    return b"%020d" % number + _FILLER


def number_of(value: bytes | None) -> int:
    """The number in a record of `value_of`; -1 if it has none."""
    return int(value[:20]) if value is not None and value[:20].isdigit() else -1


class Sender(Protocol):
    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes, delivered: Delivered
    ) -> None: ...

    def flush(self) -> None:
        """Wait until every record was delivered or has failed."""


class ConfluentSender:
    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": int(_PATIENCE_S * 1000),
                "linger.ms": 5,
                "log_level": 0,
                "reconnect.backoff.max.ms": 1000,
            }
        )

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes, delivered: Delivered
    ) -> None:
        def report(error: confluent_kafka.KafkaError | None, sent: confluent_kafka.Message) -> None:
            offset = sent.offset()
            delivered(None if error is None else str(error), -1 if offset is None else offset)

        while True:
            try:
                self._producer.produce(
                    topic, value, key=key, partition=partition, on_delivery=report
                )
            except BufferError:
                self._producer.poll(_TICK_S)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        self._producer.flush(_PATIENCE_S)


class KafkaPythonSender:
    def __init__(self, address: str) -> None:
        patience_ms = int(_PATIENCE_S * 1000)
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            enable_idempotence=True,
            acks="all",
            retries=2**31 - 1,
            linger_ms=5,
            delivery_timeout_ms=patience_ms,
            max_block_ms=patience_ms,
        )

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes, delivered: Delivered
    ) -> None:
        sent = self._producer.send(topic, value, key=key, partition=partition)
        sent.add_callback(lambda at: delivered(None, at.offset))
        sent.add_errback(lambda error: delivered(repr(error), -1))

    def flush(self) -> None:
        self._producer.flush(_PATIENCE_S)


SENDERS: dict[str, Callable[[str], Sender]] = {
    "confluent-kafka": ConfluentSender,
    "kafka-python": KafkaPythonSender,
}


class _Report:
    """Numbers and problems, printed at the end. Clients report from threads of their own."""

    def __init__(self, **numbers: Any) -> None:
        self.numbers: dict[str, Any] = numbers
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.numbers[name] += count

    def problem(self, text: str) -> None:
        with self._lock:
            if len(self.problems) < _PROBLEMS_MAX:
                self.problems.append(text)

    def print(self) -> None:
        print(json.dumps({**self.numbers, "problems": self.problems}), flush=True)


def _ticks(rate: float) -> Iterable[int]:
    """How many records are due, at every tick, until this client is to stop."""
    began, done = time.monotonic(), 0
    while not stopped.wait(_TICK_S):
        due = int((time.monotonic() - began) * rate)
        yield due - done
        done = due


def produce(library: str, address: str, topic: str, partition: str, rate: str) -> _Report:
    """Record n is at offset n, or a record was lost or doubled."""
    sender, place = SENDERS[library](address), int(partition)
    report = _Report(sent=0, acknowledged=0)

    def send(number: int) -> None:
        def delivered(error: str | None, offset: int) -> None:
            if error is not None:
                report.problem(f"{library}: record {number} of {topic}-{place} failed: {error}")
                stopped.set()
            else:
                report.add("acknowledged")
                if offset not in (-1, number):
                    report.problem(f"{library}: record {number} of {topic}-{place} is at {offset}")

        sender.send(topic, place, None, value_of(number), delivered)
        report.add("sent")

    number = 0
    for due in _ticks(float(rate)):
        for _ in range(due):
            send(number)
            number += 1
    sender.flush()
    return report


def compact(library: str, address: str, topic: str, rate: str) -> _Report:
    """Records of few keys: each replaces an earlier one."""
    sender = SENDERS[library](address)
    report = _Report(sent=0, acknowledged=0)

    def delivered(error: str | None, _: int) -> None:
        if error is None:
            report.add("acknowledged")
        else:
            report.problem(f"{library}: a record of {topic} failed: {error}")

    number = 0
    for due in _ticks(float(rate)):
        for _ in range(due):
            sender.send(topic, 0, b"key-%d" % (number * 7919 % _KEYS), value_of(number), delivered)
            report.add("sent")
            number += 1
    sender.flush()
    return report


def member(library: str, address: str, topic: str, group: str) -> _Report:
    report = _Report(read=0, commits=0)
    read = {"confluent-kafka": _confluent_member, "kafka-python": _kafka_python_member}[library]
    read(address, topic, group, report)
    return report


def _confluent_member(address: str, topic: str, group: str, report: _Report) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "partition.assignment.strategy": "range",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    committed_s = time.monotonic()
    while not stopped.is_set():
        found = consumer.consume(1000, 0.2)
        report.add("read", sum(one.error() is None for one in found))
        if time.monotonic() - committed_s >= _COMMIT_EVERY_S:
            committed_s = time.monotonic()
            try:
                consumer.commit(asynchronous=False)
                report.add("commits")
            except confluent_kafka.KafkaException:
                continue  # a rebalance or a restart: what was not committed is read again
    consumer.close()


def _kafka_python_member(address: str, topic: str, group: str, report: _Report) -> None:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10_000,
        partition_assignment_strategy=(kafka.coordinator.assignors.range.RangePartitionAssignor,),
    )
    committed_s, is_committed = time.monotonic(), True
    while not stopped.is_set():
        found = consumer.poll(timeout_ms=200, max_records=1000)
        report.add("read", sum(map(len, found.values())))
        is_committed = is_committed and not found
        if not is_committed and time.monotonic() - committed_s >= _COMMIT_EVERY_S:
            committed_s = time.monotonic()
            try:
                consumer.commit()
            except kafka.errors.KafkaError:
                continue
            is_committed = True
            report.add("commits")
    consumer.close()


def audit(library: str, address: str, topic: str, partitions: str) -> _Report:
    """Read every record of every partition in order; the number of each is its offset."""
    assert library == "confluent-kafka"
    count = int(partitions)
    report = _Report(read=0, ends=[0] * count)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "audit",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, one, 0) for one in range(count)])
    ends = report.numbers["ends"]
    while not stopped.is_set():
        for one in consumer.consume(10_000, 0.2):
            place, offset = one.partition(), one.offset()
            if one.error() is not None or place is None or offset is None:
                continue  # the broker is being restarted
            report.add("read")
            if offset != ends[place]:
                report.problem(f"after {topic}-{place} {ends[place] - 1} came {offset}")
            if (number := number_of(one.value())) != offset:
                report.problem(f"{topic}-{place} has record {number} at offset {offset}")
            ends[place] = offset + 1
        print(json.dumps({"ends": ends}), flush=True)
    consumer.close()
    return report


KINDS: dict[str, Callable[..., _Report]] = {
    "produce": produce,
    "compact": compact,
    "member": member,
    "audit": audit,
}


def _until_told() -> None:
    sys.stdin.read()
    stopped.set()


def main() -> None:
    kind, *arguments = sys.argv[1:]
    logging.disable()  # a broker that is killed is expected
    threading.Thread(target=_until_told, daemon=True).start()
    KINDS[kind](*arguments).print()


if __name__ == "__main__":
    main()
