"""The shared cache: groups and members of all brokers, as they are in the tables.

What this broker decides is written through: a group is a row before it is seen here. Its members
are written first and the group after them, so that a start can tell a change that was cut short: it
then takes the group as one that has to rebalance.

A worker reads every half second what other brokers wrote, and writes heartbeats behind. Describe
and list are answered from here, by any broker; the state machines do not live here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coordinator.messages import Client, GroupRecord, MemberRecord
from coordinator.offsets import CommittedOffsets
from protocol.consumer_protocol import assigned_partitions
from storage.blocks import (
    BOOL,
    BYTES,
    DATETIME64_MS,
    INT32,
    STRING,
    UINT32,
    UINT64,
    Table,
    array_of,
    map_of,
    nullable,
    tuple_of,
)
from storage.engine import Engine, EngineError, Row
from storage.row_lane import PartlyStored, RowLane, TableRows

log = logging.getLogger(__name__)

GROUPS = Table(
    "consumer_group_versions",
    (
        ("group_id", STRING),
        ("version", UINT64),
        ("state", STRING),
        ("state_time", DATETIME64_MS),
        ("generation", INT32),
        ("protocol_type", STRING),
        ("protocol_name", STRING),
        ("leader", STRING),
        ("members", UINT32),
        ("removed", BOOL),
        ("coordinator", INT32),
    ),
)
MEMBERS = Table(
    "group_member_versions",
    (
        ("group_id", STRING),
        ("member_id", STRING),
        ("version", UINT64),
        ("generation", INT32),
        ("group_instance_id", nullable(STRING)),
        ("client_id", STRING),
        ("client_host", STRING),
        ("session_timeout_ms", INT32),
        ("rebalance_timeout_ms", INT32),
        ("protocol_name", STRING),
        ("protocols", array_of(tuple_of(name=STRING, metadata=BYTES))),
        ("assignment", map_of(STRING, map_of(INT32, STRING))),
        ("assignment_bytes", BYTES),
        ("join_time", DATETIME64_MS),
        ("removed", BOOL),
        ("coordinator", INT32),
    ),
)
HEARTBEATS = Table(
    "group_heartbeats",
    (
        ("group_id", STRING),
        ("member_id", STRING),
        ("heartbeat_time", DATETIME64_MS),
        ("coordinator", INT32),
    ),
)

# Bytes of clients come back as hexadecimal digits: as text they would have to be UTF-8.
_GROUPS = (
    "SELECT group_id, version, state, toUnixTimestamp64Milli(state_time), generation,"
    " protocol_type, protocol_name, leader, members, removed, coordinator,"
    " toUnixTimestamp64Milli(changed_at)"
    " FROM consumer_group_versions {where} ORDER BY version DESC LIMIT 1 BY group_id"
)
_MEMBERS = (
    "SELECT group_id, member_id, version, group_instance_id, client_id, client_host,"
    " session_timeout_ms, rebalance_timeout_ms,"
    " arrayMap(p -> (p.name, hex(p.metadata)), protocols), hex(assignment_bytes),"
    " toUnixTimestamp64Milli(join_time), removed, generation"
    " FROM group_member_versions {where}"
    " ORDER BY version DESC LIMIT 1 BY group_id, member_id"
)
_HEARTBEATS = (
    "SELECT group_id, member_id, toUnixTimestamp64Milli(max(heartbeat_time))"
    " FROM group_heartbeats {where} GROUP BY group_id, member_id"
)
_OTHERS_SINCE = (
    "WHERE coordinator != {node_id:Int32}"
    " AND changed_at >= fromUnixTimestamp64Milli({since_ms:Int64})"
)
_OTHERS_HEARTBEATS = (
    "WHERE coordinator != {node_id:Int32}"
    " AND heartbeat_time >= fromUnixTimestamp64Milli({since_ms:Int64})"
)
# One small query where there are no other brokers, which costs less than half of the three others;
# else the engine's clock.
_ANY_OTHERS = (
    "SELECT toUnixTimestamp64Milli(now64(3)) FROM ("
    "SELECT 1 FROM consumer_group_versions WHERE coordinator != {node_id:Int32}"
    " UNION ALL SELECT 1 FROM group_heartbeats WHERE coordinator != {node_id:Int32}"
    " UNION ALL SELECT 1 FROM consumer_offsets WHERE coordinator != {node_id:Int32}) LIMIT 1"
)
_ACTIVE_MS = 120_000
_OVERLAP_MS = 10_000
"""How much later than others a row may become visible that says it was written at the same time."""
_ENDED_MS = 60_000
_CLEAN_UP_EVERY_S = 3600.0
_REBALANCING = "PreparingRebalance"
_DEAD = "Dead"


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _StoredMember:
    """A row of a member, also of one that has left."""

    version: int
    generation: int
    removed: bool
    record: MemberRecord


@dataclass(frozen=True, slots=True)
class _StoredGroup:
    """A row of a group, also of one that is over; its record is still without members."""

    record: GroupRecord
    member_count: int
    removed: bool
    coordinator: int
    changed_ms: int

    def is_torn(self, members: Sequence[_StoredMember]) -> bool:
        """Whether the members have been written and the group not yet."""
        return (
            any(member.version > self.record.version for member in members)
            or sum(not member.removed for member in members) != self.member_count
        )

    def with_members(self, members: Sequence[_StoredMember]) -> GroupRecord:
        there = tuple(member.record for member in members if not member.removed)
        return replace(self.record, members=there)


class SharedCache:
    """Every group that there is, and its members."""

    def __init__(
        self,
        engine: Engine,
        rows: RowLane,
        node_id: int,
        offsets: CommittedOffsets | None = None,
        clock_ms: Callable[[], int] = _wall_clock_ms,
        *,
        poll_s: float = 0.5,
        heartbeats_s: float = 5.0,
        keeps_house: Callable[[], bool] = lambda: True,
    ) -> None:
        """`offsets`: into which the worker reads what other brokers commit.

        `keeps_house`: whether this broker is the one that drops rows that are over.
        """
        self._engine = engine
        self._rows = rows
        self._node_id = node_id
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._poll_s = poll_s
        self._heartbeats_s = heartbeats_s
        self._keeps_house = keeps_house
        self._groups: dict[str, GroupRecord] = {}
        self._heard: dict[str, dict[str, int]] = {}
        self._unwritten: dict[tuple[str, str], int] = {}
        self._uncertain: dict[str, set[str]] = {}
        self._ended: dict[str, int] = {}
        self._version = 0
        self._seen_ms = 0
        self._closing = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    # What there is

    def groups(self) -> Collection[GroupRecord]:
        """All that are not Dead."""
        return self._groups.values()

    def get(self, group_id: str) -> GroupRecord | None:
        return self._groups.get(group_id)

    def heartbeat_ms(self, group_id: str, member_id: str) -> int | None:
        """When the member was last heard of, if it has been since it joined."""
        return self._heard.get(group_id, {}).get(member_id)

    def next_version(self, now_ms: int) -> int:
        """For the next record of a group: microseconds, but always more than ever before."""
        self._version = max(self._version + 1, now_ms * 1000)
        return self._version

    # Writing

    async def store(self, record: GroupRecord) -> None:
        """Write the group and those of its members that changed; then it is seen here.

        A record whose state is Dead removes the group. Calls for one group follow each other, with
        versions that grow. Raises `EngineError`: nothing is seen.
        """
        if record.state == _DEAD:
            record = replace(record, members=())
        self._version = max(self._version, record.version)
        before = self._groups.get(record.group_id)
        changed, gone = _difference(before, record, self._uncertain.get(record.group_id, set()))
        rows = [self._member_row(record, member) for member in changed]
        rows += [
            self._member_tombstone(record.group_id, member_id, record.version, record.generation)
            for member_id in gone
        ]
        stored = self._rows.put(
            TableRows(MEMBERS, rows), TableRows(GROUPS, [self._group_row(record)])
        )
        touched = {member.member_id for member in changed} | gone
        stored.add_done_callback(partial(self._stored, record, touched))
        await asyncio.shield(stored)

    def heartbeat(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Note that a member was heard of. Written behind."""
        self._heard.setdefault(group_id, {})[member_id] = now_ms
        self._unwritten[group_id, member_id] = now_ms

    def _stored(self, record: GroupRecord, touched: set[str], stored: asyncio.Future[None]) -> None:
        if stored.cancelled():
            return
        group_id, error = record.group_id, stored.exception()
        if error is None:
            self._uncertain.pop(group_id, None)
            self._show(record)
        elif isinstance(error, PartlyStored):
            # These have rows that nobody answers for: the next record writes them all.
            self._uncertain.setdefault(group_id, set()).update(touched)

    def _show(self, record: GroupRecord) -> None:
        group_id = record.group_id
        if record.state == _DEAD:
            self._groups.pop(group_id, None)
            self._end(group_id, record.version)
        else:
            self._groups[group_id] = record
        heard = self._heard.get(group_id)
        if heard is None:
            return
        there = {member.member_id for member in record.members}
        for member_id in [one for one in heard if one not in there]:
            del heard[member_id]
            self._unwritten.pop((group_id, member_id), None)
        if not heard:
            del self._heard[group_id]

    def _end(self, group_id: str, version: int) -> None:
        """Remember the end of a group for as long as an older row may be read once more."""
        before = (self._clock_ms() - _ENDED_MS) * 1000
        self._ended[group_id] = version
        while (oldest := next(iter(self._ended))) != group_id and self._ended[oldest] < before:
            del self._ended[oldest]

    def _group_row(self, record: GroupRecord) -> Sequence[Any]:
        return (
            record.group_id, record.version, record.state, record.state_time_ms,
            record.generation, record.protocol_type, record.protocol_name, record.leader,
            len(record.members), record.state == _DEAD, self._node_id,
        )  # fmt: skip

    def _member_row(self, record: GroupRecord, member: MemberRecord) -> Sequence[Any]:
        owned = assigned_partitions(member.assignment) or {}
        assignment = {
            topic: dict.fromkeys(partitions, member.member_id)
            for topic, partitions in owned.items()
        }
        return (
            record.group_id, member.member_id, record.version, record.generation,
            member.group_instance_id, member.client.client_id, member.client.host,
            member.session_timeout_ms, member.rebalance_timeout_ms, record.protocol_name,
            member.protocols, assignment, member.assignment, member.join_time_ms, False,
            self._node_id,
        )  # fmt: skip

    def _member_tombstone(
        self, group_id: str, member_id: str, version: int, generation: int
    ) -> Sequence[Any]:
        return (
            group_id, member_id, version, generation,
            None, "", "", 0, 0, "", (), {}, b"", 0, True, self._node_id,
        )  # fmt: skip

    # Reading

    async def load(self, owns: Callable[[str], bool] | None = None) -> None:
        """Read every group, and repair those whose last change was cut short.

        With several brokers: those that `owns` says are this broker's from now on; of the others
        what is news. `rows` has been started. Raises `EngineError`.
        """
        members = _members(await self._engine.rows(_MEMBERS.format(where="")))
        groups = [_group(row) for row in await self._engine.rows(_GROUPS.format(where=""))]
        heard = await self._engine.rows(_HEARTBEATS.format(where=""))
        stored = [member for rows in members.values() for member in rows]
        versions = [group.record.version for group in groups]
        versions += [member.version for member in stored]
        self._version = max([self._version, *versions])
        torn = []
        for group in groups:
            mine = owns is None or owns(group.record.group_id)
            if group.removed:
                if owns is not None and self._is_news(group):
                    self._show(group.record)
                continue
            rows = members.pop(group.record.group_id, [])
            record = group.with_members(rows)
            if not mine:
                if self._is_news(group) and not group.is_torn(rows):
                    self._show(record)
                continue
            if group.is_torn(rows):
                record = self._to_rebalance(record, rows)
                if owns is not None or group.coordinator == self._node_id:
                    torn.append(record)
            self._show(record)
        orphans = {one: rows for one, rows in members.items() if owns is None or owns(one)}
        await self._repair(torn, orphans)
        self._hear(heard)
        self._seen_ms = max([self._seen_ms, *(group.changed_ms for group in groups)])
        if owns is None:
            await self._clean_up()

    def _to_rebalance(self, record: GroupRecord, rows: Sequence[_StoredMember]) -> GroupRecord:
        """A group of which some members are ahead of the rest."""
        now_ms = self._clock_ms()
        return replace(
            record,
            version=self.next_version(now_ms),
            state=_REBALANCING,
            state_time_ms=now_ms,
            generation=max([record.generation] + [row.generation for row in rows]),
            leader=record.leader if record.member(record.leader) is not None else "",
        )

    async def _repair(
        self, torn: Sequence[GroupRecord], orphans: Mapping[str, Sequence[_StoredMember]]
    ) -> None:
        """Write what a change that was cut short left to do; `orphans` have no group."""
        for record in torn:
            log.warning("group %s was being changed when the broker died", record.group_id)
        version = self.next_version(self._clock_ms())
        gone = [
            self._member_tombstone(group_id, member.record.member_id, version, member.generation)
            for group_id, rows in orphans.items()
            for member in rows
            if not member.removed
        ]
        await self._rows.store(
            TableRows(MEMBERS, gone), TableRows(GROUPS, [self._group_row(one) for one in torn])
        )

    async def _clean_up(self) -> None:
        """Drop rows of groups and members that are gone: a merge each, whole or not at all."""
        if not self._keeps_house():
            return
        for table in (MEMBERS, GROUPS):
            try:
                await self._engine.execute(f"OPTIMIZE TABLE {table.name} FINAL CLEANUP")
            except EngineError as error:
                log.warning("rows of %s that are over stay for now: %s", table.name, error)

    def _hear(self, rows: Iterable[Row]) -> None:
        for group_id, member_id, heard_ms in rows:
            record = self._groups.get(str(group_id))
            if record is not None and record.member(str(member_id)) is not None:
                heard = self._heard.setdefault(record.group_id, {})
                heard[str(member_id)] = max(heard_ms, heard.get(str(member_id), 0))

    # The worker

    def start(self) -> None:
        self._worker = asyncio.create_task(self._work(), name="shared-cache")

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that end before `close` only by a defect."""
        return () if self._worker is None else (self._worker,)

    async def close(self) -> None:
        """Write the heartbeats that are left, then stop."""
        self._closing.set()
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        heartbeats_at = loop.time() + self._heartbeats_s
        clean_up_at = loop.time() + _CLEAN_UP_EVERY_S
        behind = False
        while not await self._closes_within(self._poll_s):
            try:
                await self.refresh()
                if loop.time() >= heartbeats_at:
                    heartbeats_at = loop.time() + self._heartbeats_s
                    await self.write_heartbeats()
                if loop.time() >= clean_up_at:
                    clean_up_at = loop.time() + _CLEAN_UP_EVERY_S
                    await self._clean_up()
            except EngineError as error:
                if not behind:  # once, however long it lasts
                    log.error("groups are not up to date; tried again all the time: %s", error)
                behind = True
            else:
                if behind:
                    log.info("groups are up to date again")
                behind = False
        try:
            await self.write_heartbeats()
        except EngineError as error:
            log.error("the last heartbeats could not be written: %s", error)

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def write_heartbeats(self) -> None:
        """Write what was noted since the last time, in one block. Raises `EngineError`."""
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        rows = [(*member, heard_ms, self._node_id) for member, heard_ms in unwritten.items()]
        try:
            await self._rows.store(TableRows(HEARTBEATS, rows))
        except EngineError:
            self._unwritten = unwritten | self._unwritten
            raise

    async def refresh(self) -> None:
        """Read what other brokers wrote since the last time. Raises `EngineError`."""
        others = await self._engine.rows(_ANY_OTHERS, {"node_id": self._node_id})
        if not others:
            return
        since_ms = max(self._seen_ms - _OVERLAP_MS, 0)
        params = {"node_id": self._node_id, "since_ms": since_ms}
        groups = [
            _group(row)
            for row in await self._engine.rows(_GROUPS.format(where=_OTHERS_SINCE), params)
        ]
        newer = [group for group in groups if self._is_news(group)]
        if newer:
            await self._read_groups(newer)
        active_since_ms = self._clock_ms() - _ACTIVE_MS
        params = {"node_id": self._node_id, "since_ms": active_since_ms}
        self._hear(await self._engine.rows(_HEARTBEATS.format(where=_OTHERS_HEARTBEATS), params))
        if self._offsets is not None:
            await self._offsets.refresh()
        self._seen_ms = max(self._seen_ms, others[0][0])

    def _is_news(self, group: _StoredGroup) -> bool:
        group_id = group.record.group_id
        known = self._groups.get(group_id)
        version = self._ended.get(group_id, 0) if known is None else known.version
        return group.record.version > version

    async def _read_groups(self, groups: Sequence[_StoredGroup]) -> None:
        ids = [group.record.group_id for group in groups if not group.removed]
        where = "WHERE group_id IN {ids:Array(String)}"
        members = (
            _members(await self._engine.rows(_MEMBERS.format(where=where), {"ids": ids}))
            if ids
            else {}
        )
        for group in groups:
            rows = members.get(group.record.group_id, [])
            # A torn group is being written just now; the next round finds it whole.
            if self._is_news(group) and (group.removed or not group.is_torn(rows)):
                self._show(group.with_members(rows))
            self._seen_ms = max(self._seen_ms, group.changed_ms)


def _difference(
    before: GroupRecord | None, after: GroupRecord, uncertain: Collection[str]
) -> tuple[list[MemberRecord], set[str]]:
    """Members that have to be written, and ids of those that are gone.

    Of those in `uncertain` nobody knows what is stored.
    """
    known = {} if before is None else {member.member_id: member for member in before.members}
    changed = [
        member
        for member in after.members
        if member.member_id in uncertain or known.get(member.member_id) != member
    ]
    gone = {*known, *uncertain} - {member.member_id for member in after.members}
    return changed, gone


def _members(rows: Iterable[Row]) -> dict[str, list[_StoredMember]]:
    """By group; the one that joined first comes first."""
    found: dict[str, list[_StoredMember]] = {}
    for row in rows:
        found.setdefault(str(row[0]), []).append(_member(row))
    for members in found.values():
        members.sort(key=lambda member: (member.record.join_time_ms, member.record.member_id))
    return found


def _member(row: Row) -> _StoredMember:
    (
        _, member_id, version, instance_id, client_id, host, session_ms, rebalance_ms, protocols,
        assignment, joined_ms, removed, generation,
    ) = row  # fmt: skip
    assert isinstance(protocols, list)
    record = MemberRecord(
        str(member_id),
        None if instance_id is None else str(instance_id),
        Client(str(client_id), str(host)),
        session_ms,
        rebalance_ms,
        tuple((name, bytes.fromhex(metadata)) for name, metadata in protocols),
        bytes.fromhex(str(assignment)),
        joined_ms,
    )
    return _StoredMember(version, generation, bool(removed), record)


def _group(row: Row) -> _StoredGroup:
    (
        group_id, version, state, since_ms, generation, protocol_type, protocol_name, leader,
        members, removed, coordinator, changed_ms,
    ) = row  # fmt: skip
    record = GroupRecord(
        str(group_id),
        version,
        str(state),
        since_ms,
        generation,
        str(protocol_type),
        str(protocol_name),
        str(leader),
        (),
    )
    return _StoredGroup(record, members, bool(removed), coordinator, changed_ms)
