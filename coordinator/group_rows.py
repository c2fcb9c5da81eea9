"""Groups and members as rows: how they are written, read back, and checked for consistency.

A group's members are written first and the group after them. So a start recognises a change that
was only partly written (`StoredGroup.is_torn`): members have higher versions than their group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import Client, GroupRecord, MemberRecord
from brokerhouse.coordinator.tables import GROUPS, MEMBERS
from brokerhouse.protocol.consumer_protocol import assigned_partitions
from brokerhouse.storage.engine import Row
from brokerhouse.storage.row_lane import TableRows


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A row of a member, also of one that has left."""

    version: int
    generation: int
    removed: bool
    record: MemberRecord


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A row of a group, also of a deleted one; its record has no members yet."""

    record: GroupRecord
    member_count: int
    removed: bool
    coordinator: int
    changed_ms: int

    def is_torn(self, members: Sequence[StoredMember]) -> bool:
        """Whether the members have been written and the group not yet."""
        return (
            any(member.version > self.record.version for member in members)
            or sum(not member.removed for member in members) != self.member_count
        )

    def with_members(self, members: Sequence[StoredMember]) -> GroupRecord:
        there = tuple(member.record for member in members if not member.removed)
        return replace(self.record, members=there)


class GroupRows:
    """Makes the rows that one coordinator writes."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def members(
        self, record: GroupRecord, changed: Iterable[MemberRecord], gone: Iterable[str]
    ) -> TableRows:
        """Members of a group that changed, and ids of those that have left."""
        rows = [self._member(record, member) for member in changed]
        rows += [
            self.tombstone(record.group_id, member_id, record.version, record.generation)
            for member_id in gone
        ]
        return TableRows(MEMBERS, rows)

    def groups(self, *records: GroupRecord) -> TableRows:
        return TableRows(GROUPS, [self._group(record) for record in records])

    def tombstone(
        self, group_id: str, member_id: str, version: int, generation: int
    ) -> Sequence[Any]:
        """The row of a member that has left."""
        nothing: tuple[Any, ...] = (None, "", "", 0, 0, "", (), {}, b"", 0)
        return (group_id, member_id, version, generation, *nothing, True, self._node_id)

    def _group(self, record: GroupRecord) -> Sequence[Any]:
        group = record.group_id, record.version, record.state, record.state_time_ms
        protocol = record.generation, record.protocol_type, record.protocol_name, record.leader
        removed = record.state == GroupState.DEAD
        return (*group, *protocol, len(record.members), removed, self._node_id)

    def _member(self, record: GroupRecord, member: MemberRecord) -> Sequence[Any]:
        owned = assigned_partitions(member.assignment) or {}
        assignment = {
            topic: dict.fromkeys(partitions, member.member_id)
            for topic, partitions in owned.items()
        }
        place = record.group_id, member.member_id, record.version, record.generation
        who = member.group_instance_id, member.client.client_id, member.client.host
        timeouts = member.session_timeout_ms, member.rebalance_timeout_ms
        given = record.protocol_name, member.protocols, assignment, member.assignment
        return (*place, *who, *timeouts, *given, member.join_time_ms, False, self._node_id)


def stored_groups(rows: Iterable[Row]) -> list[StoredGroup]:
    """Rows of sql/queries/group_versions.sql."""
    return [_group(row) for row in rows]


def stored_members(rows: Iterable[Row]) -> dict[str, list[StoredMember]]:
    """Rows of sql/queries/group_member_versions.sql by group, in the order of joining."""
    found: dict[str, list[StoredMember]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(_member(row))
    for members in found.values():
        members.sort(key=lambda member: (member.record.join_time_ms, member.record.member_id))
    return found


def _member(row: Row) -> StoredMember:
    _, member_id, version, instance_id, client_id, host, session_ms, rebalance_ms, *rest = row
    protocols, assignment, joined_ms, removed, generation = rest
    record = MemberRecord(
        member_id,
        instance_id,
        Client(client_id, host),
        session_ms,
        rebalance_ms,
        tuple((name, bytes.fromhex(metadata)) for name, metadata in protocols),
        bytes.fromhex(assignment),
        joined_ms,
    )
    return StoredMember(version, generation, bool(removed), record)


def _group(row: Row) -> StoredGroup:
    group_id, version, state, since_ms, generation, *protocol, removed, coordinator, changed_ms = (
        row
    )
    protocol_type, protocol_name, leader, members = protocol
    record = GroupRecord(
        group_id, version, state, since_ms, generation, protocol_type, protocol_name, leader, ()
    )
    return StoredGroup(record, members, bool(removed), coordinator, changed_ms)
