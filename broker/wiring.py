"""Parts that a single broker and a broker of a cluster build from the settings in the same way.

broker/single.py builds them once, broker/cluster/shard_host.py for each shard: the limits of the
appender (broker/log/), and the coordinator of the groups on one engine (coordinator/).
"""

from __future__ import annotations

from broker.config import Settings
from broker.log.block import AppendLimits
from common.clock import MINUTE_MS, Clock
from coordinator.admission import GroupLimits
from coordinator.coordinator import CoordinatorLimits, GroupCoordinator
from coordinator.duties import Duties
from coordinator.membership import SharedCache
from coordinator.offsets import CommittedOffsets
from storage.engine import Engine
from storage.row_lane import RowLane


def append_limits(settings: Settings) -> AppendLimits:
    return AppendLimits(
        settings.block_max_bytes,
        settings.block_max_rows,
        settings.decompressed_max_bytes,
        settings.linger_ms,
        settings.producer_id_expiration_ms,
    )


def group_coordinator(
    settings: Settings, engine: Engine, rows: RowLane, duties: Duties
) -> GroupCoordinator:
    """The coordinator of the groups whose rows are in this engine."""
    clock = Clock()
    limits = GroupLimits(
        settings.group_min_session_timeout_ms,
        settings.group_max_session_timeout_ms,
        settings.group_initial_rebalance_delay_ms,
        settings.group_max_size,
    )
    return GroupCoordinator(
        SharedCache(engine, rows, settings.node_id, duties, clock),
        CommittedOffsets(engine, rows, settings.node_id, clock),
        CoordinatorLimits(
            limits, settings.groups_max_bytes, settings.offsets_retention_minutes * MINUTE_MS
        ),
        duties,
        clock,
    )
