"""Metrics of a broker of a cluster: its session, its slots, the shards, the other brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client.core import Metric

from brokerhouse.broker.cluster.session import OwnSession
from brokerhouse.broker.monitoring.families import counter, gauge
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.coordinator.slots import OwnSlots


class ShardState(Protocol):
    """The part of `storage.shards.Shard` that is used here."""

    name: str
    away: bool


class ClusterMetrics:
    """`MetricSource` of what only a cluster has."""

    def __init__(
        self,
        session: OwnSession,
        slots: OwnSlots,
        shards: Sequence[ShardState],
        leadership: SlotLeadership,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms`: the clock of the leases."""
        self._session = session
        self._slots = slots
        self._shards = shards
        self._leadership = leadership
        self._now_ms = now_ms

    async def collect(self) -> Iterable[Metric]:
        session, slots = self._session, self._slots
        current = session.current
        left_ms = 0 if current is None else current.lease.ends_ms - self._now_ms()
        return [
            gauge(
                "brokerhouse_cluster_session_valid",
                "1 while this broker may serve its slots, else 0",
                session.may_serve(),
            ),
            gauge(
                "brokerhouse_cluster_lease_seconds",
                "Time that this broker can serve without another renewal of its session",
                max(left_ms, 0) / 1000,
            ),
            counter(
                "brokerhouse_cluster_sessions_total",
                "Sessions that this broker has begun; each after the first means that one was lost",
                session.begun,
            ),
            gauge(
                "brokerhouse_cluster_slots",
                "Slots that this broker owns, and how many of them it serves",
                [(("owned",), len(slots.owned)), (("served",), len(slots.serving))],
                ("state",),
            ),
            gauge("brokerhouse_cluster_slots_all", "Slots of the cluster", slots.count),
            gauge(
                "brokerhouse_cluster_brokers",
                "Brokers that are alive, as far as this one knows",
                len(self._leadership.brokers()),
            ),
            gauge(
                "brokerhouse_cluster_shard_up",
                "1 while a replica of the shard answers, else 0",
                [((shard.name,), not shard.away) for shard in self._shards],
                ("shard",),
            ),
        ]
