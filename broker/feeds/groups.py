"""The member of a feed's group: a process that feeds looks like a consumer of Kafka.

Each process that feeds is a member of the group `feed-DATABASE.TABLE`, with the partitions that it
feeds, and commits how far it is as that member. So a running feed is an active group in views and
Kafka's tools: nobody can delete the group or move its offsets, which would change nothing. When a
feed is paused, or its process is gone, the group is empty.

Which partitions a process feeds is decided elsewhere. A member says so in its subscription, and the
leader of the group assigns to each what it has said. When that changes, the member joins again. A
member is static (KIP-345): after `kill -9` the next process of this broker takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from brokerhouse.broker.feeds.remote_groups import CLIENT, REBALANCE_MS, RemoteGroups
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.common.tasks import Outage, Periodic
from brokerhouse.coordinator.messages import (
    UNKNOWN_MEMBER_ID,
    Committer,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.protocol.consumer_protocol import (
    Partitions,
    assigned_partitions,
    assignment,
    subscription,
    user_data,
)
from brokerhouse.protocol.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)

log = logging.getLogger(__name__)

PROTOCOL_TYPE, PROTOCOL = "consumer", "feed"
"""Kafka's tools show only groups of this type; the protocol is shown as assignment strategy."""
_EVERY_S = 1.0
_SESSION_MS, _SESSION_MAX_MS = 10_000, 1_800_000


def feeding_instance(node_id: int) -> str:
    """The `group.instance.id` of a broker."""
    return f"brokerhouse-{node_id}"


class FeedCoordinator(Protocol):
    """What a feed asks of the coordinator of its group. Everything raises `KafkaError`."""

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer: ...

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer: ...

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None: ...

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]: ...

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
    ) -> None: ...

    async def delete_group(self, group_id: str) -> None: ...


class FeedGroups:
    """Where the groups of feeds are coordinated: here, or by other brokers."""

    def __init__(self, instance_id: str, groups: SlotGroups, leadership: SlotLeadership) -> None:
        """`instance_id`: of this process, in all groups. `groups`: of the slots that it serves."""
        self.instance_id = instance_id
        self._groups = groups
        self._others = RemoteGroups(leadership)

    def coordinator_of(self, group_id: str) -> FeedCoordinator:
        """Raises `KafkaError`."""
        try:
            return self._groups.coordinator_of(group_id)
        except NotCoordinator:
            return self._others

    def close(self) -> None:
        self._others.close()


class FeedMember:
    """This process in the group of one feed. `loop` is started and closed by its owner."""

    def __init__(
        self,
        groups: FeedGroups,
        group_id: str,
        partitions: Callable[[], Partitions],
        positions: Callable[[], Sequence[OffsetCommit]],
    ) -> None:
        """`partitions`: those that are fed here now. `positions`: how far the feed is in them."""
        self.loop = Periodic(f"member-{group_id}", _EVERY_S, self._step, at_once=True)
        self._groups = groups
        self._group_id = group_id
        self._partitions = partitions
        self._positions = positions
        self._member_id = UNKNOWN_MEMBER_ID
        self._generation: int | None = None
        self._said: Partitions = {}
        self._said_times = 0
        self._session_ms = _SESSION_MS
        self._committed: dict[tuple[str, int], int] = {}
        self._outage = Outage(
            log,
            f"group {group_id} cannot show how far its feed is",
            f"group {group_id} shows how far its feed is",
        )

    async def leave(self) -> None:
        """The process feeds no more. `loop` is closed before."""
        if self._member_id == UNKNOWN_MEMBER_ID:
            return
        leaving = LeavingMember(self._member_id, self._groups.instance_id)
        self._member_id, self._generation = UNKNOWN_MEMBER_ID, None
        try:
            await self._groups.coordinator_of(self._group_id).leave(self._group_id, [leaving])
        except KafkaError as error:
            log.info("group %s removes a member of its feed later: %s", self._group_id, error)

    async def _step(self) -> None:
        try:
            await self._be_member()
            await self._commit()
        except (RebalanceInProgress, IllegalGeneration, GroupIdNotFound):
            self._generation = None
        except (UnknownMemberId, FencedInstanceId):
            self._member_id, self._generation = UNKNOWN_MEMBER_ID, None
        except InvalidSessionTimeout:
            self._session_ms = min(self._session_ms * 2, _SESSION_MAX_MS)
        except KafkaError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    async def _be_member(self) -> None:
        partitions = self._partitions()
        if not partitions:
            await self.leave()
        elif self._generation is None or partitions != self._said:
            await self._join(partitions)
        else:
            await self._coordinator.heartbeat(
                self._group_id, self._member_id, self._groups.instance_id, self._generation
            )

    @property
    def _coordinator(self) -> FeedCoordinator:
        return self._groups.coordinator_of(self._group_id)

    async def _join(self, partitions: Partitions) -> None:
        if partitions != self._said:
            self._said, self._said_times = partitions, 0
        self._generation = None
        joined = await self._coordinator.join(self._group_id, self._request(partitions))
        self._member_id = joined.member_id
        synced = await self._coordinator.sync(
            self._group_id,
            SyncRequest(
                joined.member_id,
                self._groups.instance_id,
                joined.generation,
                joined.protocol_type,
                joined.protocol_name,
                assignments_of(joined.members),
            ),
        )
        if assigned_partitions(synced.assignment) != partitions and not self._said_times:
            # It has taken the place of a process that fed others. Once: another member may still
            # say that it feeds the same.
            self._said_times += 1
            return
        self._generation = joined.generation

    def _request(self, partitions: Partitions) -> JoinRequest:
        said = assignment(partitions, str(self._said_times).encode())
        return JoinRequest(
            member_id=self._member_id,
            group_instance_id=self._groups.instance_id,
            client=CLIENT,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=PROTOCOL_TYPE,
            protocols=((PROTOCOL, subscription(sorted(partitions), said)),),
            requires_known_member_id=False,
            supports_skipping_assignment=True,
        )

    async def _commit(self) -> None:
        """As the member that this process is now."""
        if self._generation is None:
            return
        moved = [
            one
            for one in self._positions()
            if one.partition in self._said.get(one.topic, ())
            and self._committed.get((one.topic, one.partition)) != one.offset
        ]
        if not moved:
            return
        committer = Committer(self._member_id, self._groups.instance_id, self._generation, CLIENT)
        await self._coordinator.commit(self._group_id, committer, moved)
        self._committed.update({(one.topic, one.partition): one.offset for one in moved})


def assignments_of(members: Iterable[JoinedMember]) -> Mapping[str, bytes]:
    """What the leader of a group assigns: what each member says that it feeds, and no partition
    twice."""
    given: set[tuple[str, int]] = set()
    assigned = {}
    for member in members:
        said = assigned_partitions(user_data(member.metadata) or b"") or {}
        own = {
            topic: [one for one in numbers if (topic, one) not in given]
            for topic, numbers in said.items()
        }
        given |= {(topic, one) for topic, numbers in own.items() for one in numbers}
        assigned[member.member_id] = assignment(
            {topic: numbers for topic, numbers in own.items() if numbers}
        )
    return assigned


async def delete_group(groups: FeedGroups, group_id: str) -> None:
    """Of a feed that was dropped. The last process that feeds it does it."""
    try:
        await groups.coordinator_of(group_id).delete_group(group_id)
    except (GroupIdNotFound, NonEmptyGroup):
        pass
    except KafkaError as error:
        log.info("group %s is deleted when its offsets expire: %s", group_id, error)
