"""Drives the state machine of a group: requests, answers, and a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from brokerhouse.common.clock import Moment
from brokerhouse.coordinator.admission import GroupLimits
from brokerhouse.coordinator.commit_rules import CommitKind
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.groups import Group
from brokerhouse.coordinator.messages import (
    Client,
    Committer,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.protocol.errors import (
    KafkaError,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
NEW_MEMBER_MS = 300_000
LIMITS = GroupLimits(6_000, 1_800_000, DELAY_MS, max_size=10)
CLIENT = Client("client", "/127.0.0.1")


@dataclass
class Asked:
    """A request and its answer; None while the request waits."""

    outcome: JoinAnswer | SyncAnswer | KafkaError | None = None

    @property
    def waits(self) -> bool:
        return self.outcome is None

    @property
    def joined(self) -> JoinAnswer:
        assert isinstance(self.outcome, JoinAnswer)
        return self.outcome

    @property
    def assignment(self) -> bytes:
        assert isinstance(self.outcome, SyncAnswer)
        return self.outcome.assignment

    def failed_with(self, error: type[KafkaError]) -> bool:
        return isinstance(self.outcome, error)


class Coordinator:
    """Drives a group: passes its answers on, and calls `tick` at every deadline."""

    def __init__(self, group: Group | None = None, now_ms: int = 0, /, **limits: int) -> None:
        self.now_ms = now_ms
        self.group = group or Group("g", replace(LIMITS, **limits), self.now, map(str, count(1)))

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    @property
    def generation(self) -> int:
        return self.group._rebalance.generation

    @property
    def leader(self) -> str:
        return self.group._rebalance.members.leader

    @property
    def protocol_type(self) -> str:
        return self.group._rebalance.protocol_type

    @property
    def protocol_name(self) -> str:
        return self.group._rebalance.protocol_name

    @property
    def member_count(self) -> int:
        return len(self.group._rebalance.members)

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[str | tuple[str, bytes], ...] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        handshake: bool = False,
        skips: bool = True,
        client: Client = CLIENT,
    ) -> Asked:
        request = JoinRequest(
            member_id,
            instance,
            client,
            session_ms,
            rebalance_ms,
            protocol_type,
            tuple((p, b"about " + p.encode()) if isinstance(p, str) else p for p in protocols),
            handshake,
            skips,
        )
        return self._ask(lambda asked: self.group.join(request, asked, self.now))

    def knock(self) -> str:
        with pytest.raises(MemberIdGiven) as given:
            self.join(handshake=True)
        return given.value.member_id

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        generation: int | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Asked:
        request = SyncRequest(
            member_id,
            instance,
            self.generation if generation is None else generation,
            protocol_type,
            protocol_name,
            assignments or {},
        )
        return self._ask(lambda asked: self.group.sync(request, asked, self.now))

    def heartbeat(
        self, member_id: str, *, instance: str | None = None, generation: int | None = None
    ) -> None:
        generation = self.generation if generation is None else generation
        self.group.heartbeat(member_id, instance, generation, self.now)

    def commit(
        self,
        member_id: str,
        *,
        instance: str | None = None,
        generation: int | None = None,
        kind: CommitKind = CommitKind.PLAIN,
    ) -> None:
        generation = self.generation if generation is None else generation
        self.group.check_commit(kind, Committer(member_id, instance, generation, CLIENT), self.now)

    def leave(self, member_id: str, instance: str | None = None) -> KafkaError | None:
        (outcome,) = self.group.leave([LeavingMember(member_id, instance)], self.now)
        self._hand_on()
        return outcome

    def wait(self, for_ms: int) -> None:
        until = self.now_ms + for_ms
        while (deadline := self.group.next_deadline()) is not None and deadline <= until:
            self.now_ms = max(self.now_ms, deadline)
            self.group.tick(self.now)
            self._hand_on()
        self.now_ms = until

    def restart(self) -> Coordinator:
        """Continue on another broker, with what this one would have stored by now."""
        group = Group.restored(self.group.record(1), LIMITS, self.now)
        return Coordinator(group, self.now_ms)

    def restart_with(self, *, rebalance_timeout_ms: int) -> Coordinator:
        """As `restart`, and every member has asked for that."""
        record = self.group.record(1)
        members = tuple(
            replace(member, rebalance_timeout_ms=rebalance_timeout_ms) for member in record.members
        )
        group = Group.restored(replace(record, members=members), LIMITS, self.now)
        return Coordinator(group, self.now_ms)

    def _ask(self, send: Callable[[Asked], None]) -> Asked:
        asked = Asked()
        try:
            send(asked)
        finally:
            self._hand_on()
        return asked

    def _hand_on(self) -> None:
        for answer in self.group.take_answers():
            assert answer.waiter.outcome is None, "answered twice"
            answer.waiter.outcome = answer.outcome


def joined(*members: Mapping[str, Any], **limits: int) -> tuple[Coordinator, list[str]]:
    """A group in its first generation that waits for the leader's assignment."""
    at = Coordinator(**limits)
    asked = [at.join(**member) for member in members]
    at.wait(2 * DELAY_MS)
    assert at.group.state is GroupState.COMPLETING_REBALANCE
    return at, [one.joined.member_id for one in asked]


def stable(*members: Mapping[str, Any], **limits: int) -> tuple[Coordinator, list[str]]:
    """A group in its first generation; the assignment of each member is its own id."""
    at, ids = joined(*members, **limits)
    settle(at, ids)
    return at, ids


def settle(at: Coordinator, ids: list[str]) -> None:
    synced = [
        at.sync(one, {each: each.encode() for each in ids} if one == at.leader else None)
        for one in ids
    ]
    assert [one.assignment for one in synced] == [one.encode() for one in ids]
    assert at.group.state is GroupState.STABLE


ANY: dict[str, Any] = {}
STATIC: dict[str, Any] = {"instance": "s"}
OTHER = (("range", b"something else"),)
