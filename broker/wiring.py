"""Parts that a broker alone and a broker of a cluster build from the settings in the same way."""

from __future__ import annotations

from collections.abc import Callable

from broker.config import Settings
from broker.log.block import AppendLimits
from common.clock import wall_ms
from coordinator.coordinator import GroupCoordinator
from coordinator.groups import GroupLimits
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
    settings: Settings,
    engine: Engine,
    rows: RowLane,
    lease: Callable[[], bool] = lambda: True,
    keeps_house: Callable[[], bool] = lambda: True,
) -> GroupCoordinator:
    """The groups whose rows are in this engine."""
    offsets = CommittedOffsets(engine, rows, settings.node_id, wall_ms)
    return GroupCoordinator(
        SharedCache(engine, rows, settings.node_id, offsets, wall_ms, keeps_house=keeps_house),
        offsets,
        GroupLimits(
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
            settings.group_initial_rebalance_delay_ms,
            settings.group_max_size,
        ),
        settings.groups_max_bytes,
        settings.offsets_retention_minutes * 60_000,
        wall_ms,
        lease=lease,
        keeps_house=keeps_house,
    )
