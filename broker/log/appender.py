"""Group commit: waiting appends are stored together, as one block, and only then acknowledged.

A partition always belongs to the same lane, and a lane runs one insert at a time, so a log never
has a gap. A lane takes its queued appends in order of arrival: it checks sequences, decompresses,
assigns offsets, builds one Native block in a thread (broker/log/block.py), inserts it, and
publishes it (broker/log/lane.py). Nothing is acknowledged from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from brokerhouse.broker.log.block import AppendLimits, PendingAppend
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.lane import Lane
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.write_lease import WriteLease
from brokerhouse.protocol.errors import NotLeaderOrFollower
from brokerhouse.storage.engine import Engine


class Appender:
    """All lanes of this broker; in a cluster, those of one session on one shard."""

    def __init__(
        self,
        engine: Engine,
        cache: TailCache,
        lanes: int,
        limits: AppendLimits,
        lease: WriteLease,
        decompressions: Decompressions,
    ) -> None:
        self.lanes = [Lane(n, engine, cache, limits, lease, decompressions) for n in range(lanes)]

    def start(self) -> None:
        """Start the lanes: what was queued before is stored now."""
        for lane in self.lanes:
            lane.start()

    def append(self, append: PendingAppend) -> None:
        """Queue one checked batch. Batches of a partition are stored in the order of these calls.

        Its producer is told `Appended`, or the `KafkaError` for this batch alone.
        """
        self._lane(append.partition).enqueue(append)

    async def settled(self) -> None:
        """Wait for the blocks that are being stored now.

        A partition that was closed before the call gets no rows after it.
        """
        await asyncio.gather(*(lane.settled() for lane in self.lanes))

    async def release(self, partitions: Collection[PartitionLog]) -> None:
        """Prepare to hand partitions over: refuse new appends, and wait for those in flight.

        Raises `NotLeaderOrFollower` if the lease ends first: a fence is needed then.
        """
        for partition in partitions:
            partition.close(NotLeaderOrFollower(f"Another broker takes over {partition}."))
        lanes = {self._lane(partition) for partition in partitions}
        await asyncio.gather(*(lane.release(frozenset(partitions)) for lane in lanes))

    def abandon(self) -> None:
        """The session is over: stop all lanes at once, even while an insert hangs."""
        for lane in self.lanes:
            lane.end("This broker leads no partition at the moment.")

    @property
    def has_ended(self) -> bool:
        """Whether a lane has ended, because of its lease or a bug: only a new session helps."""
        return any(lane.has_ended for lane in self.lanes)

    @property
    def resolved(self) -> tuple[int, ...]:
        """For each lane, how many block numbers are stored or burnt: a fence starts after them."""
        return tuple(lane.resolved for lane in self.lanes)

    def append_floor_ms(self) -> int:
        """Promises that from now on no row gets an append_time below the one returned."""
        floor_ms = min(lane.append_time_ms() for lane in self.lanes)
        for lane in self.lanes:
            lane.promised_floor_ms = max(lane.promised_floor_ms, floor_ms)
        return floor_ms

    async def no_row_before(self, time_ms: int) -> None:
        """Returns when no row can get an append_time below `time_ms` any more.

        Only the last call counts: a lower time replaces a higher one.
        """
        for lane in self.lanes:
            lane.append_time_floor_ms = time_ms
        await self.settled()

    def _lane(self, partition: PartitionLog) -> Lane:
        return self.lanes[(partition.topic_id.int + partition.partition) % len(self.lanes)]

    async def close(self) -> None:
        """Store what is queued, then stop."""
        await asyncio.gather(*(lane.close() for lane in self.lanes))
