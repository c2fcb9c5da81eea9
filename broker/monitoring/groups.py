"""Metrics of consumer groups: states, members, rebalances, lag.

The leader of a partition tells how far groups are behind there: it knows the end of the log, and
the offsets of all groups. In a cluster it reads offsets that other brokers have stored every few
seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import NamedTuple

from prometheus_client.core import Metric

from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.monitoring.families import counter, gauge
from brokerhouse.common.tasks import PER_TURN
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.coordinator.group_states import GroupState

_GROUP_NAME_MAX = 255
"""Groups with longer names are left out: a client may use 32,767 bytes."""


class _Lag(NamedTuple):
    """How far a group is behind on a partition. The furthest is the largest."""

    records: int
    group_id: str
    topic: str
    partition: int


class GroupMetrics:
    """`MetricSource` of the groups; `coordinators`: one for each shard."""

    def __init__(
        self, coordinators: Sequence[GroupCoordinator], logs: OpenLogs, lags_max: int
    ) -> None:
        self._coordinators = coordinators
        self._logs = logs
        self._lags_max = lags_max

    async def collect(self) -> Iterable[Metric]:
        return [*await self._of_groups(), *await self._lags()]

    async def _of_groups(self) -> list[Metric]:
        states: Counter[GroupState] = Counter(dict.fromkeys(GroupState, 0))
        members = number = 0
        for coordinator in self._coordinators:
            for hosted in coordinator.hosted_groups:
                states[hosted.group.state] += 1
                record = coordinator.record(hosted.group.group_id)
                members += 0 if record is None else len(record.members)
                number += 1
                if number % PER_TURN == 0:
                    await asyncio.sleep(0)
        hosts = [coordinator.hosted_groups for coordinator in self._coordinators]
        return [
            gauge(
                "brokerhouse_groups",
                "Consumer groups that this broker coordinates",
                [((state.value,), count) for state, count in states.items()],
                ("state",),
            ),
            gauge("brokerhouse_group_members", "Members of these groups", members),
            gauge(
                "brokerhouse_groups_bytes",
                "Memory of subscriptions and assignments, which groups_max_bytes limits",
                sum(host.size_bytes for host in hosts),
            ),
            counter(
                "brokerhouse_group_rebalances_total",
                "Generations that have begun",
                sum(host.rebalances for host in hosts),
            ),
        ]

    async def _lags(self) -> list[Metric]:
        known: dict[tuple[str, str, int], _Lag] = {}
        too_long = 0
        for coordinator in self._coordinators:
            for group_id in coordinator.offsets.groups():
                if len(group_id) > _GROUP_NAME_MAX:
                    too_long += 1
                    continue
                for lag in self._lags_of(coordinator, group_id):
                    known[lag[1:]] = lag
                    if len(known) % PER_TURN == 0:
                        await asyncio.sleep(0)
        shown = await asyncio.to_thread(nlargest, self._lags_max, known.values())
        return [
            gauge(
                "brokerhouse_group_lag_records",
                "Records between what a group has committed and the end of the log",
                [((one.group_id, one.topic, str(one.partition)), one.records) for one in shown],
                ("group", "topic", "partition"),
            ),
            gauge(
                "brokerhouse_group_lags_left_out",
                "Lags that are not shown because they are smaller: see metrics_partitions_max",
                len(known) - len(shown) + too_long,
            ),
        ]

    def _lags_of(self, coordinator: GroupCoordinator, group_id: str) -> list[_Lag]:
        """Of the partitions that this broker leads."""
        lags = []
        for (topic, partition), committed in coordinator.offsets.get(group_id).items():
            log = self._logs.find(committed.topic_id, partition)
            if log is not None:
                records = max(log.high_watermark - max(committed.offset, 0), 0)
                lags.append(_Lag(records, group_id, topic, partition))
        return lags
