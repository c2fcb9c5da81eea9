"""Transactions of one librdkafka producer, one after the other, each committed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Producer

RECORDS = 100
"""In each transaction."""
_VALUE = b"v" * 100
_LIMIT_S = 60.0
_WARM_UP = 50


@dataclass(frozen=True)
class Committed:
    """How long each transaction took, from begin to the answer of commit, ascending."""

    taken_ms: list[float]
    seconds: float

    @property
    def records(self) -> int:
        return len(self.taken_ms) * RECORDS

    @property
    def per_s(self) -> float:
        return len(self.taken_ms) / self.seconds


def commit_many(kafka: str, topic: str, seconds: float) -> Committed:
    """Commits one transaction after the other for this time."""
    producer = Producer(
        {"bootstrap.servers": kafka, "transactional.id": topic, "linger.ms": 0, "log_level": 3}
    )
    producer.init_transactions(_LIMIT_S)
    for _ in range(_WARM_UP):
        _commit(producer, topic)
    taken_ms: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        start = time.monotonic()
        _commit(producer, topic)
        taken_ms.append((time.monotonic() - start) * 1000)
    return Committed(sorted(taken_ms), time.monotonic() - began)


def _commit(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for _ in range(RECORDS):
        producer.produce(topic, _VALUE)
    producer.commit_transaction(_LIMIT_S)
