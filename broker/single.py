"""A single broker: one process with the embedded engine, which leads every partition.

broker/server.py calls `open_engine`, then `open_single` (tables, the cluster's id), `open` (what is
stored is read, the lanes start) and, once clients may connect, `begin` (work in the background).
A single broker is a cluster of one: its engine is the only shard, its session never ends and owns
every slot (broker/slots/). What it has beside a broker of a cluster: the journal, the roll-up and
the sweeps of all rows, backups, and SQL for people.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from brokerhouse.broker.backup_socket import ControlSocket
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.feeds.host import embedded_store
from brokerhouse.broker.from_settings import (
    decompressions,
    journal_limits,
)
from brokerhouse.broker.log.producer_states import ProducerStateSweep
from brokerhouse.broker.log.reclaim import Reclaim
from brokerhouse.broker.log.rollup import AppendedRows, Rollup
from brokerhouse.broker.log.row_sources import JournaledRows
from brokerhouse.broker.log.sweep import Sweep
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.transaction_tables import TransactionSweep
from brokerhouse.broker.log.write_lease import EndlessSession
from brokerhouse.broker.monitoring.engine import EngineMetrics, JournalMetrics
from brokerhouse.broker.monitoring.logs import LaneSource
from brokerhouse.broker.node import (
    EmbeddedParts,
    FeedPlaces,
    Foundation,
    Node,
    Registries,
    cluster_id,
)
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts, Writing
from brokerhouse.broker.topics.topic_cleanup import TopicCleanup
from brokerhouse.broker.topics.topic_store import TopicTable
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.messages import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.feeds.tables import ALONE
from brokerhouse.sql.http.interface import make_app
from brokerhouse.storage.backup import Backups
from brokerhouse.storage.data_directory import refuse_unfinished
from brokerhouse.storage.disk_reserve import default_reserve_bytes
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE, EngineError
from brokerhouse.storage.journal import JournaledEngine, open_journal
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.new_directory import begin_directory
from brokerhouse.storage.part_codecs import set_part_codecs
from brokerhouse.storage.registry import TableRegistry
from brokerhouse.storage.schema import migrate, migrations, record_applied
from brokerhouse.storage.schema_files import ROW_BYTES_BY_SIZES
from brokerhouse.storage.shard_directory import refuse_shard

log = logging.getLogger(__name__)


class SingleNode(Node):
    """On the embedded engine."""

    def __init__(
        self, settings: Settings, engine: JournaledEngine, endpoint: BrokerEndpoint, cluster_id: str
    ) -> None:
        registry = TableRegistry(engine)
        reserve, data_dir = engine.embedded.reserve, Path(settings.data_dir)
        slots, session = OwnSlots.alone(), EndlessSession()
        cache = TailCache(settings.tail_cache_bytes, engine)
        decompressing = decompressions(settings)
        host = ShardHost(
            engine,
            settings,
            cache,
            slots,
            session.is_housekeeper,
            decompressing,
            JournaledRows(engine),
        )
        self._engine, self._slots, self._host = engine, slots, host
        self._writing = Writing(session, host.appender_of(session))
        appender = self._writing.appender
        expiration_ms = settings.producer_id_expiration_ms
        topic_store, hosts = TopicTable(engine, settings, reserve), ShardHosts([host])
        super().__init__(
            settings,
            Foundation(
                endpoint=endpoint,
                cluster_id=cluster_id,
                leadership=SlotLeadership.alone(endpoint),
                slots=slots,
                hosts=hosts,
                registries=Registries(registry, registry, registry),
                topic_store=topic_store,
                feed_places=FeedPlaces([embedded_store(engine, host.rows)], ALONE),
                tail_cache=cache,
                decompressions=decompressing,
                embedded=EmbeddedParts(
                    appender=appender,
                    tables=engine.patient,
                    sweeps=(
                        Sweep(engine.patient, wall_ms).round,
                        TransactionSweep(engine.patient, wall_ms).round,
                        ProducerStateSweep(engine.patient, expiration_ms, wall_ms).round,
                    ),
                    data_dir=data_dir.resolve(),
                ),
            ),
        )
        self.rollup = Rollup(
            engine.patient,
            appender,
            wall_ms,
            AppendedRows(lambda: sum(lane.counts.records for lane in appender.lanes)),
            ROW_BYTES_BY_SIZES,
            counted=host.counted,
        )
        reclaim = Reclaim(
            engine.embedded,
            self._logs,
            lambda topic_id: self.topics.by_id(topic_id) is not None,
            reserve,
        )
        cleanup = TopicCleanup(topic_store, self.topics, hosts.for_topics)
        self._periodics += [self.rollup, cleanup, reclaim.periodic]
        self.http = make_app(engine, settings.sql)
        self._control = ControlSocket(data_dir, Backups(engine, durable=settings.fsync))
        self._engine_metrics = EngineMetrics(engine.embedded, data_dir)
        self.metrics += [JournalMetrics(engine, settings.journal_max_bytes), self._engine_metrics]

    def _lanes(self) -> Sequence[LaneSource]:
        return [LaneSource("", lambda: self._writing.appender)]

    async def open(self, progress: Callable[[str], None]) -> None:
        """Read what is stored, and start the lanes. Raises `EngineError`."""
        await self._host.begin(self._writing)
        self._host.rows.start()
        progress("reading topics")
        await self.topics.refresh()
        if closed := self.topics.logs.missing(self.topics.all()):
            # No other broker leads them meanwhile.
            why = self.topics.logs.why_not_open
            raise EngineError(f"cannot open every log, {len(closed)} stayed closed: {why}")
        await self.broker.load_stored_configs()
        progress("reading consumer groups")
        live = {topic.name: topic.topic_id for topic in self.topics.all()}
        groups = self._host.groups
        await groups.load_groups(lambda _: True)
        await groups.offsets.keep_topics({**live, OFFSETS_TOPIC: OFFSETS_TOPIC_ID})
        groups.start()
        progress("reading transactions")
        await self.transactions.load(self._slots.owned)
        self.transactions.start()

    async def begin(self) -> None:
        await super().begin()
        await self._control.start()

    def unready(self) -> str | None:
        refused = self._engine.refused_records()
        return None if refused is None else f"records are refused: {refused}"

    async def hand_over(self) -> None:
        """There is no other broker to hand over to."""

    async def close(self) -> None:
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            parts.push_async_callback(super().close)
            parts.push_async_callback(self._engine_metrics.close)
            parts.push_async_callback(self._control.close)


async def open_engine(settings: Settings) -> JournaledEngine:
    """The embedded engine behind its journal. Raises `DataDirectoryError` and `EngineError`."""
    data_dir = Path(settings.data_dir)
    refuse_unfinished(data_dir)
    refuse_shard(data_dir)
    has_begun = await asyncio.to_thread(begin_directory, data_dir)
    embedded = await asyncio.to_thread(
        EmbeddedEngine,
        data_dir,
        STREAMS,
        settings.fsync,
        settings.sql_limits.bounds,
        reserve_bytes=settings.disk_reserve_bytes or default_reserve_bytes(data_dir),
    )
    try:
        if has_begun:
            await record_applied(embedded, DATABASE, migrations())
        return await open_journal(
            embedded,
            journal_limits(settings),
            fsync=settings.fsync,
            skip_damage=settings.journal_skip_damage,
        )
    except BaseException:
        await embedded.close()
        raise


async def open_single(
    settings: Settings,
    engine: JournaledEngine,
    endpoint: BrokerEndpoint,
    progress: Callable[[str], None],
) -> SingleNode:
    """Raises `SchemaError` and `EngineError`."""
    progress("checking tables")
    await migrate(engine)
    await set_part_codecs(engine.embedded)
    for path in await engine.embedded.damaged_parts():
        log.error("part %s is damaged and was detached: its rows are missing", path)
    return SingleNode(settings, engine, endpoint, await cluster_id(TableRegistry(engine)))
