"""The cache of groups: groups and members of all brokers, as they are in the tables.

Decisions of this broker are written through: a group is a row before the cache shows it. Any broker
answers Describe and List from this cache. The state machines are elsewhere (`coordinator.groups`).

A worker keeps the cache and committed offsets up to date. Every few seconds it reads the rows that
other brokers have stored, and writes the heartbeats that this broker has received. If a client asks
about a group of another broker, it reads sooner: see `CacheWorker.read_anew`. Every hour it removes
deleted rows from the tables.

When a broker dies after it stored the members of a group and before it stored the group, the next
broker that loads the group makes it rebalance."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from brokerhouse.common.clock import MINUTE_MS, SECOND_MS, Clock
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, event_within
from brokerhouse.coordinator.group_rows import (
    GroupRows,
    StoredGroup,
    StoredMember,
    stored_groups,
    stored_members,
)
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import Follower, GroupRecord, MemberRecord
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.slots import Duties
from brokerhouse.coordinator.tables import GROUPS, HEARTBEATS, MEMBERS
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Row
from brokerhouse.storage.row_lane import PartlyStored, RowLane, TableRows

log = logging.getLogger(__name__)

_OTHERS_GROUPS = (
    "WHERE coordinator != {node_id:Int32}"
    " AND changed_at >= fromUnixTimestamp64Milli({since_ms:Int64})"
)
_OTHERS_HEARTBEATS = (
    "WHERE coordinator != {node_id:Int32}"
    " AND heartbeat_time >= fromUnixTimestamp64Milli({since_ms:Int64})"
)
_MEMBERS_OF = "WHERE group_id IN {ids:Array(String)}"
_ACTIVE_MS = 2 * MINUTE_MS
_OVERLAP_MS = 10 * SECOND_MS
"""How much later a row may become visible than others with the same time of writing."""
_DELETED_MS = MINUTE_MS


class GroupCache:
    """The groups of all brokers, and their members."""

    def __init__(
        self, engine: Engine, rows: RowLane, node_id: int, duties: Duties, clock: Clock
    ) -> None:
        self.heartbeats = Heartbeats(rows, node_id)
        self._engine = engine
        self._rows = rows
        self._node_id = node_id
        self._duties = duties
        self._clock = clock
        self._group_rows = GroupRows(node_id)
        self._groups: dict[str, GroupRecord] = {}
        self._uncertain: dict[str, set[str]] = {}
        self._deleted: dict[str, int] = {}
        self._version = 0
        self._seen_ms = 0
        self.follower: Follower | None = None

    # What is known

    def groups(self) -> Collection[GroupRecord]:
        """All groups that are not Dead."""
        return self._groups.values()

    def get(self, group_id: str) -> GroupRecord | None:
        return self._groups.get(group_id)

    def next_version(self, now_ms: int) -> int:
        """The version of the next record: microseconds since 1970, and higher than any before."""
        self._version = max(self._version + 1, now_ms * 1000)
        return self._version

    # Writing

    async def store(self, record: GroupRecord) -> None:
        """Write the group and those of its members that changed; then the cache shows it.

        A record whose state is Dead deletes the group. Calls for one group follow each other, with
        versions that grow. Raises `EngineError`, and leaves the cache as it was.
        """
        if record.state == GroupState.DEAD:
            record = replace(record, members=())
        self._version = max(self._version, record.version)
        before = self._groups.get(record.group_id)
        changed, gone = _difference(before, record, self._uncertain.get(record.group_id, set()))
        stored = self._rows.put(
            self._group_rows.members(record, changed, gone), self._group_rows.groups(record)
        )
        touched = {member.member_id for member in changed} | gone
        stored.add_done_callback(partial(self._stored, record, touched))
        await asyncio.shield(stored)

    def _stored(self, record: GroupRecord, touched: set[str], stored: asyncio.Future[None]) -> None:
        if stored.cancelled():
            return
        group_id, error = record.group_id, stored.exception()
        if error is None:
            self._uncertain.pop(group_id, None)
            self._show(record)
        elif isinstance(error, PartlyStored):
            # Their rows are stored although the group's is not: the next record writes them all.
            self._uncertain.setdefault(group_id, set()).update(touched)

    def _show(self, record: GroupRecord) -> None:
        if record.state == GroupState.DEAD:
            self._groups.pop(record.group_id, None)
            self._note_deletion(record.group_id, record.version)
        else:
            self._groups[record.group_id] = record
        self.heartbeats.forget_others_than(record)
        if self.follower is not None:
            self.follower.group_changed(record)

    def _note_deletion(self, group_id: str, version: int) -> None:
        """Remember the deletion for as long as an older row of the group may be read again."""
        before = (self._clock.wall_ms() - _DELETED_MS) * 1000
        self._deleted[group_id] = version
        while (oldest := next(iter(self._deleted))) != group_id and self._deleted[oldest] < before:
            del self._deleted[oldest]

    # Reading

    async def load(self, chosen: Callable[[str], bool] | None = None) -> None:
        """Read every group, and repair those whose last change was cut short.

        With several brokers: the `chosen` groups are this broker's from now on; of the others only
        what is new is read. `rows` has been started. Raises `EngineError`.
        """
        members = stored_members(await self._rows_of("group_member_versions"))
        groups = stored_groups(await self._rows_of("group_versions"))
        heard = await self._rows_of("group_heartbeats")
        versions = [group.record.version for group in groups]
        versions += [member.version for rows in members.values() for member in rows]
        self._version = max([self._version, *versions])
        torn = []
        for group in groups:
            if group.removed:
                if chosen is not None and self._is_news(group):
                    self._show(group.record)
                continue
            rows = members.pop(group.record.group_id, [])
            if chosen is not None and not chosen(group.record.group_id):
                self._show_if_news(group, rows)
                continue
            record = group.with_members(rows)
            if group.is_torn(rows):
                record = self._to_rebalance(record, rows)
                if chosen is not None or group.coordinator == self._node_id:
                    torn.append(record)
            self._show(record)
        await self._repair(
            torn, {one: rows for one, rows in members.items() if chosen is None or chosen(one)}
        )
        self._hear(heard)
        self._seen_ms = max([self._seen_ms, *(group.changed_ms for group in groups)])
        if chosen is None:
            await self.clean_up()

    def _to_rebalance(self, record: GroupRecord, rows: Sequence[StoredMember]) -> GroupRecord:
        """A group with members whose versions are higher than its own: it has to rebalance."""
        now_ms = self._clock.wall_ms()
        return replace(
            record,
            version=self.next_version(now_ms),
            state=GroupState.PREPARING_REBALANCE.value,
            state_time_ms=now_ms,
            generation=max([record.generation] + [row.generation for row in rows]),
            leader=record.leader if record.member(record.leader) is not None else "",
        )

    async def _repair(
        self, torn: Sequence[GroupRecord], orphans: Mapping[str, Sequence[StoredMember]]
    ) -> None:
        """Complete the changes that were cut short. `orphans`: members that have no group."""
        for record in torn:
            log.warning(
                "the broker was killed while it stored group %s, so the group rebalances",
                record.group_id,
                extra=counted(),
            )
        version = self.next_version(self._clock.wall_ms())
        gone = [
            self._group_rows.tombstone(
                group_id, member.record.member_id, version, member.generation
            )
            for group_id, rows in orphans.items()
            for member in rows
            if not member.removed
        ]
        await self._rows.store(TableRows(MEMBERS, gone), self._group_rows.groups(*torn))

    async def refresh(self) -> bool:
        """Read what other brokers wrote since the last time. Whether there are other brokers.

        Raises `EngineError`.
        """
        params = {"node_id": self._node_id}
        others = await self._engine.rows(query("other_coordinators"), params)
        if not others:
            return False
        since_ms = max(self._seen_ms - _OVERLAP_MS, 0)
        rows = await self._rows_of("group_versions", _OTHERS_GROUPS, since_ms)
        newer = [group for group in stored_groups(rows) if self._is_news(group)]
        if newer:
            await self._read_groups(newer)
        active_since_ms = self._clock.wall_ms() - _ACTIVE_MS
        self._hear(await self._rows_of("group_heartbeats", _OTHERS_HEARTBEATS, active_since_ms))
        self._seen_ms = max(self._seen_ms, others[0][0])
        return True

    async def _rows_of(self, name: str, where: str = "", since_ms: int | None = None) -> list[Row]:
        if since_ms is None:
            return await self._engine.rows(query(name, where=where))
        params = {"node_id": self._node_id, "since_ms": since_ms}
        return await self._engine.rows(query(name, where=where), params)

    async def _read_groups(self, groups: Sequence[StoredGroup]) -> None:
        ids = [group.record.group_id for group in groups if not group.removed]
        members: Mapping[str, Sequence[StoredMember]] = {}
        if ids:
            sql = query("group_member_versions", where=_MEMBERS_OF)
            members = stored_members(await self._engine.rows(sql, {"ids": ids}))
        for group in groups:
            self._show_if_news(group, members.get(group.record.group_id, []))
            self._seen_ms = max(self._seen_ms, group.changed_ms)

    def _show_if_news(self, group: StoredGroup, members: Sequence[StoredMember]) -> None:
        # A torn group is being written just now; the next round reads all of it.
        if self._is_news(group) and (group.removed or not group.is_torn(members)):
            self._show(group.with_members(members))

    def _is_news(self, group: StoredGroup) -> bool:
        group_id = group.record.group_id
        known = self._groups.get(group_id)
        version = self._deleted.get(group_id, 0) if known is None else known.version
        return group.record.version > version

    def _hear(self, rows: Sequence[Row]) -> None:
        for group_id, member_id, heard_ms in rows:
            record = self._groups.get(group_id)
            if record is not None and record.member(member_id) is not None:
                self.heartbeats.read(group_id, member_id, heard_ms)

    async def clean_up(self) -> None:
        """Drop the rows of deleted groups and of members that have left, by one merge per table."""
        if not self._duties.is_housekeeper():
            return
        for table in (MEMBERS, GROUPS):
            try:
                await self._engine.execute(f"OPTIMIZE TABLE {table.name} FINAL CLEANUP")
            except EngineError as error:
                log.warning("cannot drop the deleted rows of %s: %s", table.name, error)


def _difference(
    before: GroupRecord | None, after: GroupRecord, uncertain: Collection[str]
) -> tuple[list[MemberRecord], set[str]]:
    """Members that have to be written, and ids of those that are gone.

    It is not known what is stored of the members in `uncertain`.
    """
    known = {} if before is None else {member.member_id: member for member in before.members}
    changed = [
        member
        for member in after.members
        if member.member_id in uncertain or known.get(member.member_id) != member
    ]
    gone = {*known, *uncertain} - {member.member_id for member in after.members}
    return changed, gone


class Heartbeats:
    """When each member of all groups sent its last heartbeat, to any broker.

    In memory; written every few seconds to `rows`, as far as this broker has heard them.
    """

    def __init__(self, rows: RowLane, node_id: int) -> None:
        self._rows = rows
        self._node_id = node_id
        self._heard: dict[str, dict[str, int]] = {}
        self._unwritten: dict[tuple[str, str], int] = {}

    def last_ms(self, group_id: str, member_id: str) -> int | None:
        """When the member sent its last heartbeat; None if it sent none since it joined."""
        return self._heard.get(group_id, {}).get(member_id)

    def note(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A member has sent a heartbeat to this broker."""
        self._heard.setdefault(group_id, {})[member_id] = now_ms
        self._unwritten[group_id, member_id] = now_ms

    def read(self, group_id: str, member_id: str, heard_ms: int) -> None:
        """Another broker has stored the heartbeat of a member."""
        heard = self._heard.setdefault(group_id, {})
        heard[member_id] = max(heard_ms, heard.get(member_id, 0))

    def forget_others_than(self, record: GroupRecord) -> None:
        """Forget members that are not in the group any more."""
        heard = self._heard.get(record.group_id)
        if heard is None:
            return
        there = {member.member_id for member in record.members}
        self._forget(record.group_id, heard, [one for one in heard if one not in there])

    def _forget(self, group_id: str, heard: dict[str, int], gone: Iterable[str]) -> None:
        for member_id in gone:
            del heard[member_id]
            self._unwritten.pop((group_id, member_id), None)
        if not heard:
            del self._heard[group_id]

    async def write(self) -> None:
        """Write the heartbeats since the last call, in one block. Raises `EngineError`."""
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        rows = [(*member, heard_ms, self._node_id) for member, heard_ms in unwritten.items()]
        try:
            await self._rows.store(TableRows(HEARTBEATS, rows))
        except EngineError:
            self._unwritten = unwritten | self._unwritten
            raise


