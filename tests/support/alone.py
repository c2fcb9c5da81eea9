"""The logs of a single broker on an engine: one shard, and every slot is served."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from brokerhouse.broker.from_settings import decompressions
from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.row_sources import RowSource, ShardRows
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.coordinator.slots import OwnSlots, always
from brokerhouse.storage.engine import Engine
from brokerhouse.storage.registry import Registry
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.slot_map import EMBEDDED
from tests.support.cluster_parts import embedded_shard
from tests.support.log_parts import LANES
from tests.support.shared_catalog import MemoryRegistry


class OneShard:
    """`RowSources` of partitions that have always been on one shard."""

    def __init__(self, engine: Engine, stored: ShardRows | None = None) -> None:
        self._stored = stored or ShardRows(engine)

    async def of_offset(self, partition: PartitionLog, offset: int) -> RowSource:
        return self._stored.source(partition, offset)

    def engines(self, partition: PartitionLog) -> Sequence[Engine]:
        return (self._stored.engine,)

    def at_rest(self, partition: PartitionLog) -> Sequence[Engine]:
        return (self._stored.at_rest,)


class OneLane:
    """`RowLanes` of the same."""

    def __init__(self, lane: RowLane) -> None:
        self._lane = lane

    def lanes(self, partition: PartitionLog) -> Collection[RowLane]:
        return (self._lane,)


class GivenLogs(OpenLogs):
    """Open are the logs that a test adds, and no others."""

    def __init__(self) -> None:
        super().__init__(always)

    async def open_new(self, *_: object) -> bool:
        return True

    async def open_missing(self, *_: object) -> bool:
        return True


def all_logs(engine: Engine, ids: Registry | None = None) -> SlotLogs:
    """`ids`: where producer ids are reserved."""
    settings, slots = Settings(lanes=LANES - 1), OwnSlots.alone()
    host = ShardHost(
        embedded_shard(EMBEDDED, engine),
        settings,
        TailCache(0),
        slots,
        lambda _: always(),
        decompressions(settings),
    )
    return SlotLogs(slots, ShardHosts([host]), ProducerIds(ids or MemoryRegistry()))
