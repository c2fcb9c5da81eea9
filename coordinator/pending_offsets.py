"""Offsets that were sent to transactions which have not ended: durable, but not shown yet.

They are rows before they are answered. When the transaction is committed they become commits of
the group, with the versions that they were given when they arrived: an older one never hides a
newer commit, and doing it twice changes nothing. Meanwhile their partitions are unstable: whoever
asks for stable offsets has to wait (KIP-447).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from common.clock import Clock
from coordinator.messages import Client, Committer, OffsetCommit, TopicPartition
from coordinator.offsets import CommittedOffsets
from coordinator.tables import TRANSACTION_OFFSETS
from coordinator.transaction_states import Producer
from storage.engine import Engine
from storage.row_lane import RowLane, TableRows

_READ = """
SELECT
    group_id, producer_id, producer_epoch, topic, toString(topic_id), partition, offset,
    leader_epoch, metadata, member_id, client_id, client_host, generation,
    toUnixTimestamp64Milli(commit_time), version
FROM transaction_offsets FINAL
WHERE NOT ended
ORDER BY version
"""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What one request sent."""

    epoch: int
    committer: Committer
    commits: tuple[OffsetCommit, ...]
    version: int
    time_ms: int


class PendingOffsets:
    """What open transactions have sent to the groups of this broker."""

    def __init__(
        self,
        engine: Engine,
        rows: RowLane,
        offsets: CommittedOffsets,
        node_id: int,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._offsets = offsets
        self._node_id = node_id
        self._clock = clock
        self._sent: defaultdict[str, dict[int, list[_Sent]]] = defaultdict(dict)

    async def load(self) -> None:
        """Read what had not ended. Raises `EngineError`."""
        for row in await self._engine.rows(_READ):
            (
                group_id, producer_id, epoch, topic, topic_id, partition, offset, leader_epoch,
                metadata, member_id, client_id, host, generation, time_ms, version,
            ) = row  # fmt: skip
            committer = Committer(member_id, None, generation, Client(client_id, host))
            commit = OffsetCommit(
                topic, UUID(topic_id), partition, offset, leader_epoch, metadata, None
            )
            sent = _Sent(epoch, committer, (commit,), version, time_ms)
            self._sent[group_id].setdefault(producer_id, []).append(sent)

    async def add(
        self,
        group_id: str,
        committer: Committer,
        producer: Producer,
        commits: Sequence[OffsetCommit],
    ) -> None:
        """Store offsets of a transaction, which goes on meanwhile. Raises `EngineError`."""
        if not commits:
            return
        producer_id, epoch = producer
        latest = {(commit.topic, commit.partition): commit for commit in commits}
        sent = _Sent(
            epoch,
            committer,
            tuple(latest.values()),
            self._offsets.next_version(),
            self._clock.wall_ms(),
        )
        # Known before it is stored, and also if the client leaves: it ends with its transaction.
        self._sent[group_id].setdefault(producer_id, []).append(sent)
        stored = self._rows.put(self._row(group_id, producer_id, sent, ended=False))
        stored.add_done_callback(partial(self._stored, group_id, producer_id, sent))
        await asyncio.shield(stored)

    async def end(self, group_id: str, producer_id: int, *, commit: bool) -> None:
        """The producer's transaction ends: show what it sent, or drop it. Raises `EngineError`.

        May be called again.
        """
        sent = tuple(self._sent.get(group_id, {}).get(producer_id, ()))
        if commit:
            for one in sent:
                await self._offsets.commit(
                    group_id, one.committer, one.commits, version=one.version
                )
        for one in sent:
            await self._rows.store(self._row(group_id, producer_id, one, ended=True))
            self._drop(group_id, producer_id, one)

    def unstable(self, group_id: str) -> Collection[TopicPartition]:
        """Partitions whose offset may change when a transaction ends."""
        by_producer = self._sent.get(group_id)
        if not by_producer:
            return ()
        return {
            (commit.topic, commit.partition)
            for all_sent in by_producer.values()
            for sent in all_sent
            for commit in sent.commits
        }

    def _stored(
        self, group_id: str, producer_id: int, sent: _Sent, stored: asyncio.Future[None]
    ) -> None:
        if stored.cancelled() or stored.exception() is not None:
            self._drop(group_id, producer_id, sent)

    def _drop(self, group_id: str, producer_id: int, sent: _Sent) -> None:
        by_producer = self._sent.get(group_id, {})
        left = by_producer.get(producer_id, [])
        if sent in left:
            left.remove(sent)
        if not left:
            by_producer.pop(producer_id, None)
        if not by_producer:
            self._sent.pop(group_id, None)

    def _row(self, group_id: str, producer_id: int, sent: _Sent, *, ended: bool) -> TableRows:
        client = sent.committer.client
        rows = [
            (
                group_id, producer_id, sent.epoch, c.topic, c.topic_id, c.partition, c.offset,
                c.leader_epoch, c.metadata, sent.committer.member_id, client.client_id,
                client.host, sent.committer.generation, sent.time_ms,
                sent.version + ended, ended, self._node_id,
            )
            for c in sent.commits
        ]  # fmt: skip
        return TableRows(TRANSACTION_OFFSETS, rows)
