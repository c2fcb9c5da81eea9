"""What people run beside Kafka to have its records in SQL: a consumer that inserts large blocks.

It inserts after 65,536 rows or 7.5 s, whichever comes first: the defaults of ClickHouse's Kafka
engine (kafka_max_block_size, stream_flush_interval_ms), which does not start in the embedded
ClickHouse. Its table is in an embedded ClickHouse of its own.
"""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import confluent_kafka

MAX_ROWS, MAX_S = 65_536, 7.5
_PROBE = b"probe "
_LIMIT_S = 120.0


def probe() -> bytes:
    """The value of a record that says when it was sent, on the clock that all processes share."""
    return _PROBE + struct.pack(">q", time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Sink:
    pid: int
    connection: Connection

    def finish(self, probes: int) -> list[float]:
        """Wait until so many probes are rows; the seconds from send to row of each."""
        self.connection.send(probes)
        found: list[float] = _receive(self.connection)
        return found


@contextmanager
def running_sink(kafka: str, topic: str, directory: Path) -> Iterator[Sink]:
    """A consumer of partition 0 of the topic, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, kafka, topic, str(directory)), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        _receive(ours)
        yield Sink(process.pid, ours)
    finally:
        ours.close()
        process.terminate()
        process.join()


def _receive(connection: Connection) -> Any:
    if not connection.poll(_LIMIT_S):
        raise TimeoutError(
            f"the consumer that inserts into SQL did not answer for {_LIMIT_S:.0f} s"
        )
    return connection.recv()


def _run(connection: Connection, kafka: str, topic: str, directory: str) -> None:
    from chdb import _chdb

    database = vars(_chdb)["connect"](directory)  # it has no type stubs
    database.query(
        "CREATE TABLE records (topic LowCardinality(String), partition Int32, offset Int64,"
        " timestamp_ms Int64, value String) ENGINE = MergeTree ORDER BY (topic, partition, offset)",
        "Null",
    )
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka, "group.id": "sink"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    connection.send("ready")
    took: list[float] = []
    wanted: int | None = None
    rows: list[bytes] = []
    sent: list[int] = []
    due = time.monotonic() + MAX_S
    while wanted is None or len(took) < wanted:
        for message in consumer.consume(10_000, 0.05):
            if message.error():
                raise confluent_kafka.KafkaException(message.error())
            value = message.value() or b""
            rows.append(_row_binary(topic, message, value))
            if value.startswith(_PROBE):
                sent.append(struct.unpack(">q", value.removeprefix(_PROBE))[0])
        if rows and (len(rows) >= MAX_ROWS or time.monotonic() >= due):
            insert = database.send_insert("INSERT INTO records", "RowBinary")
            database.insert_append(insert, b"".join(rows))
            database.insert_done(insert)
            took += [(time.monotonic_ns() - one) / 1e9 for one in sent]
            rows, sent, due = [], [], time.monotonic() + MAX_S
        if wanted is None and connection.poll():
            wanted = connection.recv()
    connection.send(took)
    consumer.close()
    database.close()


def _row_binary(topic: str, message: confluent_kafka.Message, value: bytes) -> bytes:
    _, timestamp_ms = message.timestamp()
    numbers = struct.pack("<iqq", message.partition(), message.offset(), timestamp_ms)
    return _sized(topic.encode()) + numbers + _sized(value)


def _sized(text: bytes) -> bytes:
    length, size = b"", len(text)
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return length + bytes([size]) + text
