"""Batches that a lane does not decompress itself: order, turns, the budget, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.write_lease import EndlessSession, WriteLease
from brokerhouse.protocol.compression import compress
from brokerhouse.protocol.errors import (
    InvalidRecord,
    MessageTooLarge,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.log_parts import (
    LIMITS,
    ScriptedEngine,
    append,
    header_of,
    make_log,
    make_topic,
    plain,
    stored_values,
    tail_rows,
)
from tests.support.record_batches import Batch, Record, batch_of

MIB = 1 << 20
ROOM = 4 * MIB
SMALL_LIMITS = replace(LIMITS, decompressed_max_bytes=ROOM)


class Lanes:
    """An appender with one lane, and its budget: two of the largest batches."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.decompressions = Decompressions(2 * ROOM, SMALL_LIMITS)
        self.appender = Appender(
            engine,
            TailCache(64 * MIB),
            1,
            SMALL_LIMITS,
            WriteLease(EndlessSession(), ""),
            self.decompressions,
        )
        self.appender.start()

    async def close(self) -> None:
        await self.appender.close()
        self.decompressions.close()


@pytest.fixture
async def lanes(scripted: ScriptedEngine) -> AsyncIterator[Lanes]:
    made = Lanes(scripted)
    yield made
    scripted.gate.set()
    await made.close()
    assert made.decompressions.used_bytes == 0


def compressed(batch: Batch, codec: int = 4) -> bytes:
    return replace(batch, payload=compress(codec, batch.payload), attributes=codec).data


def large(records: int = 3, size: int = MIB - 100) -> bytes:
    """Far more than a lane decompresses itself."""
    return compressed(batch_of(*[Record(value=bytes(size))] * records))


async def test_batches_after_a_large_one_stay_in_order(
    engine: EmbeddedEngine, lanes: Lanes
) -> None:
    log = make_log()
    found = [
        append(lanes.appender, log, data)
        for data in (plain(b"a").data, large(), plain(b"b").data, large(2), plain(b"c").data)
    ]
    outcomes = await asyncio.gather(*found)
    assert [outcome.base_offset for outcome in outcomes] == [0, 1, 4, 5, 7]
    assert [row.offset for row in tail_rows(log)] == list(range(8))
    assert len(await stored_values(engine, log)) == 8


async def test_other_partitions_do_not_wait_for_large_batches(lanes: Lanes) -> None:
    other = make_log()
    bombs = [append(lanes.appender, make_log(), large()) for _ in range(20)]
    assert await append(lanes.appender, other, plain(b"x").data) == Appended(0, -1)
    assert not any(bomb.done() for bomb in bombs[4:])
    for offset in range(1, 4):  # turns: one block of large batches, then one of ordinary ones
        assert await append(lanes.appender, other, plain(b"x").data) == Appended(offset, -1)
    assert not bombs[-1].done()
    await asyncio.gather(*bombs)


async def test_the_memory_budget_is_not_exceeded_and_connections_take_turns(
    scripted: ScriptedEngine, lanes: Lanes
) -> None:
    class Connection:
        has_left = False

    greedy, polite = Connection(), Connection()
    order: list[object] = []
    done = asyncio.Event()

    def queue(sender: Connection) -> None:
        data = large()

        def told(outcome: Outcome) -> None:
            assert isinstance(outcome, Appended)
            assert lanes.decompressions.used_bytes <= 2 * ROOM
            order.append(sender)
            if len(order) == 11:
                done.set()

        lanes.appender.append(PendingAppend(make_log(), data, header_of(data), told, sender=sender))

    for _ in range(10):
        queue(greedy)
    queue(polite)
    await done.wait()
    assert order.index(polite) < 4


async def test_batches_that_cannot_be_accepted_are_refused_before_decompression(
    lanes: Lanes,
) -> None:
    cases = [
        (make_log(), Batch(compress(4, bytes(3 * MIB)), 5, attributes=4).data, InvalidRecord),
        (make_log(), large(2, 2 * ROOM), MessageTooLarge),
        (make_log(), compressed(plain(b"a" * (2 * ROOM))), MessageTooLarge),
        (make_log(), large(10), MessageTooLarge),
        (make_log(), Batch(compress(4, bytes(100)), 100_000, attributes=4).data, MessageTooLarge),
        (make_log(), Batch(large()[61:], 2, attributes=4).data, InvalidRecord),
        (make_log(), Batch(large()[61:], 4, attributes=4).data, InvalidRecord),
    ]
    for log, data, error in cases:
        with pytest.raises(error):
            await append(lanes.appender, log, data)
        assert lanes.decompressions.used_bytes == 0
        assert await append(lanes.appender, log, plain(b"x").data) == Appended(0, -1)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_a_record_may_be_as_large_as_decompressed_max_bytes_whatever_its_topic_accepts(
    lanes: Lanes, codec: int
) -> None:
    def of_letters(size: int) -> bytes:
        return compressed(plain(b"a" * size), codec)

    small = make_topic(configs={"max.message.bytes": str(len(of_letters(ROOM)))})
    # A batch of one record takes 71 bytes for its row, and its lengths and flags up to 20.
    assert await append(lanes.appender, make_log(small), of_letters(ROOM - 91)) == Appended(0, -1)
    with pytest.raises(MessageTooLarge, match=r"decompressed_max_bytes allows no more"):
        await append(lanes.appender, make_log(small), of_letters(ROOM - 70))


async def test_a_batch_whose_client_has_left_is_not_decompressed(
    engine: EmbeddedEngine, lanes: Lanes
) -> None:
    class Connection:
        has_left = False

    async def outcome_of(*, expects_answer: bool, log: PartitionLog) -> Outcome:
        sender = Connection()
        found: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        data = large()
        lanes.appender.append(
            PendingAppend(log, data, header_of(data), found.set_result, sender, expects_answer)
        )
        sender.has_left = True
        return await found

    log = make_log()
    assert isinstance(await outcome_of(expects_answer=True, log=log), RequestTimedOut)
    assert await outcome_of(expects_answer=False, log=log) == Appended(0, -1)


async def test_a_stop_stores_queued_large_batches(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    lanes = Lanes(scripted)
    log = make_log()
    found = [append(lanes.appender, log, data) for data in (large(), plain(b"x").data)]
    await asyncio.sleep(0)
    await lanes.close()
    assert [(await one).base_offset for one in found] == [0, 3]


async def test_a_lane_that_ends_refuses_waiting_large_batches_and_returns_their_memory(
    scripted: ScriptedEngine, lanes: Lanes
) -> None:
    log = make_log()
    scripted.gate.clear()
    found = [append(lanes.appender, log, large()) for _ in range(6)]
    await scripted.next_insert()
    lanes.appender.abandon()
    scripted.gate.set()
    outcomes = await asyncio.gather(*found, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[2:]] == [NotLeaderOrFollower] * 4


async def test_a_handed_over_partition_refuses_its_large_batches(
    scripted: ScriptedEngine, lanes: Lanes
) -> None:
    log, other = make_log(), make_log()
    found = [append(lanes.appender, log, large()) for _ in range(6)]
    kept = append(lanes.appender, other, large())
    await asyncio.sleep(0)
    await lanes.appender.release([log])
    outcomes = await asyncio.gather(*found, return_exceptions=True)
    assert isinstance(outcomes[-1], NotLeaderOrFollower)
    assert await kept == Appended(0, -1)
