"""Parts that are built from the settings in the same way in several places.

broker/slots/shard_host.py builds them for each shard: the limits of the appender (broker/log/), and
the coordinator of the groups on one engine (coordinator/). The limits of the journal are the same
for a single broker and for `brokerhouse engine`.
"""

from __future__ import annotations

from dataclasses import replace

from brokerhouse.broker.log.block import AppendLimits
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.settings.config import Settings
from brokerhouse.common.clock import MINUTE_MS, Clock
from brokerhouse.coordinator.admission import GroupLimits
from brokerhouse.coordinator.group_cache import GroupCache
from brokerhouse.coordinator.group_coordinator import CoordinatorLimits, GroupCoordinator
from brokerhouse.coordinator.hosted_transactions import HostedTransactions, Markers
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.coordinator.slots import Duties, OwnSlots
from brokerhouse.coordinator.transaction_coordinator import (
    FreshIds,
    TransactionCoordinator,
    TransactionLimits,
)
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.journal import JournalLimits
from brokerhouse.storage.journal_drain import DrainLimits
from brokerhouse.storage.row_lane import RowLane

_SMALL_TABLES_WAIT = 4
"""How many times as long as records the rows of small tables stay in the journal. 10,000 committed
offsets a second cost the engine 0.09 of a core if they go into their table every 500 ms, and 0.05
every 2 s (measured)."""


def append_limits(settings: Settings) -> AppendLimits:
    return AppendLimits(
        settings.block_max_bytes,
        settings.block_max_rows,
        settings.decompressed_max_bytes,
        settings.linger_ms,
        settings.producer_id_expiration_ms,
    )


def decompressions(settings: Settings) -> Decompressions:
    return Decompressions(settings.decompression_budget_bytes, append_limits(settings))


def journal_limits(settings: Settings) -> JournalLimits:
    drain = DrainLimits(
        settings.journal_insert_bytes, settings.journal_insert_rows, settings.journal_insert_ms
    )
    small_tables = replace(drain, max_age_ms=_SMALL_TABLES_WAIT * drain.max_age_ms)
    return JournalLimits(settings.journal_max_bytes, drain, small_tables)


def transaction_coordinator(
    settings: Settings,
    engine: Engine,
    rows: RowLane,
    slots: OwnSlots,
    markers: Markers,
    producer_ids: FreshIds,
) -> TransactionCoordinator:
    """The coordinator of the transactional ids whose rows are in this engine."""
    limits = TransactionLimits(
        settings.transaction_max_timeout_ms,
        settings.transactional_ids_max,
        settings.transactional_id_expiration_ms,
    )
    clock = Clock()
    hosted = HostedTransactions(engine, rows, settings.node_id, slots, markers, clock)
    return TransactionCoordinator(hosted, producer_ids, limits, clock)


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
    offsets = CommittedOffsets(engine, rows, settings.node_id, clock)
    return GroupCoordinator(
        GroupCache(engine, rows, settings.node_id, duties, clock),
        offsets,
        PendingOffsets(engine, rows, offsets, settings.node_id, clock),
        CoordinatorLimits(
            limits, settings.groups_max_bytes, settings.offsets_retention_minutes * MINUTE_MS
        ),
        duties,
        clock,
    )
