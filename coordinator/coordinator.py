"""The groups that this broker looks after: their state machines, timers, and what is stored when.

Nothing that a group decides is heard before it is stored: answers to JoinGroup, SyncGroup and
LeaveGroup wait for the record of the group that they follow from. Records of one group are stored
one after the other; what changes meanwhile goes into the next, so a group of which everybody joins
at once is stored a few times, not once for each. When the engine refuses, those who wait are told
to find the coordinator again, and the record is tried again.

Heartbeats are answered from memory and noted behind. Offsets are stored by `offsets`, after the
state machine has agreed.

With several brokers a group belongs to a slot, and its coordinator is the slot's owner: `take` and
`give_up`. What is stored while the lease runs out is not answered: the next owner reads what is
there. A row that comes late hides nothing newer, because versions follow the clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.groups import (
    CONSUMER_PROTOCOL_TYPE,
    Answer,
    Group,
    GroupLimits,
    GroupState,
    protocols_bytes,
)
from coordinator.membership import SharedCache
from coordinator.messages import (
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
from coordinator.offsets import CommittedOffsets
from protocol.consumer_protocol import subscribed_topics
from protocol.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
    UnknownServerError,
)
from storage.engine import EngineError

log = logging.getLogger(__name__)

_STORE_AGAIN_S = 1.0
_EXPIRY_INTERVAL_S = 300.0


def steady_ms() -> int:
    """For time-outs: goes forward only, however the system's clock is set."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class _Hosted:
    """A group with what is under way for it. `held` waits for the next record to be stored."""

    group: Group
    deleting: bool = False
    size_bytes: int = 0
    timer: asyncio.TimerHandle | None = None
    held: list[Answer] = field(default_factory=list)
    saver: asyncio.Task[None] | None = None
    given_up: bool = False


def _always() -> bool:
    return True


