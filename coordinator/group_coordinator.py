"""The groups that this broker coordinates: requests of their members and of administrators.

This module checks a request. The group's state machine (`coordinator.groups`) decides it.
`coordinator.hosted_groups` stores the decision and then answers. Heartbeats are answered from
memory and written later. `coordinator.offsets` stores offsets after the state machine has accepted
them.

A group belongs to a slot, and its coordinator is the owner of the slot: see `load_groups` and
`unload_groups`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.admission import GroupLimits
from brokerhouse.coordinator.commit_rules import CommitKind, check_commit_without_group
from brokerhouse.coordinator.group_cache import CacheWorker, GroupCache
from brokerhouse.coordinator.group_members import protocols_bytes
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group
from brokerhouse.coordinator.hosted_groups import HostedGroup, HostedGroups
from brokerhouse.coordinator.messages import (
    UNKNOWN_MEMBER_ID,
    Committer,
    GroupRecord,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
    TopicPartition,
)
from brokerhouse.coordinator.offset_expiry import OffsetExpiry
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.slots import Duties
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownServerError,
)
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """Settings of the coordinator.

    `max_bytes` limits subscriptions and assignments of all groups; beyond it nobody may join.
    """

    groups: GroupLimits
    max_bytes: int
    offsets_retention_ms: int


class GroupCoordinator:
    """The groups of this broker. Methods raise the `KafkaError` that the client gets."""

    def __init__(
        self,
        cache: GroupCache,
        offsets: CommittedOffsets,
        pending: PendingOffsets,
        limits: CoordinatorLimits,
        duties: Duties,
        clock: Clock,
    ) -> None:
        self.cache = cache
        self.offsets = offsets
        self.pending = pending
        self._limits = limits.groups
        self._clock = clock
        self.hosted_groups = HostedGroups(cache, duties, clock, limits.max_bytes)
        retention_ms = limits.offsets_retention_ms
        self.expiry = OffsetExpiry(self.hosted_groups, offsets, pending, retention_ms)
        self._cache_worker = CacheWorker(cache, offsets, duties.serves_all)

    # Which groups are coordinated here

    def start(self) -> None:
        """Start what runs in the background."""
        self._cache_worker.start()
        self.expiry.periodic.start()

    async def load_groups(self, chosen: Callable[[str], bool]) -> None:
        """Coordinate these groups from now on, from what is stored. Raises `EngineError`."""
        await self.cache.load(chosen)
        await self.offsets.load(chosen)
        await self.pending.load(chosen)
        self._host_stored(chosen)

    async def unload_groups(self, chosen: Callable[[str], bool]) -> None:
        """Stop coordinating these groups. Returns when none of their rows is being stored."""
        unloaded = self.hosted_groups.unload(chosen)
        await asyncio.gather(*(one.saver for one in unloaded if one.saver is not None))
        await self.offsets.settled()
        self.pending.unload(chosen)

    def abandon(self) -> None:
        """Stop coordinating every group at once: the session of this broker is over."""
        self.hosted_groups.unload(lambda _: True)
        self.pending.unload(lambda _: True)

    async def read_anew(self) -> None:
        """Read what other brokers have stored: `CacheWorker.read_anew`."""
        await self._cache_worker.read_anew()

    def record(self, group_id: str) -> GroupRecord | None:
        """A group of any broker, as it is stored."""
        return self.cache.get(group_id)

    def records(self) -> list[GroupRecord]:
        """The groups that this broker coordinates, as they are stored."""
        found = (self.cache.get(group_id) for group_id in self.hosted_groups.ids())
        return [record for record in found if record is not None]

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that run until `close`, and end earlier only because of a bug."""
        tasks = self._cache_worker.task, self.expiry.periodic.task
        return [task for task in tasks if task is not None]

    def stop_waiting(self) -> None:
        """Answer every parked request: this broker stops. No member is removed any more."""
        self.hosted_groups.stop()

    async def close(self) -> None:
        """Store what has changed."""
        self.stop_waiting()
        await self.expiry.periodic.close()
        savers = [hosted.saver for hosted in self.hosted_groups if hosted.saver is not None]
        await asyncio.gather(*savers)
        await self._cache_worker.close()

    # Requests of members

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Returns when the rebalance is over. Raises `MemberIdGiven`, among others."""
        _check_group_id(group_id)
        self.hosted_groups.refuse_when_stopping()
        hosted = self.hosted_groups.get(group_id)
        if hosted is None:
            self._limits.check_session_timeout(request.session_timeout_ms)
            if request.member_id != UNKNOWN_MEMBER_ID:
                raise UnknownMemberId(f"The group has no member {request.member_id!r}.")
            self.hosted_groups.refuse_when_full(protocols_bytes(request.protocols))
            hosted = self._host_new(group_id)
        else:
            hosted.refuse_when_being_deleted()
            held_bytes = hosted.group.member_bytes(request.member_id)
            self.hosted_groups.refuse_when_full(protocols_bytes(request.protocols) - held_bytes)
        answer: JoinAnswer = await hosted.answered(hosted.group.join, request)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Returns when the leader has assigned the partitions."""
        _check_group_id(group_id)
        self.hosted_groups.refuse_when_stopping()
        hosted = self._hosting(group_id)
        if not self.hosted_groups.has_room_for(sum(map(len, request.assignments.values()))):
            raise UnknownServerError(
                "The assignment does not fit into the broker's groups_max_bytes."
            )
        answer: SyncAnswer = await hosted.answered(hosted.group.sync, request)
        return answer

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        """Raises `RebalanceInProgress` when the member is to join again."""
        _check_group_id(group_id)
        hosted = self._hosting(group_id)
        now = self._clock.now()
        hosted.group.heartbeat(member_id, group_instance_id, generation, now)
        self.cache.heartbeats.note(group_id, member_id, now.wall_ms)

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        """Remove members. Per member: None, or the error that kept it in the group."""
        _check_group_id(group_id)
        hosted = self._hosting(group_id)
        outcomes = hosted.group.leave(members, self._clock.now())
        hosted.after_event()
        if None in outcomes:
            await hosted.stored()
        return outcomes

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        producer: Producer | None = None,
    ) -> None:
        """Store offsets. With a producer, they count when its transaction is committed.

        Who may commit: `coordinator.commit_rules`.
        """
        kind = CommitKind.PLAIN if producer is None else CommitKind.TRANSACTIONAL
        hosted = self.hosted_groups.get(group_id)
        if hosted is None:
            check_commit_without_group(kind, committer)
            self.hosted_groups.refuse_when_full(0)
            hosted = self._host_new(group_id)
            hosted.after_event()
        hosted.refuse_when_being_deleted()
        now = self._clock.now()
        hosted.group.check_commit(kind, committer, now)
        if kind is CommitKind.PLAIN and committer.generation >= 0:
            self.cache.heartbeats.note(group_id, committer.member_id, now.wall_ms)
        try:
            if producer is None:
                await self.offsets.commit(group_id, committer, commits)
            else:
                await self.pending.add(group_id, committer, producer, commits)
        except EngineError as error:
            raise hosted.not_stored("the offsets", error) from error
        if not hosted.is_mine:
            raise hosted.not_coordinator()
        if self.cache.get(group_id) is None:
            await hosted.stored()

    # Requests of administrators

    async def delete_group(self, group_id: str) -> None:
        """Delete an empty group and its offsets. Raises `GroupIdNotFound` or `NonEmptyGroup`."""
        hosted = self._existing(group_id)
        if hosted.group.state is not GroupState.EMPTY:
            raise NonEmptyGroup(f"The group {group_id!r} has members. Stop them first.")
        hosted.refuse_when_being_deleted()
        hosted.is_being_deleted = True
        try:
            await self.pending.delete(group_id, None)
            await self.offsets.delete(group_id, None)
            hosted.group.delete(self._clock.now())
        except EngineError as error:
            raise hosted.not_stored("the deletion", error) from error
        finally:
            # Also when the client disconnects, which cancels this.
            hosted.is_being_deleted = False
        hosted.after_event()
        await hosted.stored()

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[KafkaError | None]:
        """Delete offsets, also those that open transactions have sent. Per partition: None, or the
        error that kept its offset."""
        _check_group_id(group_id)
        hosted = self._existing(group_id)
        subscribed = hosted.group.subscribed_topics()
        if subscribed is None:
            raise NonEmptyGroup(
                f"It is unknown which topics the members of the group {group_id!r} read."
            )
        allowed = [partition for partition in partitions if partition[0] not in subscribed]
        try:
            await self.pending.delete(group_id, allowed)
            await self.offsets.delete(group_id, allowed)
        except EngineError as error:
            raise hosted.not_stored("the deletion of offsets", error) from error
        return [
            GroupSubscribedToTopic(f"The group {group_id!r} reads the topic {topic!r}.")
            if topic in subscribed
            else None
            for topic, _ in partitions
        ]

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """A topic has been deleted: delete its offsets in every group. Raises `EngineError`."""
        await self.pending.forget_topic(topic, topic_id)
        await self.offsets.forget_topic(topic, topic_id, set(self.hosted_groups.ids()))

    # Groups in memory

    def _host_stored(self, chosen: Callable[[str], bool]) -> None:
        loaded = []
        for record in self.cache.groups():
            if chosen(record.group_id) and record.group_id not in self.hosted_groups:
                group = Group.restored(record, self._limits, self._clock.now())
                loaded.append(self.hosted_groups.add(group))
        # The broker died after it stored the offsets, and before it stored the group.
        loaded += [
            self._host_new(group_id)
            for group_id in self.offsets.groups()
            if chosen(group_id) and group_id not in self.hosted_groups
        ]
        for hosted in loaded:
            hosted.after_event()

    def _host_new(self, group_id: str) -> HostedGroup:
        """A new group is stored as it is, as in Kafka: also if nobody ever joins or commits."""
        group = Group(group_id, self._limits, self._clock.now())
        group.mark_changed()
        return self.hosted_groups.add(group)

    def _hosting(self, group_id: str) -> HostedGroup:
        hosted = self.hosted_groups.get(group_id)
        if hosted is None:
            raise UnknownMemberId(f"The group {group_id!r} does not exist.")
        return hosted

    def _existing(self, group_id: str) -> HostedGroup:
        hosted = self.hosted_groups.get(group_id)
        if hosted is None or hosted.group.state is GroupState.DEAD:
            raise GroupIdNotFound(f"The group {group_id!r} does not exist.")
        return hosted


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("The request has no group id.")
