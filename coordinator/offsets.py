"""Committed offsets: all current ones in memory, and every commit as a row of `consumer_offsets`.

A commit is first stored as a row, then readable in memory, then answered. Commits of one partition
have versions in the order of the calls. The highest version is current, after a restart too,
whatever the clock did. Deletions are rows as well, with `deleted`.

`refresh` reads the rows of other brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from brokerhouse.common.clock import DAY_MS, MINUTE_MS, SECOND_MS, Clock
from brokerhouse.coordinator.messages import (
    UNKNOWN_GENERATION,
    UNKNOWN_MEMBER_ID,
    Client,
    CommittedOffset,
    Committer,
    Follower,
    OffsetCommit,
    TopicPartition,
)
from brokerhouse.coordinator.tables import OFFSETS
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Row
from brokerhouse.storage.row_lane import RowLane, TableRows

log = logging.getLogger(__name__)

_REWRITE_AFTER_MS = 7 * DAY_MS
_OVERLAP_MS = 10 * SECOND_MS
"""How much later a row may become visible than others with the same `stored_at`."""
_DELETED_MS = MINUTE_MS
_INT64_MAX = 2**63 - 1
_TOMBSTONES_AT_ONCE = 8192
_ENGINE_NOW = "toUnixTimestamp64Milli(now64(3))"
_NOBODY = Committer(UNKNOWN_MEMBER_ID, None, UNKNOWN_GENERATION, Client("", ""))
_NO_OFFSETS: Mapping[TopicPartition, CommittedOffset] = {}


@dataclass(slots=True)
class _Group:
    """The current offsets of a group. `pending` has what is being stored, by its version."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    versions: dict[TopicPartition, int] = field(default_factory=dict)
    pending: dict[int, Mapping[TopicPartition, OffsetCommit]] = field(default_factory=dict)


