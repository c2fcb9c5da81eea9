"""Clients of one group in random histories: their kinds, and the state of each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from brokerhouse.coordinator.admission import GroupLimits
from brokerhouse.coordinator.messages import (
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from brokerhouse.protocol.errors import (
    KafkaError,
)

PARTITIONS = range(7)
MAX_SIZE = 5
LONGEST_SESSION_MS = 10_000
LONGEST_REBALANCE_MS = 20_000
NEW_MEMBER_MS = 300_000
LIMITS = GroupLimits(1_000, 60_000, initial_rebalance_delay_ms=3_000, max_size=MAX_SIZE)


@dataclass(frozen=True)
class Profile:
    """What kind of client runs in a slot. Two slots with the same instance are twins."""

    instance: str | None = None
    protocols: tuple[str, ...] = ("range", "sticky")
    modern: bool = True  # JoinGroup v9: comes back with the id that it is given, may skip assigning
    keeps_member_id: bool = True  # after ILLEGAL_GENERATION
    session_ms: int = 6_000
    rebalance_ms: int = 12_000


PROFILES = (
    Profile(),
    Profile(session_ms=10_000, protocols=("sticky", "range")),
    Profile(modern=False, keeps_member_id=False),
    Profile("static-a", rebalance_ms=20_000),
    Profile("static-b", protocols=("range",), modern=False),
    Profile("static-a", protocols=("sticky", "range")),
    Profile(keeps_member_id=False, session_ms=3_000, rebalance_ms=5_000),
    Profile(protocols=("range", "alien")),
)
ALIENS = Profile(protocols=("alien",))


@dataclass(eq=False)
class Call:
    """One JoinGroup or SyncGroup in flight. Lost: no answer will ever arrive."""

    process: GroupProcess
    kind: str
    generation: int
    member_id: str
    lost: bool = False


@dataclass(eq=False)
class GroupProcess:
    """A client's process, with its view of the group."""

    name: str
    profile: Profile
    member_id: str = ""
    generation: int = -1
    leads: tuple[str, ...] | None = None
    skip_assignment: bool = False
    owned: frozenset[int] | None = None
    phase: str = "join"
    revision: int = 0
    call: Call | None = None
    sent: deque[JoinRequest | SyncRequest] = field(default_factory=lambda: deque(maxlen=4))
    inbox: deque[tuple[Call, JoinAnswer | SyncAnswer | KafkaError]] = field(default_factory=deque)
    running: bool = True
    hangs: bool = False

    def forget(self, *, member_id: bool) -> None:
        if member_id:
            self.member_id = ""
        self.generation = -1
        self.owned = self.leads = None
        self.phase = "join"

    def stop(self) -> None:
        self.running = False
        self.call = self.owned = None


def identity(member_id: str) -> str:
    """Who a member is: a static member is the same one under its next id."""
    return member_id.rpartition("-")[0] if member_id.startswith("static") else member_id


def number(member_id: str) -> int:
    """Ids of one member grow."""
    return int(member_id.rpartition("-")[2])
