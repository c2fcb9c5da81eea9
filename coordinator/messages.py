"""Requests to a group's coordinator, its answers, and what it stores: plain values.

They do not depend on API versions or on the codec. An answer other than success is a
`protocol.errors.KafkaError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from brokerhouse.protocol.errors import KafkaError, MemberIdRequired

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's own topic with the offsets of groups. Brokers name slots by it, clients can read it."""
OFFSETS_TOPIC_ID = UUID("5b1f2c9e-6d0a-4f7b-9a53-0c6f5d3e8a41")
UNKNOWN_MEMBER_ID = ""
UNKNOWN_GENERATION = -1

Waiter = Any
"""Whatever the caller of a group needs to find a request again; the group never looks into it."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request. `host` is the client's address."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup. `protocols`: (name, metadata) pairs, the preferred one first."""

    member_id: str
    group_instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_known_member_id: bool
    """A dynamic member without an id gets one, and must join again with it (KIP-394, v4)."""
    supports_skipping_assignment: bool
    """A static leader that returns can be told not to compute an assignment (KIP-814, v9)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """One member as its leader sees it; `metadata` is that of the protocol that was chosen."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`members` is empty for everyone but the leader."""

    member_id: str
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class MemberIdGiven(MemberIdRequired):
    """MEMBER_ID_REQUIRED, with the id to come back with."""

    def __init__(self, member_id: str) -> None:
        super().__init__("join again with the member id of this answer")
        self.member_id = member_id


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup. `assignments` comes from the leader; protocol type and name are None before v5."""

    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that waited. `outcome` None: success, with nothing more to say."""

    waiter: Waiter
    outcome: JoinAnswer | SyncAnswer | KafkaError | None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member in LeaveGroup: only by instance id if `member_id` is empty (admin tools)."""

    member_id: str
    group_instance_id: str | None


class OffsetCommit(NamedTuple):
    """One partition in OffsetCommit. `expire_time_ms`: as versions before 5 ask, else None.

    A tuple, as `CommittedOffset`: every commit makes one for each partition, and a frozen dataclass
    takes more than twice as long to make (measured).
    """

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    expire_time_ms: int | None


@dataclass(frozen=True, slots=True)
class Committer:
    """Who commits. A consumer outside of group management has no member id and generation -1."""

    member_id: str
    group_instance_id: str | None
    generation: int
    client: Client


class CommittedOffset(NamedTuple):
    """What is committed for one partition of a group, as stored."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int
    expire_time_ms: int | None


TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One member as stored. `assignment` is as its leader sent it; times are wall-clock ms."""

    member_id: str
    group_instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes
    join_time_ms: int


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group as stored. `version` grows with each change; `state` is a `GroupState` value.

    `protocol_type` outlives the members, as in Kafka; `protocol_name` and `leader` are empty while
    there is no generation with members.
    """

    group_id: str
    version: int
    state: str
    state_time_ms: int
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[MemberRecord, ...]

    def member(self, member_id: str) -> MemberRecord | None:
        return next((m for m in self.members if m.member_id == member_id), None)


Protocols = Sequence[tuple[str, bytes]]


class Follower(Protocol):
    """Called on the event loop, in the order of the changes of each group. Must not fail."""

    def offset_changed(
        self, group_id: str, partition: TopicPartition, offset: CommittedOffset | None
    ) -> None:
        """An offset was committed; None: it was deleted."""

    def group_changed(self, record: GroupRecord) -> None:
        """A group has another state or other members, or is Dead."""