class CommittedOffsets:
    """What every group has committed."""

    def __init__(self, engine: Engine, rows: RowLane, node_id: int, clock: Clock) -> None:
        self._engine = engine
        self._rows = rows
        self._node_id = node_id
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._version = 0
        self._deleted: dict[tuple[str, TopicPartition], int] = {}
        self._seen_ms = 0
        self._rewritten_ms: int | None = None
        self.follower: Follower | None = None

    async def load(self, chosen: Callable[[str], bool]) -> None:
        """Read anew the offsets of groups that this broker coordinates from now on.

        Those of others are brought up to date. Raises `EngineError`.
        """
        ((highest, now_ms),) = await self._engine.rows(
            f"SELECT max(version), {_ENGINE_NOW} FROM consumer_offsets"
        )
        rows = await self._engine.rows(query("committed_offsets"))
        self._version = max(self._version, highest)
        # What others deleted since the last `refresh` is only found by the next one.
        self._seen_ms = self._seen_ms or now_ms
        for group_id in [group_id for group_id in self._groups if chosen(group_id)]:
            if not self._groups[group_id].pending:
                del self._groups[group_id]
        self._deleted = {key: v for key, v in self._deleted.items() if not chosen(key[0])}
        for row in rows:
            self._apply(*_parse(row))

    async def keep_topics(self, live_topic_ids: Mapping[str, UUID]) -> None:
        """Delete the offsets of all other topics: a crash came before `forget_topic`.

        Only for a broker alone, which knows every topic. In a cluster a topic may be unknown here
        because the server that answered is behind.
        """
        orphans = [
            (group_id, partition, offset.topic_id)
            for group_id, group in self._groups.items()
            for partition, offset in group.offsets.items()
            if live_topic_ids.get(partition[0]) != offset.topic_id
        ]
        if not orphans:
            return
        log.info("deleting %d offsets of topics that were deleted", len(orphans))
        for group_id, partition, _ in orphans:
            self._hide(group_id, partition)
        try:
            await self._remove(orphans)
        except EngineError as error:  # a full disk
            log.error(
                "cannot delete %d offsets of deleted topics, retrying at the next start: %s",
                len(orphans),
                error,
            )

    async def settled(self) -> None:
        """Returns when everything that was being stored is stored, or has failed."""
        await self._rows.store()

    def get(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The current offsets of a group; empty when it has none. Changes with the next commit."""
        group = self._groups.get(group_id)
        return _NO_OFFSETS if group is None else group.offsets

    def groups(self) -> Collection[str]:
        """Groups that have an offset."""
        return [group_id for group_id, group in self._groups.items() if group.offsets]

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        *,
        version: int | None = None,
    ) -> None:
        """Store offsets; the last one of a partition counts. Raises `EngineError`.

        `version`: one of `next_version`, which is used once; by default a new one.
        """
        if not commits:
            return
        version, now_ms = version or self.next_version(), self._clock.wall_ms()
        latest = {(commit.topic, commit.partition): commit for commit in commits}
        member_id, generation = committer.member_id, committer.generation
        client = committer.client
        sender = member_id, client.client_id, client.host, generation, now_ms
        rows: list[tuple[object, ...]] = []
        for c in latest.values():
            place = group_id, c.topic, c.topic_id, c.partition
            expires_ms = None if c.expire_time_ms is None else min(c.expire_time_ms, _INT64_MAX)
            committed = c.offset, c.leader_epoch, c.metadata
            rows.append((*place, *committed, *sender, expires_ms, False, version, self._node_id))
        group = self._groups.setdefault(group_id, _Group())
        group.pending[version] = latest
        stored = self._rows.put(TableRows(OFFSETS, rows))
        stored.add_done_callback(partial(self._committed, group_id, version, now_ms))
        await asyncio.shield(stored)

    async def delete(self, group_id: str, partitions: Collection[TopicPartition] | None) -> None:
        """Delete offsets, also those that are being committed now; None: all of the group.

        Raises `EngineError`: the offsets that are still in memory have not been deleted.
        """
        wanted = None if partitions is None else frozenset(partitions)
        await self._remove(
            (group_id, partition, topic_id)
            for partition, topic_id in self._known(group_id).items()
            if wanted is None or partition in wanted
        )

    async def forget_topic(
        self, topic: str, topic_id: UUID, groups: Collection[str] | None = None
    ) -> None:
        """A topic was deleted: delete its offsets. Raises `EngineError`.

        `groups`: those that this broker coordinates, None for all. The offsets of other groups are
        only removed from memory: a row of this broker could hide what their coordinator has stored
        since, for a new topic of the same name.
        """
        mine: list[tuple[str, TopicPartition, UUID]] = []
        for group_id in tuple(self._groups):
            gone = [
                (group_id, partition, topic_id)
                for partition, known_id in self._known(group_id).items()
                if partition[0] == topic and known_id == topic_id
            ]
            if groups is None or group_id in groups:
                mine += gone
            else:
                for _, partition, _ in gone:
                    self._hide(group_id, partition)
        await self._remove(mine)

    def expired(
        self,
        group_id: str,
        now_ms: int,
        emptied_ms: int | None,
        subscribed: Collection[str],
        retention_ms: int,
    ) -> list[TopicPartition]:
        """Offsets that have expired. `emptied_ms`: when the last member left the group; None: it
        has members, or never had any.

        As in Kafka (KIP-211): an offset of a topic in `subscribed` never expires. One that the
        client gave an expiry time expires then; any other, `retention_ms` after the last member
        left, whenever it was committed, or after its commit if nobody did. An offset that is being
        committed again does not expire.
        """
        group = self._groups.get(group_id)
        pending = set().union(*group.pending.values()) if group is not None else set()
        return [
            partition
            for partition, offset in self.get(group_id).items()
            if partition[0] not in subscribed
            and partition not in pending
            and now_ms
            >= (
                (offset.commit_time_ms if emptied_ms is None else emptied_ms) + retention_ms
                if offset.expire_time_ms is None
                else offset.expire_time_ms
            )
        ]

    def is_used(self, group_id: str) -> bool:
        """Whether the group has an offset, or one is being stored."""
        return group_id in self._groups

    async def rewrite_old(self) -> None:
        """Store current offsets again whose row is a week old, before the table's TTL deletes it.

        The row keeps its version, so it never hides a commit. Works once a day, however often it is
        called. Raises `EngineError`.
        """
        now_ms = self._clock.wall_ms()
        if self._rewritten_ms is not None and now_ms - self._rewritten_ms < DAY_MS:
            return
        await self._engine.execute(
            query("rewrite_committed_offsets", columns=OFFSETS.column_list),
            {"before_ms": now_ms - _REWRITE_AFTER_MS},
        )
        self._rewritten_ms = now_ms

    async def refresh(self) -> None:
        """Read what other brokers have stored since the last time. Raises `EngineError`."""
        self._forget_old_deletions()
        ((now_ms,),) = await self._engine.rows(f"SELECT {_ENGINE_NOW}")
        params = {"node_id": self._node_id, "since_ms": max(self._seen_ms - _OVERLAP_MS, 0)}
        for row in await self._engine.rows(query("committed_offsets_of_others"), params):
            group_id, partition, version, offset = _parse(row)
            self._apply(group_id, partition, version, None if row[-1] else offset)
        self._seen_ms = now_ms

    def next_version(self) -> int:
        """A version for a commit: higher than all before."""
        self._version = max(self._version + 1, self._clock.wall_ms() * 1000)
        return self._version

    def _known(self, group_id: str) -> dict[TopicPartition, UUID]:
        """Topic ids of all offsets of a group, and of those that are being stored."""
        group = self._groups.get(group_id)
        if group is None:
            return {}
        known = {partition: offset.topic_id for partition, offset in group.offsets.items()}
        for commits in group.pending.values():
            known.update((partition, commit.topic_id) for partition, commit in commits.items())
        return known

    async def _remove(self, offsets: Iterable[tuple[str, TopicPartition, UUID]]) -> None:
        version = self.next_version()
        removed = [(group_id, partition, topic_id) for group_id, partition, topic_id in offsets]
        if not removed:
            return
        all_stored = []
        for first in range(0, len(removed), _TOMBSTONES_AT_ONCE):
            some = removed[first : first + _TOMBSTONES_AT_ONCE]
            rows = [self._tombstone(*each, version) for each in some]
            stored = self._rows.put(TableRows(OFFSETS, rows))
            stored.add_done_callback(partial(self._removed, some, version))
            all_stored.append(stored)
        for stored in all_stored:
            await asyncio.shield(stored)

    def _tombstone(
        self, group_id: str, partition: TopicPartition, topic_id: UUID, version: int
    ) -> tuple[Any, ...]:
        client = _NOBODY.client
        place = group_id, partition[0], topic_id, partition[1]
        sender = _NOBODY.member_id, client.client_id, client.host, _NOBODY.generation
        now_ms = self._clock.wall_ms()
        return (*place, -1, -1, "", *sender, now_ms, None, True, version, self._node_id)

    def _committed(
        self, group_id: str, version: int, now_ms: int, stored: asyncio.Future[None]
    ) -> None:
        group = self._groups[group_id]
        commits = group.pending.pop(version)
        if not stored.cancelled() and stored.exception() is None:
            for partition, c in commits.items():
                offset = CommittedOffset(
                    c.topic_id, c.offset, c.leader_epoch, c.metadata, now_ms, c.expire_time_ms
                )
                self._apply(group_id, partition, version, offset)
        self._drop_if_empty(group_id)

    def _removed(
        self,
        removed: Iterable[tuple[str, TopicPartition, UUID]],
        version: int,
        stored: asyncio.Future[None],
    ) -> None:
        if not stored.cancelled() and stored.exception() is None:
            for group_id, partition, _ in removed:
                self._apply(group_id, partition, version, None)
            self._forget_old_deletions()

    def _apply(
        self,
        group_id: str,
        partition: TopicPartition,
        version: int,
        offset: CommittedOffset | None,
    ) -> None:
        """Show a row, unless a newer one is shown already."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _Group()
        current = group.versions.get(partition) or self._deleted.get((group_id, partition), 0)
        if version > current and self.follower is not None:
            self.follower.offset_changed(group_id, partition, offset)
        if version < current:
            self._drop_if_empty(group_id)
        elif offset is None:
            group.offsets.pop(partition, None)
            group.versions.pop(partition, None)
            self._deleted[group_id, partition] = version
            self._drop_if_empty(group_id)
        else:
            group.offsets[partition] = offset
            group.versions[partition] = version
            self._deleted.pop((group_id, partition), None)

    def _hide(self, group_id: str, partition: TopicPartition) -> None:
        """Remove an offset from memory; its row stays."""
        if group := self._groups.get(group_id):
            group.offsets.pop(partition, None)
            group.versions.pop(partition, None)
            self._drop_if_empty(group_id)

    def _forget_old_deletions(self) -> None:
        """The version of a deletion is needed for as long as an older row may be read again."""
        before = (self._clock.wall_ms() - _DELETED_MS) * 1000
        if self._deleted and min(self._deleted.values()) < before:
            self._deleted = {key: v for key, v in self._deleted.items() if v >= before}

    def _drop_if_empty(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None and not group.offsets and not group.pending:
            del self._groups[group_id]


def _parse(row: Row) -> tuple[str, TopicPartition, int, CommittedOffset]:
    """A row of sql/queries/committed_offsets.sql, or of the one for other brokers."""
    group_id, topic, partition, version, topic_id, offset, epoch, metadata, committed, expire = row[
        :10
    ]
    stored = CommittedOffset(UUID(topic_id), offset, epoch, metadata, committed, expire)
    return group_id, (topic, partition), version, stored
