"""The groups in this broker's memory, each with its timer and the record that is being stored.

No client gets an answer before the decision is stored: an answer waits for the record of its group.
Records of one group are stored one after the other, and changes that happen meanwhile go into the
next record. So a group that many members join at once is stored a few times, not once for each
member. If the engine refuses a record, the waiting requests fail with an error that makes clients
look up their coordinator again, and the broker retries the record.

If the broker's session ends while a record is being stored, its requests get no answer: the next
coordinator reads the stored rows. A late row never hides a newer one, because versions follow the
clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from brokerhouse.common.clock import Clock, Moment
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import event_within
from brokerhouse.coordinator.group_cache import GroupCache
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group
from brokerhouse.coordinator.messages import Answer, GroupRecord, JoinAnswer, Waiter
from brokerhouse.coordinator.slots import Duties
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    KafkaError,
    NotCoordinator,
    UnknownServerError,
)
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_STORE_AGAIN_S = 1.0
RequestT = TypeVar("RequestT")


class HostedGroups:
    """The groups that this broker coordinates. `max_bytes` bounds what they take in memory."""

    def __init__(self, cache: GroupCache, duties: Duties, clock: Clock, max_bytes: int) -> None:
        self.cache = cache
        self.duties = duties
        self.clock = clock
        self.stopping = asyncio.Event()
        self.size_bytes = 0
        self.rebalances = 0
        """Generations that have begun here."""
        self._max_bytes = max_bytes
        self._by_id: dict[str, HostedGroup] = {}

    def __iter__(self) -> Iterator[HostedGroup]:
        """All of them. Groups may be added and removed during the iteration."""
        return iter(tuple(self._by_id.values()))

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_id

    def ids(self) -> list[str]:
        return list(self._by_id)

    def get(self, group_id: str) -> HostedGroup | None:
        return self._by_id.get(group_id)

    def add(self, group: Group) -> HostedGroup:
        hosted = self._by_id[group.group_id] = HostedGroup(group, self)
        return hosted

    def forget(self, hosted: HostedGroup) -> None:
        if self._by_id.get(hosted.group.group_id) is hosted:
            del self._by_id[hosted.group.group_id]

    def unload(self, chosen: Callable[[str], bool]) -> list[HostedGroup]:
        """Stop coordinating these groups, and refuse the requests that wait for them."""
        unloaded = [hosted for hosted in self if chosen(hosted.group.group_id)]
        for hosted in unloaded:
            hosted.unload()
        return unloaded

    def stop(self) -> None:
        """Refuse every request that waits: this broker stops. No member is removed any more."""
        self.stopping.set()
        for hosted in self:
            hosted.stop()

    def has_room_for(self, added_bytes: int) -> bool:
        return self.size_bytes + added_bytes <= self._max_bytes

    def refuse_when_full(self, added_bytes: int) -> None:
        if not self.has_room_for(added_bytes):
            raise GroupMaxSizeReached(
                "The broker's groups_max_bytes leave no room for this member."
            )

    def refuse_when_stopping(self) -> None:
        if self.stopping.is_set():
            raise CoordinatorNotAvailable("The broker is shutting down.")


class HostedGroup:
    """One group with its timer, and with the answers that wait until its next record is stored."""

    def __init__(self, group: Group, host: HostedGroups) -> None:
        self.group = group
        self.is_being_deleted = False
        self.is_unloaded = False
        self.saver: asyncio.Task[None] | None = None
        self._host = host
        self._size_bytes = 0
        self._generation = group.generation
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[Answer] = []
        self._being_stored: list[Answer] = []
        """Those that wait for the record which is being stored."""

    @property
    def is_mine(self) -> bool:
        """Whether this broker still coordinates the group, and may say so."""
        return not self.is_unloaded and self._host.duties.may_serve()

    def not_coordinator(self) -> NotCoordinator:
        return NotCoordinator(f"Another broker coordinates the group {self.group.group_id!r} now.")

    def not_stored(self, what: str, error: EngineError) -> KafkaError:
        """The error for a client that can only retry.

        Not KAFKA_STORAGE_ERROR, which ends a Java consumer that commits (its
        `ConsumerCoordinator` takes it for a bug).
        """
        if not self.is_mine:
            return self.not_coordinator()
        log.error(
            "cannot store %s of group %s: %s",
            what,
            self.group.group_id,
            error,
            extra=counted(what),
        )
        return CoordinatorNotAvailable(f"The broker could not store {what}; see its log.")

    def refuse_when_being_deleted(self) -> None:
        if self.is_being_deleted:
            raise CoordinatorNotAvailable("The group is being deleted.")

    async def answered(
        self, decide: Callable[[RequestT, Waiter, Moment], None], request: RequestT
    ) -> Any:
        """Have the group decide about a request that may wait. Returns its answer, or raises."""
        waiter = asyncio.get_running_loop().create_future()
        try:
            decide(request, waiter, self._host.clock.now())
        finally:
            self.after_event()
        return await waiter

    def after_event(self) -> None:
        """Store what changed, send the answers, and set the timer for the next deadline."""
        if self.is_unloaded:
            _deliver(self.group.take_answers(), refusal=self.not_coordinator())
            return
        if not self._host.stopping.is_set():
            self._let_time_pass()
        self._measure()
        answers = self.group.take_answers()
        if self.group.changed or self.saver is not None:
            self._held += answers
            if self.saver is None:
                name = f"store-group-{self.group.group_id}"
                self.saver = asyncio.create_task(self._save(), name=name)
            return
        _deliver(answers)

    async def stored(self) -> None:
        """Returns when all changes up to now are stored. Raises `CoordinatorNotAvailable`."""
        if self.saver is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._held.append(Answer(waiter, None))
            await waiter

    def unload(self) -> None:
        self.is_unloaded = True
        self.group.shut_down(self.not_coordinator())
        _deliver(self.group.take_answers())
        self._drop()

    def stop(self) -> None:
        self._cancel_timer()
        self.group.shut_down(CoordinatorNotAvailable("The broker is shutting down."))
        _deliver(self.group.take_answers())

    def _let_time_pass(self) -> None:
        """Act on every deadline that has passed, and set the timer for the next one."""
        clock = self._host.clock
        if any(isinstance(one.outcome, JoinAnswer) for one in (*self._held, *self._being_stored)):
            self.group.sync_wait.begin_anew(clock.monotonic_ms())
        while (deadline := self.group.next_deadline()) is not None:
            if deadline > clock.monotonic_ms():
                break
            self.group.tick(clock.now())
        self._cancel_timer()
        if deadline is not None:
            delay_s = max(deadline - clock.monotonic_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.after_event)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self) -> None:
        size_bytes = self.group.size_bytes
        self._host.size_bytes += size_bytes - self._size_bytes
        self._size_bytes = size_bytes
        self._host.rebalances += self.group.generation - self._generation
        self._generation = self.group.generation

    def _drop(self) -> None:
        self._cancel_timer()
        self._host.size_bytes -= self._size_bytes
        self._size_bytes = 0
        self._host.forget(self)

    async def _save(self) -> None:
        while self.group.changed or self._held:
            answers = self._being_stored = self._take_held()
            if self.group.changed and self.is_mine:
                try:
                    await self._host.cache.store(self._next_record())
                except Exception as error:
                    refusal = _refusal(self.group.group_id, error)
                    self.group.mark_changed()
                    if self._host.stopping.is_set() or self.is_unloaded:
                        _deliver(answers + self._take_held(), refusal=refusal)
                        break
                    _deliver(answers, refusal=refusal)
                    await event_within(self._host.stopping, _STORE_AGAIN_S)
                    continue
            if not self.is_mine:
                _deliver(answers + self._take_held(), refusal=self.not_coordinator())
                break
            self._let_time_pass()  # while the answers count as held: waits for them begin now
            _deliver(answers)
            self._being_stored = []
        self._being_stored = []
        self.saver = None
        if self.group.state is GroupState.DEAD:
            self._drop()

    def _next_record(self) -> GroupRecord:
        return self.group.record(self._host.cache.next_version(self._host.clock.wall_ms()))

    def _take_held(self) -> list[Answer]:
        held, self._held = self._held, []
        return held


def _refusal(group_id: str, error: Exception) -> KafkaError:
    """The error for requests that wait for a record that could not be stored."""
    if isinstance(error, EngineError):
        log.error(
            "cannot store group %s; retrying in %g s: %s",
            group_id,
            _STORE_AGAIN_S,
            error,
            extra=counted(),
        )
        return CoordinatorNotAvailable("The broker could not store the group; see its log.")
    log.error("bug: cannot store group %s", group_id, exc_info=error, extra=counted())
    return UnknownServerError("The broker could not store the group; see its log.")


def _deliver(answers: Sequence[Answer], *, refusal: KafkaError | None = None) -> None:
    """Answer the requests that wait; with `refusal`, all of them with that error instead."""
    for answer in answers:
        if answer.waiter.done():  # its client has gone
            continue
        outcome = refusal or answer.outcome
        if isinstance(outcome, KafkaError):
            answer.waiter.set_exception(outcome)
        else:
            answer.waiter.set_result(outcome)
