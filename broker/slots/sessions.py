"""Sessions of brokers: their rows in the registry, and which brokers were alive lately. Pure.

leases.py in broker/cluster/ decides what follows from them. A single broker has one session, which
is only in memory and never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum

from brokerhouse.broker.net.named_addresses import NamedAddress
from brokerhouse.storage.registry_values import (
    MalformedState,
    count_of,
    name_of,
    object_of,
    shortened,
    text_of,
)


class SessionState(StrEnum):
    LIVE = "live"
    LEAVING = "leaving"  # gives its slots up, claims no others
    CLOSED = "closed"  # has given everything up
    DEAD = "dead"  # declared dead by another broker: final, no renewal succeeds any more


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker tells the other brokers with each renewal.

    `lanes`: for each shard, how many numbers of each lane are resolved; a shard must be in it
    before the first block is sent there; otherwise nobody could fence the session on it.
    """

    day: int
    lanes: Mapping[str, tuple[int, ...]]
    append_floors: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    topics_seen: int = 0
    failures_ms: Mapping[str, int] = field(default_factory=dict)
    """When servers have last failed, lately: by URL."""


@dataclass(frozen=True, slots=True)
class BrokerSession:
    """One session of a broker: its row in the registry. Only that broker renews it.

    `renewals` counts the renewals that were sent, so that no two rows are the same text.
    """

    session_id: int
    node_id: int
    host: str
    port: int
    rack: str | None
    ttl_ms: int
    state: SessionState = SessionState.LIVE
    renewals: int = 0
    day: int = 0
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    append_floors: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    topics_seen: int = 0
    listeners: tuple[NamedAddress, ...] = ()
    failures_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.state in (SessionState.CLOSED, SessionState.DEAD)

    def renewed(self, state: SessionState, report: BrokerReport) -> BrokerSession:
        """The row of the next renewal."""
        return replace(
            self,
            state=state,
            renewals=self.renewals + 1,
            day=report.day,
            lanes=report.lanes,
            append_floors=report.append_floors,
            away=report.away,
            topics_seen=report.topics_seen,
            failures_ms=report.failures_ms,
        )

    def ended(self, state: SessionState) -> BrokerSession:
        """The last row of the session; what it said about its lanes stays."""
        return replace(self, state=state)

    def to_text(self) -> str:
        return text_of(asdict(self) | {"away": sorted(self.away)})

    @classmethod
    def from_text(cls, text: str) -> BrokerSession:
        """Raises `MalformedState`."""
        # Brokers of earlier versions do not write these.
        required = {one.name for one in fields(cls)} - {"listeners", "failures_ms"}
        found = object_of(text, required, "a session")
        try:
            return cls(
                session_id=count_of(found["session_id"]),
                node_id=count_of(found["node_id"]),
                host=name_of(found["host"]),
                port=count_of(found["port"]),
                rack=None if found["rack"] is None else name_of(found["rack"]),
                ttl_ms=count_of(found["ttl_ms"]),
                state=SessionState(found["state"]),
                renewals=count_of(found["renewals"]),
                day=count_of(found["day"]),
                lanes={
                    name_of(shard): tuple(count_of(number) for number in numbers)
                    for shard, numbers in found["lanes"].items()
                },
                append_floors={
                    name_of(key): count_of(floor) for key, floor in found["append_floors"].items()
                },
                away=frozenset(name_of(shard) for shard in found["away"]),
                topics_seen=count_of(found["topics_seen"]),
                listeners=tuple(
                    NamedAddress(name_of(name), name_of(host), count_of(port))
                    for name, host, port in found.get("listeners", ())
                ),
                failures_ms={
                    name_of(url): count_of(at_ms)
                    for url, at_ms in found.get("failures_ms", {}).items()
                },
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise MalformedState(
                f"a text in the registry is not a session: {error}: {shortened(text)}"
            ) from error


LATELY_MS = 300_000
"""For how long a broker that is gone may be named to clients. They refresh their metadata so often
by themselves (metadata.max.age.ms)."""


class LatelyAlive:
    """The last session that one observer has seen of each broker, for a while after its end."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._looked_ms = 0
        self._seen: dict[int, tuple[BrokerSession, int]] = {}

    def saw(self, sessions: Iterable[BrokerSession], now_ms: int) -> None:
        """Note the sessions that are not over."""
        self._looked_ms = now_ms
        for session in sessions:
            if not session.is_over:
                self._seen[session.node_id] = session, now_ms
        self._seen = {
            node_id: (session, at_ms)
            for node_id, (session, at_ms) in self._seen.items()
            if now_ms - at_ms <= self._kept_ms
        }

    def sessions(self, within_ms: int) -> list[BrokerSession]:
        """Those seen alive in the last so many milliseconds before the last look."""
        return [
            session
            for session, at_ms in self._seen.values()
            if self._looked_ms - at_ms <= within_ms
        ]
