"""A new cluster takes over what a single broker had in its registry, `cluster_state`.

The engine of the single broker is a shard by now (storage/shard_directory.py), so its rows are in
place: records, groups, offsets, transactions, the states of producers. What brokers of a cluster
have in Keeper is copied there by the first broker that starts: topics, configs, quotas, the next
producer id, how far feeds are, and last of all the id of the cluster. What must hold:

* Until the id is in Keeper, no broker serves, and the copy is made anew by each start. One broker
  at a time makes it: it holds the lock of the migrations.
* After that, `cluster_state` is emptied. So a shard that still has an id belongs to no cluster yet.
  A broker does not start with such a shard if its cluster has another id, because it would take the
  topics of that shard for deleted ones.
* All slots are on that shard at first: it has the rows of all partitions and groups. Slots that the
  configuration puts on another shard are moved there at once, so only their new records go there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from brokerhouse.broker.cluster.config import ClusterConfig
from brokerhouse.broker.cluster.servers import layout, registry_of
from brokerhouse.broker.cluster.topic_registry import stored_rows
from brokerhouse.broker.node import CLUSTER_ID_KEY
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.start_error import StartError
from brokerhouse.broker.topics.topic_store import TopicTable
from brokerhouse.feeds.blocks import moved_to_keeper
from brokerhouse.feeds.definition import FeedStatus, definitions_of, split_name
from brokerhouse.feeds.tables import filled_table
from brokerhouse.sql.queries import query
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.cluster_schema import MigrationLock
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.parameters import quoted
from brokerhouse.storage.registry import Registry, TableRegistry, Versioned
from brokerhouse.storage.shards import AnyServer
from brokerhouse.storage.slot_map import SLOTS_KEY, SlotMap

log = logging.getLogger(__name__)

_FEED_STATE = "feed/"
_OF_ADMINISTRATORS = ("config/", "quota/")
_NO_TABLES = frozenset((60, 81))  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_CHANGE_KEYS = 250
_CHANGE_CHARS = 200_000
"""Of one change of the registry: Keeper takes 1 MB."""


@dataclass(frozen=True, slots=True)
class _Single:
    """The registry of a single broker, and the shard that has it."""

    shard: str
    engine: Engine
    state: Mapping[str, Versioned]

    @property
    def cluster_id(self) -> str:
        return self.state[CLUSTER_ID_KEY].value


async def adopt_single_broker(
    settings: Settings, config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]
) -> None:
    """Take over what a single broker has left on a shard, if there is such a shard.

    `servers`: by shard; their default database is that of the shard. Raises `StartError` if the
    shard does not belong to this cluster, `SchemaError` and `EngineError`.
    """
    found = await _singles(config, servers)
    if not found:
        return
    registry = registry_of(servers, timeout_ms=config.request_timeout_ms)
    lock = MigrationLock(registry)
    await lock.acquire()
    try:
        cluster_id = await registry.get(CLUSTER_ID_KEY)
        _check(config, found, cluster_id)
        (single,) = found
        if cluster_id is None:
            adoption = _Adoption(settings, config, servers, single, lock)
            await adoption.copy()
            await lock.renew()
            await registry.compare_and_set(CLUSTER_ID_KEY, None, single.cluster_id)
            _check(config, found, await registry.get(CLUSTER_ID_KEY))
            log.info(
                "cluster %s took over the topics of the single broker on shard %s",
                config.name,
                single.shard,
            )
        await single.engine.execute("TRUNCATE TABLE cluster_state")
    finally:
        await lock.release()


async def check_layout(
    config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]
) -> None:
    """Why the tables of a cluster cannot be made: a clearer reason than that of the engine.

    Raises `StartError` if a shard that was a single broker cannot have the tables of this
    configuration, and `EngineError`.
    """
    if found := await _singles(config, servers):
        _check(config, found, None)


async def _singles(
    config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]
) -> list[_Single]:
    """The shards that have the registry of a single broker.

    Raises `EngineError` if a shard of a new cluster does not answer: it may be the one.
    """

    async def single_of(shard: str, replicas: list[ClickHouseServer]) -> _Single | None:
        engine = AnyServer(replicas, config.request_timeout_ms)
        try:
            state = await TableRegistry(engine).list("")
        except EngineError as error:
            if error.code in _NO_TABLES:
                return None
            is_away = not error.code
            if is_away and await registry_of(servers).get(CLUSTER_ID_KEY) is not None:
                return None
            raise
        return _Single(shard, engine, state) if CLUSTER_ID_KEY in state else None

    found = await asyncio.gather(*(single_of(name, some) for name, some in servers.items()))
    return [one for one in found if one is not None]


def _check(config: ClusterConfig, found: Sequence[_Single], cluster_id: Versioned | None) -> None:
    """Raises `StartError` unless there is one, of this cluster or a new one.

    `cluster_id`: None: the cluster has none yet.
    """
    for single in found:
        if cluster_id is not None and cluster_id.value != single.cluster_id:
            raise StartError(
                f"shard {single.shard} has the data of a single broker, which only a new cluster"
                f" can take over: remove the shard from the configuration of cluster {config.name},"
                " or make it the first shard of another cluster"
            )
    if len(found) > 1:
        names = " and ".join(single.shard for single in found)
        raise StartError(
            f"shards {names} have the data of single brokers, and a cluster can take over only"
            " one: leave one of them in the configuration"
        )
    if config.replicated or config.distributed:
        raise StartError(
            f"shard {found[0].shard} is the engine of a single broker, which cannot replicate:"
            " write replicated = false and distributed = false into [cluster]"
        )


class _Adoption:
    """Copies everything but the id of the cluster. Every step can be repeated."""

    def __init__(
        self,
        settings: Settings,
        config: ClusterConfig,
        servers: Mapping[str, list[ClickHouseServer]],
        single: _Single,
        lock: MigrationLock,
    ) -> None:
        self._settings = settings
        self._config = config
        self._servers = servers
        self._single = single
        self._lock = lock

    async def copy(self) -> None:
        """Raises `StartError` if a feed cannot go on, `SchemaError` and `EngineError`."""
        await self._rename_tables_of_feeds()
        topics, feeds, others = await self._topics(), dict[str, str](), dict[str, str]()
        for key, stored in self._single.state.items():
            if key.startswith(_FEED_STATE):
                shard = self._single.shard
                feeds[key] = moved_to_keeper(stored.value, stored.version, shard)
            elif key.startswith(_OF_ADMINISTRATORS):
                topics[key] = stored.value
            elif key != CLUSTER_ID_KEY:
                others[key] = stored.value
        others[SLOTS_KEY] = self._first_map().to_text()
        await self._replace(self._registry("topic_registry"), topics)
        await self._replace(self._registry("feed_registry"), feeds)
        registry = self._registry("registry")
        for key, value in others.items():
            before = await registry.get(key)
            await self._lock.renew()  # after it is read: a broker that stalls changes nothing more
            await registry.compare_and_set(key, before, value)

    def _registry(self, table: str) -> Registry:
        return registry_of(self._servers, table, self._config.request_timeout_ms)

    async def _topics(self) -> dict[str, str]:
        table = TopicTable(self._single.engine, self._settings)
        live = (await table.read()).live.values()
        return stored_rows(live, await table.deleted())

    def _first_map(self) -> SlotMap:
        slots = self._config.slots
        first = SlotMap.first([(self._single.shard, range(slots))], slots)
        for shard in self._config.shards:
            numbers = [number for some in shard.slots for number in some]
            first = first.move(numbers, shard.name)
        return first

    async def _replace(self, registry: Registry, wanted: Mapping[str, str]) -> None:
        """Let the registry have these keys alone: a start that was killed may have left others."""
        left = dict(wanted)
        for key, stored in (await registry.list("")).items():
            await self._lock.renew()
            if key not in wanted:
                await registry.delete(key, stored)
            elif stored.value == left.pop(key):
                continue
            else:
                await registry.compare_and_set(key, stored, wanted[key])
        for some in _portions(left):
            await self._lock.renew()
            await registry.create(some)

    async def _rename_tables_of_feeds(self) -> None:
        """The part that a shard has of a feed's table has another name than on a single broker."""
        rows = await self._single.engine.rows(query("feed_definitions"))
        feeds, wrong = definitions_of([rows])
        for sentence in wrong:
            log.error("cannot take over a typed table, so it keeps its name: %s", sentence)
        for feed in feeds:
            if feed.status is not FeedStatus.DROPPED and not feed.is_router:
                await self._lock.renew()
                await self._rename(feed.name)

    async def _rename(self, feed: str) -> None:
        engine = self._single.engine
        database, table = split_name(feed)
        part = filled_table(table, layout(self._config))
        names = {"database": database, "names": [table, part]}
        there = dict(await engine.rows(query("views_on_tables"), names))
        if table not in there:
            return
        if part in there:
            raise StartError(
                f"{database}.{part} exists, and the rows of {feed} get that name on a shard: rename"
                f" {database}.{part}, and start this broker again"
            )
        if views := there[table]:
            raise StartError(
                f"{', '.join(views)} would not get the rows of {feed} any more, which are in"
                f" {database}.{part} on a shard: drop what is named here, start this broker, and"
                f" create it again, reading {database}.{part}"
            )
        await engine.execute(
            f"RENAME TABLE {quoted(database)}.{quoted(table)} TO {quoted(database)}.{quoted(part)}"
        )


def _portions(rows: Mapping[str, str]) -> Iterator[dict[str, str]]:
    portion: dict[str, str] = {}
    chars = 0
    for key, value in rows.items():
        if portion and (len(portion) == _CHANGE_KEYS or chars + len(value) > _CHANGE_CHARS):
            yield portion
            portion, chars = {}, 0
        portion[key] = value
        chars += len(key) + len(value)
    if portion:
        yield portion