_CLEAN_UP_EVERY_S = 3600.0
_RECENT_S = 0.5
_READ_LIMIT_S = 1.0


class CacheWorker:
    """Keeps the cache up to date with other brokers, and writes heartbeats.

    It keeps `offsets` up to date too.
    """

    def __init__(
        self,
        cache: GroupCache,
        offsets: CommittedOffsets,
        serves_all: Callable[[], bool],
        poll_s: float = 5.0,
        heartbeats_s: float = 5.0,
    ) -> None:
        """`serves_all`: whether no other broker stores anything, so that nothing is read."""
        self.task: asyncio.Task[None] | None = None
        self._cache = cache
        self._offsets = offsets
        self._serves_all = serves_all
        self._poll_s = poll_s
        self._heartbeats = _Interval(heartbeats_s)
        self._clean_up = _Interval(_CLEAN_UP_EVERY_S)
        self._closing = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read_s = -_RECENT_S
        self._outage = Outage(
            log, "groups are not up to date; retrying", "groups are up to date again"
        )

    def start(self) -> None:
        """`task` runs until `close`, and ends earlier only because of a bug."""
        self.task = asyncio.create_task(self._run(), name="shared-cache")

    async def close(self) -> None:
        """Write the heartbeats that are left, then stop."""
        self._closing.set()
        if self.task is not None:
            await self.task

    async def read_anew(self) -> None:
        """Read what other brokers had stored half a second ago, unless that has been read already.

        If that fails or takes long, what was read before has to do.
        """
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                await self._read()
        except (TimeoutError, EngineError) as error:
            self._outage.failed(error)

    async def _read(self) -> None:
        async with self._reading:
            began_s = time.monotonic()
            if began_s - self._read_s >= _RECENT_S:
                await self._cache.refresh()
                self._read_s = began_s

    async def _read_all(self) -> None:
        async with self._reading:
            began_s = time.monotonic()
            if await self._cache.refresh():
                await self._offsets.refresh()
            self._read_s = began_s

    async def _run(self) -> None:
        self._heartbeats.restart()
        self._clean_up.restart()
        while not await event_within(self._closing, self._poll_s):
            try:
                await self._round()
            except EngineError as error:
                self._outage.failed(error)
            else:
                self._outage.worked()
        try:
            await self._cache.heartbeats.write()
        except EngineError as error:
            log.error("cannot store the last heartbeats: %s", error)

    async def _round(self) -> None:
        if not self._serves_all():
            await self._read_all()
        if self._heartbeats.is_over():
            await self._cache.heartbeats.write()
        if self._clean_up.is_over():
            await self._cache.clean_up()


class _Interval:
    """A time interval that repeats."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._ends_at = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        """Whether the interval is over. If it is, the next one begins."""
        if time.monotonic() < self._ends_at:
            return False
        self.restart()
        return True
