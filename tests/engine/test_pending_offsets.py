"""Offsets of transactions: shown when they are committed, also if their client or broker ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.messages import Client, Committer, OffsetCommit
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import TransactionCoordinatorFenced
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.row_lane import RowLane
from tests.support.log_parts import LANES

GROUP, TOPIC, TOPIC_ID = "group", "events", UUID(int=1)
PRODUCER = Producer(7, 0)
COMMITTER = Committer("", None, -1, Client("client", "/127.0.0.1"))


def offset_of(partition: int, offset: int) -> OffsetCommit:
    return OffsetCommit(TOPIC, TOPIC_ID, partition, offset, -1, "", None)


@asynccontextmanager
async def started(engine: EmbeddedEngine) -> AsyncIterator[tuple[PendingOffsets, CommittedOffsets]]:
    """As after a start of the broker."""
    clock = Clock()
    rows = RowLane(engine, LANES - 1, uuid4())
    rows.start()
    offsets = CommittedOffsets(engine, rows, 1, clock)
    await offsets.load(lambda _: True)
    pending = PendingOffsets(engine, rows, offsets, 1, clock)
    await pending.load(lambda _: True)
    yield pending, offsets
    await rows.close()


def shown(offsets: CommittedOffsets) -> dict[int, int]:
    return {partition: one.offset for (_, partition), one in offsets.get(GROUP).items()}


async def test_transactional_offsets_are_unstable_until_the_commit(engine: EmbeddedEngine) -> None:
    async with started(engine) as (pending, offsets):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5), offset_of(1, 6)])
        assert (shown(offsets), set(pending.unstable(GROUP))) == ({}, {(TOPIC, 0), (TOPIC, 1)})
    async with started(engine) as (pending, offsets):
        assert set(pending.unstable(GROUP)) == {(TOPIC, 0), (TOPIC, 1)}, "after a start, too"
        for _ in range(2):
            await pending.end(GROUP, PRODUCER, commit=True, raises_epoch=False)
            assert (shown(offsets), list(pending.unstable(GROUP))) == ({0: 5, 1: 6}, [])
    async with started(engine) as (pending, offsets):
        assert (shown(offsets), list(pending.unstable(GROUP))) == ({0: 5, 1: 6}, [])


async def test_offsets_of_an_aborted_transaction_never_become_visible(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (pending, offsets):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5)])
        await pending.end(GROUP, PRODUCER, commit=False, raises_epoch=False)
    async with started(engine) as (pending, offsets):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(1, 6)])
        await pending.end(GROUP, PRODUCER, commit=True, raises_epoch=False)
        assert shown(offsets) == {1: 6}


async def test_offsets_sent_by_a_client_that_disconnected_end_with_their_transaction(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (pending, offsets):
        sending = asyncio.create_task(pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5)]))
        await asyncio.sleep(0)  # it waits for its row
        sending.cancel()
        await asyncio.wait([sending])
        await pending.end(GROUP, PRODUCER, commit=False, raises_epoch=False)
    async with started(engine) as (pending, offsets):
        assert list(pending.unstable(GROUP)) == []
        await pending.end(GROUP, PRODUCER, commit=True, raises_epoch=False)
        assert shown(offsets) == {}


async def test_a_transactional_offset_does_not_replace_a_newer_commit(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (pending, offsets):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5)])
        await offsets.commit(GROUP, COMMITTER, [offset_of(0, 9)])
        await pending.end(GROUP, PRODUCER, commit=True, raises_epoch=False)
        assert shown(offsets) == {0: 9}
    async with started(engine) as (_, offsets):
        assert shown(offsets) == {0: 9}


async def test_a_repeated_marker_does_not_end_the_next_transaction(
    engine: EmbeddedEngine,
) -> None:
    """In version 2 the marker has the epoch that the next transaction has."""
    following = Producer(PRODUCER.producer_id, 1)
    async with started(engine) as (pending, offsets):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5)])
        await pending.end(GROUP, following, commit=True, raises_epoch=True)
        await pending.add(GROUP, COMMITTER, following, [offset_of(0, 9)])
        await pending.end(GROUP, following, commit=True, raises_epoch=True)
        assert (shown(offsets), list(pending.unstable(GROUP))) == ({0: 5}, [(TOPIC, 0)])


async def test_a_marker_of_an_earlier_coordinator_is_refused(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (pending, _):
        for coordinator_epoch in (1, 2, 2):
            pending.check_coordinator(PRODUCER.producer_id, coordinator_epoch)
        with pytest.raises(TransactionCoordinatorFenced):
            pending.check_coordinator(PRODUCER.producer_id, 1)
        pending.check_coordinator(PRODUCER.producer_id + 1, 1)


async def test_groups_that_move_to_another_broker_take_their_pending_offsets_along(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (before, _), started(engine) as (after, _):
        await before.add(GROUP, COMMITTER, PRODUCER, [offset_of(0, 5)])
        before.verifying[GROUP, PRODUCER.producer_id] = object()
        before.unload(lambda group_id: group_id == GROUP)
        assert (list(before.unstable(GROUP)), before.verifying) == ([], {})
        await after.load(lambda group_id: group_id == "another")
        assert list(after.groups_with(PRODUCER.producer_id)) == []
        await after.load(lambda group_id: group_id == GROUP)
        assert list(after.groups_with(PRODUCER.producer_id)) == [GROUP]


async def test_offsets_of_many_partitions_are_deleted_without_stopping_the_event_loop(
    engine: EmbeddedEngine,
) -> None:
    async with started(engine) as (pending, _):
        await pending.add(GROUP, COMMITTER, PRODUCER, [offset_of(n, 5) for n in range(20_000)])
        before_s = time.thread_time()
        await pending.forget_topic(TOPIC, TOPIC_ID)
        assert time.thread_time() - before_s < 2
        assert not pending.is_used(GROUP)
