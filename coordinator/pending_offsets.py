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
from typing import TypeAlias
from uuid import UUID

from coordinator.messages import Client, Committer, OffsetCommit, TopicPartition
from coordinator.offsets import CommittedOffsets
from coordinator.tables import TRANSACTION_OFFSETS
from coordinator.transaction_states import Producer
from protocol.errors import InvalidProducerEpoch
from storage.engine import Engine
from storage.row_lane import RowLane, TableRows

_ENDED_KEPT = 10_000
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


_Key: TypeAlias = tuple[str, int]
"""Group and producer id."""


class PendingOffsets:
    """What open transactions have sent to the groups of this broker."""

    def __init__(
        self, engine: Engine, rows: RowLane, offsets: CommittedOffsets, node_id: int
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._offsets = offsets
        self._node_id = node_id
        self._sent: defaultdict[str, dict[int, list[_Sent]]] = defaultdict(dict)
        self._ended: dict[_Key, int] = {}

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
        """Store offsets of a transaction. Raises `EngineError`, `InvalidProducerEpoch`."""
        if not commits:
            return
        producer_id, epoch = producer
        if epoch < self._ended.get((group_id, producer_id), -1):
            raise InvalidProducerEpoch(f"the transaction of producer {producer_id} has ended")
        latest = {(commit.topic, commit.partition): commit for commit in commits}
        version, now_ms = self._offsets.next_version()
        sent = _Sent(epoch, committer, tuple(latest.values()), version, now_ms)
        # Known before it is stored: a transaction that ends meanwhile ends it, too.
        all_sent = self._sent[group_id].setdefault(producer_id, [])
        all_sent.append(sent)
        try:
            await asyncio.shield(
                self._rows.put(self._row(group_id, producer_id, sent, ended=False))
            )
        except BaseException:
            if sent in all_sent:
                all_sent.remove(sent)
            self._drop_if_empty(group_id, producer_id)
            raise

    async def end(self, group_id: str, producer: Producer, *, commit: bool) -> None:
        """The producer's transaction ends: show what it sent, or drop it. Raises `EngineError`.

        May be called again.
        """
        producer_id, epoch = producer
        sent = list(self._sent.get(group_id, {}).get(producer_id, ()))
        if commit:
            for one in sent:
                await self._offsets.commit(
                    group_id, one.committer, one.commits, version=one.version
                )
        for one in sent:
            await self._rows.store(self._row(group_id, producer_id, one, ended=True))
        if sent:
            left = self._sent[group_id][producer_id]
            left[:] = [one for one in left if one not in sent]
            self._drop_if_empty(group_id, producer_id)
        self._ended.pop((group_id, producer_id), None)
        self._ended[group_id, producer_id] = epoch
        if len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

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

    def _drop_if_empty(self, group_id: str, producer_id: int) -> None:
        group = self._sent.get(group_id)
        if group is not None and not group.get(producer_id):
            group.pop(producer_id, None)
            if not group:
                del self._sent[group_id]

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
