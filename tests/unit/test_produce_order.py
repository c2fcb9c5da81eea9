"""Batches of one connection reach the log in the order in which they were sent.

Also while the log is being opened: librdkafka takes a gap in the sequences for a fatal error.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.api.produce import produce
from brokerhouse.broker.led_partitions import LedPartitions
from brokerhouse.broker.log.block import PendingAppend
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.refused_batches import RefusedBatches
from brokerhouse.protocol._produce_request import ProduceMessage
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.versions import ApiKey
from tests.support.log_parts import make_log, make_topic
from tests.support.record_batches import Record, batch_of

TOPIC = make_topic("events")
LOG = make_log(TOPIC)


class Logs:
    """A log that is opened at some time."""

    def __init__(self) -> None:
        self.is_open = False

    def find(self, *_: object) -> PartitionLog | None:
        return LOG if self.is_open else None

    def may_serve(self) -> bool:
        return True


class Topics:
    def __init__(self, rng: random.Random) -> None:
        self.logs = Logs()
        self._random = rng

    def get(self, _: object) -> Any:
        return TOPIC

    by_id = get

    async def look_again(self) -> None:
        await turns(self._random.randrange(6))
        self.logs.is_open |= self._random.random() < 0.9


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def order_of(seed: int) -> list[int]:
    """The sequences in the order in which they reached the log."""
    rng = random.Random(seed)
    topics = Topics(rng)
    reached: list[int] = []

    def append(pending: PendingAppend) -> None:
        reached.append(pending.header.base_sequence)

    broker = SimpleNamespace(
        partitions=LedPartitions(cast(Any, topics)),
        topics=topics,
        refused_batches=RefusedBatches(),
        appender=SimpleNamespace(append=append),
    )
    header = RequestHeader(ApiKey.Produce, 9, 1, None)
    ctx = cast(RequestContext, SimpleNamespace(broker=broker, header=header, sender=None))
    sequence = 0
    waiting = []
    for _ in range(rng.randrange(3, 14)):
        for _ in range(rng.randrange(3)):
            batch = batch_of(
                Record(value=b"v"), producer_id=1, producer_epoch=0, base_sequence=sequence
            ).data
            part = SimpleNamespace(index=0, frame=batch, start=0, end=len(batch), records=batch)
            topic = SimpleNamespace(key=TOPIC.name, partition_data=[part])
            request = SimpleNamespace(transactional_id=None, acks=1, topic_data=[topic])
            waiting.append(asyncio.ensure_future(produce(ctx, cast(ProduceMessage, request))))
            sequence += 1
        topics.logs.is_open |= rng.random() < 0.15
        await turns(rng.randrange(3))
    await turns(100)
    assert len(waiting) == sequence
    return reached


async def test_no_batch_overtakes_another_while_their_log_is_opened() -> None:
    count = 0
    for seed in range(1000):
        reached = await order_of(seed)
        assert reached == sorted(reached), f"seed {seed}"
        count += len(reached)
    assert count > 1000
