"""One partition of `__consumer_offsets`, in memory, as its readers see it.

It begins with the current offsets and groups; then come the changes, with dense offsets. When most
of its records have been replaced by later ones, the current state is written once more at its end,
and all before that is dropped: a reader finds every key, as after Kafka's compaction.

The first offset is a time in microseconds, so a partition that is made anew, by this broker or by
another, begins above all that was read before. A fetch below the first offset reads from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.tail_cache import CachedBatch, PartitionTail
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.offsets_topic.records import group_record, offset_record
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import in_turns
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.protocol.plain_batches import PlainRecord, plain_batch

_PER_BATCH = 200
_GROUPS_PER_TURN = 1000
"""Groups, also those of other partitions, that are looked at before clients have their turn."""
_KEPT = 10_000
"""How many records that were replaced are kept, if those are not most of them."""
_NO_PRODUCER_IDS = 0


class CompactedTail(PartitionTail):
    """All batches of the partition; earlier offsets are a gap."""

    __slots__ = ()

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> list[bytes]:
        start = self.start_offset
        if start is None:
            return []
        return super().read(max(offset, start), max_bytes, at_least_one) or []

    def drop_below(self, offset: int) -> None:
        while (start := self.start_offset) is not None and start < offset:
            self.drop_first()


class OffsetsPartition(PartitionLog):
    """A fetch of what is not there any more reads from the start: that is compaction."""

    __slots__ = ()

    @property
    def first_fetchable(self) -> int:
        return 0


class OffsetsLog:
    """`follow` is to be called with every change of a group of this partition."""

    def __init__(
        self,
        topic: Topic,
        partition: int,
        epoch: int,
        coordinator: GroupCoordinator,
        has_group: Callable[[str], bool],
    ) -> None:
        """`coordinator` coordinates the groups of the partition, which `has_group` knows."""
        start = coordinator.offsets.next_version()
        self.log = OffsetsPartition(topic, partition, start, start, _NO_PRODUCER_IDS, epoch)
        self.log.tail = self._tail = CompactedTail()
        self.coordinator = coordinator
        self._has_group = has_group
        self._changes: list[PlainRecord] = []
        self._replaceable = 0
        """Records that were appended since the state was written."""
        self._replaceable_max = _KEPT
        self.filled = self._filling = self._start_filling()
        """Ends when the partition can be read."""

    def _start_filling(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._fill(), name=f"fill-{self.log}")

    def close(self) -> None:
        self._filling.cancel()

    def follow(self, record: PlainRecord) -> None:
        if not self._changes:
            asyncio.get_running_loop().call_soon(self._append_changes)
        self._changes.append(record)

    def _append_changes(self) -> None:
        changes, self._changes = self._changes, []
        self._append(changes)
        self._replaceable += len(changes)
        if self._replaceable > self._replaceable_max and self._filling.done():
            self._filling.result()
            self._filling = self._start_filling()

    def _append(self, records: list[PlainRecord]) -> None:
        log, base = self.log, self.log.high_watermark
        end = base + len(records)
        batch = plain_batch(base, log.leader_epoch, records)
        self._tail.append(CachedBatch(base, end - 1, batch))
        log.next_offset = end
        log.advance(end)

    async def _fill(self) -> None:
        """Write the current state at the end, and drop what is before it.

        Changes come in between: a record of the state is as new as any that was written before it.
        """
        first, count = self.log.high_watermark, 0
        self._replaceable = 0
        batch: list[PlainRecord] = []
        async for record in self._state():
            batch.append(record)
            if len(batch) == _PER_BATCH:
                count += len(batch)
                self._append(batch)
                batch = []
                await asyncio.sleep(0)
        if batch:
            count += len(batch)
            self._append(batch)
        self._replaceable_max = _KEPT + 2 * count
        self._tail.drop_below(first)
        self.log.begin_at(first)

    async def _state(self) -> AsyncIterator[PlainRecord]:
        """What is current at each step. Groups may come and go meanwhile."""
        offsets, cache, now_ms = self.coordinator.offsets, self.coordinator.cache, wall_ms()
        async for group_id in self._mine(offsets.groups()):
            for partition, committed in list(offsets.get(group_id).items()):
                yield offset_record(group_id, partition, committed, now_ms)
        async for group_id in self._mine([one.group_id for one in cache.groups()]):
            record = cache.get(group_id)
            if record is not None:
                yield group_record(record)

    async def _mine(self, group_ids: Collection[str]) -> AsyncIterator[str]:
        async for group_id in in_turns(group_ids, _GROUPS_PER_TURN):
            if self._has_group(group_id):
                yield group_id
