"""Parts of a broker in a cluster, in one process: shards on an embedded engine, and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from brokerhouse.broker.cluster.leases import SessionLease
from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.session import OwnSession, RenewedSession
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.broker.slots.shard_host import ShardEngine
from brokerhouse.broker.topics.topic_store import TopicShard
from brokerhouse.common.clock import wall_ms
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.registry import Versioned
from brokerhouse.storage.slot_map import SlotMap
from tests.support.shared_catalog import MemoryRegistry

TTL_MS = 9_000_000


class EmbeddedShard:
    """A shard whose only replica is an embedded engine."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.away = False
        self._engine = engine

    def expect_foreign_writes(self) -> None:
        """No other broker writes to this shard."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def embedded_shard(name: str, engine: Engine) -> ShardEngine:
    return cast(ShardEngine, EmbeddedShard(name, engine))


def own_session(slot_map: SlotMap) -> OwnSession:
    """The sessions of a broker that has read this map; none has begun."""
    view = RegistryView(MemoryRegistry(), slot_map, TTL_MS)
    view.slot_map = slot_map
    return OwnSession(view, BrokerSession(0, 1, "host", 9092, None, TTL_MS), 1)


def begin_session(session: OwnSession, session_id: int, *shards: str) -> RenewedSession:
    """Begin a session without the registry. It may write to these shards today."""
    view = session._view
    floors = dict.fromkeys(shards, wall_ms())
    row = BrokerSession(session_id, 1, "host", 9092, None, TTL_MS, append_floors=floors)
    at = Versioned(row.to_text(), 1)
    session.current = RenewedSession(view, row, at, SessionLease(TTL_MS, view.now_ms()), row)
    session.has_begun.set()
    return session.current


async def at_once() -> None:
    """No block is in flight."""


class DeletedTopics:
    """Shards to which nothing is being written. They note the topics whose offsets are deleted."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.forgotten: list[tuple[str, UUID]] = []
        self.shards = [TopicShard(one, at_once, self._forget_topic) for one in engines]

    async def _forget_topic(self, topic: str, topic_id: UUID) -> None:
        self.forgotten.append((topic, topic_id))