class GroupCoordinator:
    """Every group of this broker. Methods raise the `KafkaError` that the client is to be told."""

    def __init__(
        self,
        cache: SharedCache,
        offsets: CommittedOffsets,
        limits: GroupLimits,
        max_bytes: int,
        offsets_retention_ms: int,
        wall_ms: Callable[[], int],
        clock_ms: Callable[[], int] = steady_ms,
        lease: Callable[[], bool] = _always,
        keeps_house: Callable[[], bool] = _always,
    ) -> None:
        """`max_bytes`: subscriptions and assignments of all groups; past it nobody may join.

        `wall_ms` is for what is stored, `clock_ms` for time-outs. `lease`: whether this broker may
        still answer for its groups. `keeps_house`: whether it is the one that writes old offsets
        again before they expire.
        """
        self.cache = cache
        self.offsets = offsets
        self._limits = limits
        self._max_bytes = max_bytes
        self._offsets_retention_ms = offsets_retention_ms
        self._wall_ms = wall_ms
        self._now = clock_ms
        self._lease = lease
        self._keeps_house = keeps_house
        self._groups: dict[str, _Hosted] = {}
        self._size_bytes = 0
        self._stopping = asyncio.Event()
        self._expiry: asyncio.Task[None] | None = None

    async def load(self, live_topic_ids: Mapping[str, UUID]) -> None:
        """Take over every group that is stored, and begin. Raises `EngineError`."""
        await self.cache.load()
        await self.offsets.load(live_topic_ids)
        self._host_stored(lambda _: True)
        self.start()

    def start(self) -> None:
        """Begin what runs in the background."""
        self.cache.start()
        self._expiry = asyncio.create_task(self._expire_offsets(), name="offset-expiry")

    async def take(self, owns: Callable[[str], bool]) -> None:
        """Look after those groups that `owns` says, from what is stored. Raises `EngineError`."""
        await self.cache.load(owns)
        await self.offsets.take(owns)
        self._host_stored(owns)

    async def give_up(self, owns: Callable[[str], bool]) -> None:
        """Look after these groups no more; returns when nothing of them is being stored."""
        given_up = self._let_go(owns)
        await asyncio.gather(*(one.saver for one in given_up if one.saver is not None))
        await self.offsets.settled()

    def abandon(self) -> None:
        """Look after no group any more, at once: the lease is over."""
        self._let_go(lambda _: True)

    def records(self) -> list[GroupRecord]:
        """The groups that this broker looks after, as they are stored."""
        found = (self.cache.get(group_id) for group_id in self._groups)
        return [record for record in found if record is not None]

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that end only by a defect."""
        return [*self.cache.background, *([] if self._expiry is None else [self._expiry])]

    def stop_waiting(self) -> None:
        """Answer every parked request: this broker stops. No member is removed any more."""
        self._stopping.set()
        for hosted in self._groups.values():
            if hosted.timer is not None:
                hosted.timer.cancel()
            hosted.group.shut_down(CoordinatorNotAvailable("the broker stops"))
            _deliver(hosted.group.take_answers())

    async def close(self) -> None:
        """Store what has changed."""
        self.stop_waiting()
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        savers = [hosted.saver for hosted in self._groups.values() if hosted.saver is not None]
        await asyncio.gather(*savers)
        await self.cache.close()

    # What members ask

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Returns when the rebalance is over. Raises `MemberIdGiven`, among others."""
        _check_group_id(group_id)
        self._refuse_when_stopping()
        hosted = self._groups.get(group_id)
        if hosted is None:
            self._limits.check_session_timeout(request.session_timeout_ms)
            if request.member_id != UNKNOWN_MEMBER_ID:
                raise UnknownMemberId(f"there is no member {request.member_id!r}")
            self._refuse_when_full(protocols_bytes(request.protocols))
            hosted = self._host(self._new_group(group_id))
        else:
            self._refuse_deleted(hosted)
            held_bytes = hosted.group.member_bytes(request.member_id)
            self._refuse_when_full(protocols_bytes(request.protocols) - held_bytes)
        waiter: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        try:
            hosted.group.join(request, waiter, self._now())
        finally:
            self._after(hosted)
        return await waiter

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Returns when the leader has assigned the partitions."""
        _check_group_id(group_id)
        self._refuse_when_stopping()
        hosted = self._hosting(group_id)
        sent = sum(len(assignment) for assignment in request.assignments.values())
        if self._size_bytes + sent > self._max_bytes:
            raise UnknownServerError("the assignment is too large: see groups_max_bytes")
        waiter: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        try:
            hosted.group.sync(request, waiter, self._now())
        finally:
            self._after(hosted)
        return await waiter

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> None:
        """Raises `RebalanceInProgress` when the member is to join again."""
        _check_group_id(group_id)
        hosted = self._hosting(group_id)
        hosted.group.heartbeat(member_id, group_instance_id, generation, self._now())
        self.cache.heartbeat(group_id, member_id, self._wall_ms())

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> list[KafkaError | None]:
        """Remove members; per member None, or why not."""
        _check_group_id(group_id)
        hosted = self._hosting(group_id)
        outcomes = hosted.group.leave(members, self._now())
        self._after(hosted)
        if None in outcomes:
            await self._stored(hosted)
        return outcomes

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        commits: Sequence[OffsetCommit],
        *,
        group_must_exist_error: type[KafkaError],
    ) -> None:
        """Store offsets. `group_must_exist_error`: what a member of a group that is not gets."""
        hosted = self._groups.get(group_id)
        if hosted is None and committer.generation >= 0:
            raise group_must_exist_error(f"there is no group {group_id!r}")
        if hosted is None:
            self._refuse_when_full(0)
            hosted = self._host(self._new_group(group_id))
            hosted.group.created()
            self._after(hosted)
        self._refuse_deleted(hosted)
        hosted.group.check_commit(committer, self._now())
        if committer.generation >= 0:
            self.cache.heartbeat(group_id, committer.member_id, self._wall_ms())
        try:
            await self.offsets.commit(group_id, committer, commits)
        except EngineError as error:
            raise self._not_stored(hosted, "offsets", error) from error
        if not self._is_still_mine(hosted):
            raise _not_coordinator(hosted)
        if self.cache.get(group_id) is None:
            await self._stored(hosted)

    # What administrators ask

    async def delete_group(self, group_id: str) -> None:
        """Remove an empty group and its offsets. Raises `GroupIdNotFound` or `NonEmptyGroup`."""
        hosted = self._existing(group_id)
        if hosted.group.state is not GroupState.EMPTY:
            raise NonEmptyGroup(f"group {group_id!r} has members")
        self._refuse_deleted(hosted)
        hosted.deleting = True
        try:
            await self.offsets.delete(group_id, None)
            hosted.group.die(self._now())
        except EngineError as error:
            raise self._not_stored(hosted, "the deletion", error) from error
        finally:
            hosted.deleting = False  # also for a client that leaves: the group may lose its offsets
        self._after(hosted)
        await self._stored(hosted)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[KafkaError | None]:
        """Forget offsets; per partition None, or why not."""
        _check_group_id(group_id)
        hosted = self._existing(group_id)
        subscribed = self._subscribed(hosted.group)
        if subscribed is None:
            raise NonEmptyGroup(f"it is unknown what the members of group {group_id!r} read")
        allowed = [partition for partition in partitions if partition[0] not in subscribed]
        try:
            await self.offsets.delete(group_id, allowed)
        except EngineError as error:
            raise self._not_stored(hosted, "the deletion of offsets", error) from error
        return [
            GroupSubscribedToTopic(f"group {group_id!r} reads {topic}")
            if topic in subscribed
            else None
            for topic, _ in partitions
        ]

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """A topic has been deleted: its offsets go in every group."""
        try:
            await self.offsets.forget_topic(topic, topic_id, self._groups)
        except EngineError as error:
            log.error("offsets of deleted topic %s stay until the next start: %s", topic, error)

    # Groups in memory

    def _host_stored(self, owns: Callable[[str], bool]) -> None:
        taken = []
        for record in self.cache.groups():
            if owns(record.group_id) and record.group_id not in self._groups:
                group = Group.restored(record, self._limits, self._now(), self._wall_ms)
                taken.append(self._host(group))
        for group_id in self.offsets.groups():
            if owns(group_id) and group_id not in self._groups:
                # the end came between its offsets and its record
                taken.append(self._host(self._new_group(group_id)))
                taken[-1].group.created()
        for hosted in taken:
            self._after(hosted)

    def _let_go(self, owns: Callable[[str], bool]) -> list[_Hosted]:
        given_up = [one for one in self._groups.values() if owns(one.group.group_id)]
        for hosted in given_up:
            hosted.given_up = True
            hosted.group.shut_down(_not_coordinator(hosted))
            _deliver(hosted.group.take_answers())
            self._drop(hosted)
        return given_up

    def _not_stored(self, hosted: _Hosted, what: str, error: EngineError) -> KafkaError:
        """What a client is told that can do nothing but try again.

        Not KAFKA_STORAGE_ERROR, which ends a Java consumer that commits (its
        `ConsumerCoordinator` takes it for a defect).
        """
        if not self._is_still_mine(hosted):
            return _not_coordinator(hosted)
        log.error("%s of group %s could not be stored: %s", what, hosted.group.group_id, error)
        return CoordinatorNotAvailable(f"{what} could not be stored")

    def _is_still_mine(self, hosted: _Hosted) -> bool:
        return not hosted.given_up and self._lease()

    def _host(self, group: Group) -> _Hosted:
        hosted = _Hosted(group)
        self._groups[group.group_id] = hosted
        return hosted

    def _new_group(self, group_id: str) -> Group:
        return Group(group_id, self._limits, self._now(), wall_ms=self._wall_ms)

    def _hosting(self, group_id: str) -> _Hosted:
        hosted = self._groups.get(group_id)
        if hosted is None:
            raise UnknownMemberId(f"there is no group {group_id!r}")
        return hosted

    def _existing(self, group_id: str) -> _Hosted:
        hosted = self._groups.get(group_id)
        if hosted is None or hosted.group.state is GroupState.DEAD:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        return hosted

    def _drop(self, hosted: _Hosted) -> None:
        if hosted.timer is not None:
            hosted.timer.cancel()
        self._size_bytes -= hosted.size_bytes
        hosted.size_bytes = 0
        if self._groups.get(hosted.group.group_id) is hosted:
            del self._groups[hosted.group.group_id]

    def _refuse_when_stopping(self) -> None:
        if self._stopping.is_set():
            raise CoordinatorNotAvailable("the broker stops")

    def _refuse_deleted(self, hosted: _Hosted) -> None:
        if hosted.deleting:
            raise CoordinatorNotAvailable("the group is being deleted")

    def _refuse_when_full(self, added_bytes: int) -> None:
        if self._size_bytes + added_bytes > self._max_bytes:
            raise GroupMaxSizeReached("no room for more members: see groups_max_bytes")

    def _subscribed(self, group: Group) -> frozenset[str] | None:
        """The topics that its members read; None where that cannot be known."""
        if group.state is GroupState.EMPTY:
            return frozenset()
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: frozenset[str] = frozenset()
        for subscription in group.subscriptions():
            read = subscribed_topics(subscription)
            if read is None:
                return None
            topics |= read
        return topics

    # After each event

    def _after(self, hosted: _Hosted) -> None:
        """Store what changed, answer who is answered, set the clock for what comes next."""
        group = hosted.group
        if hosted.given_up:
            _deliver(_refused(group.take_answers(), _not_coordinator(hosted)))
            return
        if not self._stopping.is_set():
            self._let_time_pass(hosted)
        self._measure(hosted)
        answers = group.take_answers()
        if group.changed or hosted.saver is not None:
            hosted.held += answers
            if hosted.saver is None:
                name = f"store-group-{group.group_id}"
                hosted.saver = asyncio.create_task(self._save(hosted), name=name)
            return
        _deliver(answers)
        if group.is_unused and self.cache.get(group.group_id) is None:
            self._drop(hosted)  # somebody knocked and never came in

    def _let_time_pass(self, hosted: _Hosted) -> None:
        """Do what is due, and come back when the next thing is."""
        while (deadline := hosted.group.next_deadline()) is not None and deadline <= self._now():
            hosted.group.tick(self._now())
        if hosted.timer is not None:
            hosted.timer.cancel()
            hosted.timer = None
        if deadline is not None:
            delay_s = max(deadline - self._now(), 0) / 1000
            loop = asyncio.get_running_loop()
            hosted.timer = loop.call_later(delay_s, self._after, hosted)

    def _measure(self, hosted: _Hosted) -> None:
        size_bytes = hosted.group.size_bytes
        self._size_bytes += size_bytes - hosted.size_bytes
        hosted.size_bytes = size_bytes

    async def _stored(self, hosted: _Hosted) -> None:
        """Returns when what has changed so far is stored. Raises `CoordinatorNotAvailable`."""
        if hosted.saver is not None:
            waiter = asyncio.get_running_loop().create_future()
            hosted.held.append(Answer(waiter, None))
            await waiter

    async def _save(self, hosted: _Hosted) -> None:
        group = hosted.group
        while group.changed or hosted.held:
            answers, hosted.held = hosted.held, []
            if group.changed and self._is_still_mine(hosted):
                try:
                    await self.cache.store(group.record(self.cache.next_version(self._wall_ms())))
                except Exception as error:
                    refusal = _refusal(group.group_id, error)
                    group.changed = True
                    ends = self._stopping.is_set() or hosted.given_up
                    if ends:
                        answers += hosted.held
                        hosted.held = []
                    _deliver(_refused(answers, refusal))
                    if ends:
                        break
                    await _wait(self._stopping, _STORE_AGAIN_S)
                    continue
            if not self._is_still_mine(hosted):
                answers += hosted.held
                hosted.held = []
                _deliver(_refused(answers, _not_coordinator(hosted)))
                break
            _deliver(answers)
        hosted.saver = None
        if group.state is GroupState.DEAD:
            self._drop(hosted)

    # The offsets of those who have gone

    async def _expire_offsets(self) -> None:
        while not await _wait(self._stopping, _EXPIRY_INTERVAL_S):
            try:
                await self.expire_offsets()
            except EngineError as error:
                log.error("old offsets could not be removed, again later: %s", error)

    async def expire_offsets(self) -> None:
        """Remove offsets past their retention, then groups that have nothing left.

        Raises `EngineError`.
        """
        for hosted in tuple(self._groups.values()):
            await asyncio.sleep(0)  # others go on meanwhile
            await self._expire_offsets_of(hosted)
        if self._keeps_house():
            await self.offsets.rewrite_old()

    async def _expire_offsets_of(self, hosted: _Hosted) -> None:
        group = hosted.group
        if (
            hosted.given_up
            or hosted.deleting
            or group.state not in (GroupState.EMPTY, GroupState.STABLE)
        ):
            return
        subscribed = self._subscribed(group)
        if subscribed is None:
            return
        empty_since = group.state_time_ms if group.state is GroupState.EMPTY else None
        expired = self.offsets.expired(
            group.group_id, self._wall_ms(), empty_since, subscribed, self._offsets_retention_ms
        )
        if expired:
            log.info("%d old offsets of group %s go", len(expired), group.group_id)
            await self.offsets.delete(group.group_id, expired)
        self._end_if_unused(hosted)

    def _end_if_unused(self, hosted: _Hosted) -> None:
        group = hosted.group
        if (
            group.state is GroupState.EMPTY
            and group.is_unused
            and not hosted.deleting
            and not self.offsets.is_used(group.group_id)
        ):
            group.die(self._now())
            self._after(hosted)


def _refusal(group_id: str, error: Exception) -> KafkaError:
    """What those are told who wait for a record that could not be stored."""
    if isinstance(error, EngineError):
        log.error("group %s could not be stored, again: %s", group_id, error)
        return CoordinatorNotAvailable("the group could not be stored")
    log.error("group %s cannot be stored: a defect", group_id, exc_info=error)
    return UnknownServerError("the group cannot be stored; see the broker's log")


def _not_coordinator(hosted: _Hosted) -> NotCoordinator:
    return NotCoordinator(f"another broker looks after group {hosted.group.group_id!r} now")


def _refused(answers: Sequence[Answer], refusal: KafkaError) -> list[Answer]:
    return [Answer(answer.waiter, refusal) for answer in answers]


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("a group id is needed")


def _deliver(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.waiter.done():  # its client has gone
            continue
        if isinstance(answer.outcome, KafkaError):
            answer.waiter.set_exception(answer.outcome)
        else:
            answer.waiter.set_result(answer.outcome)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether `event` came within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
