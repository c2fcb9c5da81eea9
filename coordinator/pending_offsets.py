"""Offsets that were sent to open transactions: stored, but not visible yet.

They are stored as rows before they are answered. When the transaction is committed they become
commits of the group, with the versions that they got when they arrived. So an older one never hides
a newer commit, and committing twice changes nothing. Until then their partitions are unstable:
clients that ask for stable offsets have to wait (KIP-447).

When the coordinator has confirmed that a group is part of a transaction, the confirmation is in
`verifying` until the row is stored. The end of the transaction removes it
(broker/transactions/transaction_checks.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.messages import Client, Committer, OffsetCommit, TopicPartition
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.tables import TRANSACTION_OFFSETS
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import TransactionCoordinatorFenced
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import RowLane, TableRows

_COORDINATORS_KEPT = 10_000


@dataclass(slots=True, eq=False)
class _Sent:
    """What one request sent. `commits` get fewer when offsets are deleted."""

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
        self._groups: defaultdict[int, set[str]] = defaultdict(set)
        """The groups to which each producer has sent."""
        self.verifying: dict[tuple[str, int], object] = {}
        """By group and producer id."""
        self._coordinator_epochs: dict[int, int] = {}

    async def load(self, chosen: Callable[[str], bool]) -> None:
        """Read what has not ended in these groups. Raises `EngineError`."""
        self.unload(chosen)
        for row in await self._engine.rows(query("pending_offsets")):
            group_id, producer_id, epoch, topic, topic_id, partition, offset, *rest = row
            leader_epoch, metadata, member_id, client_id, host, generation, *when = rest
            time_ms, version = when
            if not chosen(group_id):
                continue
            committer = Committer(member_id, None, generation, Client(client_id, host))
            commit = OffsetCommit(
                topic, UUID(topic_id), partition, offset, leader_epoch, metadata, None
            )
            sent = _Sent(epoch, committer, (commit,), version, time_ms)
            self._keep(group_id, producer_id, sent)

    def unload(self, chosen: Callable[[str], bool]) -> None:
        """Another broker coordinates these groups from now on."""
        for group_id in [one for one in self._sent if chosen(one)]:
            for producer_id in self._sent.pop(group_id):
                self._forget_group(producer_id, group_id)
        for key in [one for one in self.verifying if chosen(one[0])]:
            del self.verifying[key]

    def check_coordinator(self, producer_id: int, coordinator_epoch: int) -> None:
        """Raises `TransactionCoordinatorFenced` for a marker whose coordinator has a successor."""
        known = self._coordinator_epochs.pop(producer_id, -1)
        self._coordinator_epochs[producer_id] = max(known, coordinator_epoch)
        while len(self._coordinator_epochs) > _COORDINATORS_KEPT:
            del self._coordinator_epochs[next(iter(self._coordinator_epochs))]
        if coordinator_epoch < known:
            raise TransactionCoordinatorFenced(
                f"A marker of producer {producer_id} has coordinator epoch {coordinator_epoch}."
                f" Its groups have seen epoch {known}."
            )

    def groups_with(self, producer_id: int) -> Collection[str]:
        """The groups to which this producer has sent, or may send now, what has not ended."""
        verifying = {group_id for group_id, producer in self.verifying if producer == producer_id}
        return verifying.union(self._groups.get(producer_id, ()))

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
        self._keep(group_id, producer_id, sent)
        stored = self._rows.put(self._row(group_id, producer_id, sent, sent.commits, ended=False))
        stored.add_done_callback(partial(self._stored, group_id, producer_id, sent))
        await asyncio.shield(stored)

    async def end(
        self, group_id: str, producer: Producer, *, commit: bool, raises_epoch: bool
    ) -> None:
        """The producer's transaction ends: show what it sent, or drop it. Raises `EngineError`.

        `raises_epoch`: the epoch is above that of what was sent, and what has this epoch already is
        part of the next transaction. May be called again.
        """
        producer_id = producer.producer_id
        self.verifying.pop((group_id, producer_id), None)
        sent = [
            one
            for one in self._sent.get(group_id, {}).get(producer_id, ())
            if one.epoch < producer.epoch + (not raises_epoch)
        ]
        if commit:
            for one in sent:
                await self._offsets.commit(
                    group_id, one.committer, one.commits, version=one.version
                )
        for one in sent:
            if one.commits:
                await self._rows.store(
                    self._row(group_id, producer_id, one, one.commits, ended=True)
                )
            self._drop(group_id, producer_id, one)

    async def delete(self, group_id: str, partitions: Collection[TopicPartition] | None) -> None:
        """Delete what open transactions have sent, which they do not show then when they are
        committed; None: all of the group. Raises `EngineError`."""
        wanted = None if partitions is None else frozenset(partitions)
        await self._delete(
            group_id, lambda one: wanted is None or (one.topic, one.partition) in wanted
        )

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """A topic was deleted: delete what was sent about it. Raises `EngineError`."""
        for group_id in tuple(self._sent):
            await self._delete(group_id, lambda one: (one.topic, one.topic_id) == (topic, topic_id))

    async def _delete(self, group_id: str, chosen: Callable[[OffsetCommit], bool]) -> None:
        for producer_id, all_sent in tuple(self._sent.get(group_id, {}).items()):
            for sent in tuple(all_sent):
                gone = tuple(filter(chosen, sent.commits))
                if not gone:
                    continue
                await self._rows.store(self._row(group_id, producer_id, sent, gone, ended=True))
                sent.commits = tuple(one for one in sent.commits if not chosen(one))
                if not sent.commits:
                    self._drop(group_id, producer_id, sent)

    def is_used(self, group_id: str) -> bool:
        """Whether a transaction that has not ended has sent offsets to the group."""
        return group_id in self._sent

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

    def _keep(self, group_id: str, producer_id: int, sent: _Sent) -> None:
        self._sent[group_id].setdefault(producer_id, []).append(sent)
        self._groups[producer_id].add(group_id)

    def _forget_group(self, producer_id: int, group_id: str) -> None:
        groups = self._groups[producer_id]
        groups.discard(group_id)
        if not groups:
            del self._groups[producer_id]

    def _drop(self, group_id: str, producer_id: int, sent: _Sent) -> None:
        by_producer = self._sent.get(group_id, {})
        left = by_producer.get(producer_id, [])
        if sent in left:
            left.remove(sent)
        if not left:
            by_producer.pop(producer_id, None)
            self._forget_group(producer_id, group_id)
        if not by_producer:
            self._sent.pop(group_id, None)

    def _row(
        self,
        group_id: str,
        producer_id: int,
        sent: _Sent,
        commits: Sequence[OffsetCommit],
        *,
        ended: bool,
    ) -> TableRows:
        client = sent.committer.client
        sender = sent.committer.member_id, client.client_id, client.host, sent.committer.generation
        end = sent.time_ms, sent.version + ended, ended, self._node_id
        rows: list[tuple[object, ...]] = []
        for c in commits:
            place = group_id, producer_id, sent.epoch, c.topic, c.topic_id, c.partition
            rows.append((*place, c.offset, c.leader_epoch, c.metadata, *sender, *end))
        return TableRows(TRANSACTION_OFFSETS, rows)
