"""Applies the statements of cluster_sql.py to the servers of a cluster, each once per server.

* Each server records what was applied to it (table `schema_migrations`, not replicated, in each of
  the two databases). So a server that is added later, or was away, gets what it lacks at the next
  migration.
* Every statement can be applied again. A lock in the registry lets one broker at a time migrate, so
  that two do not replace the same view at once. The lock of a broker that died is taken over.
* A new statement runs ON CLUSTER where servers replicate and all of them answer; otherwise on each
  server by itself. A replica that joins others gets their tables as they are now: ClickHouse
  refuses to create them as they once were (METADATA_MISMATCH after an ALTER).
* Tables of a newer version are refused before anything is changed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    ClusterMigration,
    foundation,
    people_migrations,
    shard_migrations,
)
from brokerhouse.storage.engine import DATABASE, Engine, EngineError
from brokerhouse.storage.registry import Registry, Versioned
from brokerhouse.storage.schema import history, make_history, migrations, record_applied
from brokerhouse.storage.schema_files import SchemaError

SCHEMA_KEY = "schema"
"""In the registry: the newest version that was applied anywhere, and who holds the lock."""
TAKE_OVER_S = 30.0
"""A holder of the lock that showed no progress for this long is dead: a statement takes less."""
_POLL_S = 0.2
_DDL_TIMEOUT_S = 8

log = logging.getLogger(__name__)


class SchemaServer(Engine, Protocol):
    """One server, by itself: no failover. Its connections may be in any database that exists."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Migrated:
    """The names of what was applied to at least one server, and the servers that did not answer."""

    applied: tuple[str, ...]
    away: tuple[str, ...]


@dataclass(slots=True)
class _Target:
    """A server that answers, and the numbers of the migrations that it has, by database."""

    shard: str
    server: SchemaServer
    has: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Version:
    """The registry's row. The holder raises `turns` with every step, to show that it is alive."""

    version: int = 0
    holder: str = ""
    turns: int = 0

    def to_text(self) -> str:
        return json.dumps({"version": self.version, "holder": self.holder, "turns": self.turns})

    @classmethod
    def from_row(cls, row: Versioned | None) -> _Version:
        if row is None:
            return cls()
        try:
            found = json.loads(row.value)
            return cls(int(found["version"]), str(found["holder"]), int(found["turns"]))
        except (ValueError, TypeError, KeyError) as error:
            raise SchemaError(
                f"the key {SCHEMA_KEY} in the registry is not a version: {row.value}"
            ) from error


async def migrate_cluster(
    shards: Mapping[str, Sequence[SchemaServer]], layout: ClusterLayout, registry: Registry
) -> Migrated:
    """Bring all servers that answer up to this version.

    `shards`: every server of every shard, by the shard's name. `registry` reads and writes the
    table `registry`, which need not exist yet. Raises `SchemaError` when the tables were made by a
    newer version or another broker took the lock over, and `EngineError` when a statement failed
    or no server answers.
    """
    targets, away = await _reach(shards)
    made = databases(layout)
    for target in targets:
        await _read_history(target, made)
    up_to_date = not any(_lacks(target, made) for target in targets)
    if up_to_date and _Version.from_row(await registry.get(SCHEMA_KEY)).version == _newest():
        return Migrated((), away)
    for target in targets:
        for one in foundation(layout):
            await target.server.execute(one.statement)
        for database in made:
            await make_history(target.server, database)
    lock = MigrationLock(registry)
    await lock.acquire()
    try:
        applied: list[str] = []
        for target in targets:
            await _read_history(target, made)
        for database, known in made.items():
            everywhere = layout.name if layout.replicated and not away else None
            applied += await _apply(targets, database, known, everywhere, lock)
        await lock.record_version(_newest())
    finally:
        await lock.release()
    return Migrated(tuple(dict.fromkeys(applied)), away)


def _newest() -> int:
    return migrations()[-1].number


def databases(layout: ClusterLayout) -> dict[str, list[ClusterMigration]]:
    """The migrations of each database of a server."""
    found = {SHARD_DATABASE: shard_migrations(layout)}
    if layout.distributed:
        found[DATABASE] = people_migrations(layout)
    return found


async def _reach(
    shards: Mapping[str, Sequence[SchemaServer]],
) -> tuple[list[_Target], tuple[str, ...]]:
    """The servers that answer, and the URLs of those that do not.

    Raises `EngineError` if one answers with an error, or none answers.
    """

    async def ask(shard: str, server: SchemaServer) -> EngineError | _Target:
        try:
            await server.rows("SELECT 1")
        except EngineError as error:
            if error.code:
                raise
            return error
        return _Target(shard, server)

    servers = [(shard, server) for shard, all_of_it in shards.items() for server in all_of_it]
    answers = await asyncio.gather(*(ask(shard, server) for shard, server in servers))
    targets = [answer for answer in answers if isinstance(answer, _Target)]
    failures = [answer for answer in answers if isinstance(answer, EngineError)]
    if not targets:
        raise (
            failures[0]
            if failures
            else EngineError("the configuration has no servers: add replicas to [[cluster.shards]]")
        )
    answering = {target.server.url for target in targets}
    away = tuple(server.url for _, server in servers if server.url not in answering)
    if away:
        log.warning("cannot migrate these servers, because they do not answer: %s", ", ".join(away))
    return targets, away


