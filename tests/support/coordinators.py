"""A coordinator of groups on a real engine, for tests of one part."""

from __future__ import annotations

from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.admission import GroupLimits
from brokerhouse.coordinator.group_cache import GroupCache
from brokerhouse.coordinator.group_coordinator import CoordinatorLimits, GroupCoordinator
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.slot_map import EMBEDDED
from tests.support.small_tables import ENDLESS

HOUR_MS = 3_600_000
LIMITS = GroupLimits(
    min_session_timeout_ms=1,
    max_session_timeout_ms=60_000,
    initial_rebalance_delay_ms=0,
    max_size=10,
)


def coordinator_on(
    engine: Engine, rows: RowLane, clock: Clock, max_bytes: int = 1 << 30
) -> GroupCoordinator:
    offsets = CommittedOffsets(engine, rows, 1, clock)
    cache = GroupCache(engine, rows, 1, ENDLESS, clock)
    limits = CoordinatorLimits(LIMITS, max_bytes, HOUR_MS)
    return GroupCoordinator(
        cache, offsets, PendingOffsets(engine, rows, offsets, 1, clock), limits, ENDLESS, clock
    )


def all_groups(coordinator: GroupCoordinator) -> SlotGroups:
    """The groups of a broker that serves every slot."""
    return SlotGroups(OwnSlots.alone(), {EMBEDDED: coordinator})
