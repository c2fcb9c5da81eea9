"""Many producers that send one small record in each request, each on a connection of its own.

Plain Produce requests from one process of its own, because a thousand Kafka clients would need all
cores for themselves.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
import time
from dataclasses import dataclass
from typing import Any

import uvloop
from kafka.protocol.producer import ProduceRequest

from bench.kafka.figures import percentile
from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.record_batches import Record, batch_of
from tests.support.wire import decode, frame, request_body

_PRODUCE_VERSION = 8  # the newest without a flexible header; it names the topic
_VALUE = b"v" * 100
_ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """`each_s`: seconds between two records of a producer; None: it only waits for the answer."""

    producers: int
    each_s: float | None


@dataclass(frozen=True, slots=True)
class Answers:
    records: int
    records_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_s: float
    """Of the producers."""


def ask_many(kafka: str, topic: str, partitions: int, asked: Asked, seconds: float) -> Answers:
    """Run the producers for so many seconds, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(theirs, kafka, topic, partitions, asked, seconds), daemon=True
    )
    process.start()
    theirs.close()
    try:
        answers: Answers = ours.recv()
    except EOFError:
        raise RuntimeError("the producers failed: see above") from None
    finally:
        process.join(_ANSWER_LIMIT_S)
    return answers


def _run(
    results: Any, kafka: str, topic: str, partitions: int, asked: Asked, seconds: float
) -> None:
    results.send(uvloop.run(_produce(kafka, topic, partitions, asked, seconds)))


async def _produce(
    kafka: str, topic: str, partitions: int, asked: Asked, seconds: float
) -> Answers:
    host, port = kafka.rsplit(":", 1)
    requests = [_request(topic, partition) for partition in range(partitions)]
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(asked.producers)]
    took: list[float] = []
    began, cpu_s = time.perf_counter(), time.process_time()

    async def producer(place: int) -> None:
        reader, writer = streams[place]
        due = began + place / asked.producers * (asked.each_s or 0.0)
        while max(due, time.perf_counter()) < began + seconds:
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            sent = time.perf_counter()
            writer.write(requests[place % partitions])
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            _check(await reader.readexactly(length))
            took.append(time.perf_counter() - sent)
            due += asked.each_s or 0.0

    async with asyncio.timeout(seconds + _ANSWER_LIMIT_S):
        await asyncio.gather(*(producer(place) for place in range(asked.producers)))
    elapsed = time.perf_counter() - began
    for _, writer in streams:
        writer.close()
    took.sort()
    return Answers(
        len(took),
        len(took) / elapsed,
        percentile(took, 50) * 1e3,
        percentile(took, 99) * 1e3,
        time.process_time() - cpu_s,
    )


def _request(topic: str, partition: int) -> bytes:
    """A Produce request of one record, as a frame."""
    now = time.time_ns() // 1_000_000
    records = batch_of(Record(value=_VALUE), base_timestamp=now, max_timestamp=now).data
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            data(
                name=topic,
                partition_data=[data.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )
    return frame(request_body(request, _PRODUCE_VERSION))


def _check(body: bytes) -> None:
    """Raise unless the record was stored. Only the error code is decoded, to save CPU."""
    (topic_bytes,) = struct.unpack_from(">h", body, 8)
    (error,) = struct.unpack_from(">h", body, 10 + topic_bytes + 4 + 4)
    if error:
        raise AssertionError(decode(APIS[ApiKey.Produce].response, _PRODUCE_VERSION, body)[1])