async def _read_history(
    target: _Target, databases: Mapping[str, Sequence[ClusterMigration]]
) -> None:
    rows = await target.server.rows(
        "SELECT database FROM system.tables WHERE name = 'schema_migrations'"
    )
    existing = {str(database) for (database,) in rows}
    for database in databases:
        has = await history(target.server, database) if database in existing else set()
        if has and max(has) > (newest := _newest()):
            raise SchemaError(
                f"the tables on {target.server.url} were made by a newer version of brokerhouse "
                f"(they are at {max(has)}, this version knows {newest}): start that version"
            )
        target.has[database] = has


def _lacks(
    target: _Target, databases: Mapping[str, Sequence[ClusterMigration]]
) -> list[ClusterMigration]:
    return [
        one
        for name, known in databases.items()
        for one in known
        if one.number not in target.has[name]
    ]


async def _apply(
    targets: Sequence[_Target],
    database: str,
    known: Sequence[ClusterMigration],
    everywhere: str | None,
    lock: MigrationLock,
) -> list[str]:
    """Apply every migration that some server lacks, in order; returns their names.

    `everywhere`: the cluster's name where ON CLUSTER may be used.
    """
    done: dict[str, list[ClusterMigration]] = {target.server.url: [] for target in targets}
    applied = []
    try:
        for number, statements in groupby(known, key=lambda one: one.number):
            lacking = [target for target in targets if number not in target.has[database]]
            if not lacking:
                continue
            for one in statements:
                await lock.renew()
                if everywhere is not None and len(lacking) == len(targets):
                    await lacking[0].server.execute(_for_all(one, everywhere))
                else:
                    for target in lacking:
                        await target.server.execute(await _for_one(one, target, targets, database))
            for target in lacking:
                done[target.server.url].append(one)
            applied.append(one.name)
            log.info("applied %s to %s of %d servers", one.name, database, len(lacking))
    finally:
        for target in targets:
            if news := done[target.server.url]:
                await record_applied(target.server, database, news)
    return applied


def _for_all(one: ClusterMigration, cluster: str) -> str:
    return (
        f"{one.on_cluster(cluster)} FORMAT Null"
        f" SETTINGS distributed_ddl_task_timeout = {_DDL_TIMEOUT_S},"
        " distributed_ddl_output_mode = 'throw'"
    )


async def _for_one(
    one: ClusterMigration, target: _Target, targets: Sequence[_Target], database: str
) -> str:
    """The statement; for a table that other replicas have, the statement that makes theirs."""
    if not one.replicated_table:
        return one.statement
    for other in targets:
        if other.shard == target.shard and one.number in other.has[database]:
            rows = await other.server.rows(
                "SELECT create_table_query FROM system.tables"
                " WHERE concat(database, '.', name) = {name:String}",
                {"name": one.target},
            )
            if rows:
                theirs = str(rows[0][0])
                return theirs.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
    return one.statement


class MigrationLock:
    """One broker migrates at a time: the registry's row names the holder of the lock."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._me = str(uuid.uuid4())

    async def acquire(self) -> None:
        """Wait for another holder to release it; take over from one that shows no progress."""
        loop = asyncio.get_running_loop()
        seen: _Version | None = None
        since = loop.time()
        while True:
            row = await self._registry.get(SCHEMA_KEY)
            now = _Version.from_row(row)
            _refuse_newer(now)
            if now != seen:
                seen, since = now, loop.time()
            if now.holder == "" or loop.time() - since > TAKE_OVER_S:
                mine = replace(now, holder=self._me, turns=now.turns + 1)
                if await self._registry.compare_and_set(SCHEMA_KEY, row, mine.to_text()):
                    return
            await asyncio.sleep(_POLL_S)

    async def renew(self) -> None:
        """Show progress. Raises `SchemaError` if another broker has taken over."""
        await self._change(lambda now: replace(now, turns=now.turns + 1))

    async def record_version(self, version: int) -> None:
        """Every server that answers is at `version` now. Raises as `renew`."""
        await self._change(lambda now: replace(now, version=version, turns=now.turns + 1))

    async def release(self) -> None:
        row = await self._registry.get(SCHEMA_KEY)
        now = _Version.from_row(row)
        if now.holder == self._me:
            free = replace(now, holder="", turns=now.turns + 1)
            await self._registry.compare_and_set(SCHEMA_KEY, row, free.to_text())

    async def _change(self, change: Callable[[_Version], _Version]) -> None:
        row = await self._registry.get(SCHEMA_KEY)
        now = _Version.from_row(row)
        if now.holder != self._me or not await self._registry.compare_and_set(
            SCHEMA_KEY, row, change(now).to_text()
        ):
            raise SchemaError("another broker has taken over the migration of the tables")


def _refuse_newer(now: _Version) -> None:
    if now.version > (newest := _newest()):
        raise SchemaError(
            f"the cluster's tables were made by a newer version of brokerhouse (they are at "
            f"{now.version}, this version knows {newest}): start that version"
        )
