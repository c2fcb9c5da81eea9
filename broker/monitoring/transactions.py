"""Metrics of the transactional ids that this broker coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric

from brokerhouse.broker.monitoring.families import gauge
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.transaction_coordinator import TransactionCoordinator
from brokerhouse.coordinator.transaction_states import TransactionState


class TransactionMetrics:
    """`MetricSource` of transactions; `coordinators`: one for each shard."""

    def __init__(self, coordinators: Sequence[TransactionCoordinator]) -> None:
        self._coordinators = coordinators

    async def collect(self) -> Iterable[Metric]:
        states: Counter[TransactionState] = Counter(dict.fromkeys(TransactionState, 0))
        oldest_ms = now_ms = wall_ms()
        for coordinator in self._coordinators:
            for transaction in coordinator.all():
                states[transaction.state] += 1
                if transaction.state is TransactionState.ONGOING:
                    oldest_ms = min(oldest_ms, transaction.started_ms)
        return [
            gauge(
                "brokerhouse_transactions",
                "Transactional ids that this broker coordinates, by the state of the last one",
                [((state.value,), count) for state, count in states.items()],
                ("state",),
            ),
            gauge(
                "brokerhouse_transaction_oldest_seconds",
                "How long the oldest ongoing transaction has been open",
                (now_ms - oldest_ms) / 1000,
            ),
        ]
