"""Applies the statements of cluster_sql.py to the servers of a cluster, once, however many ask.

* Each server notes what it has (`schema_migrations`, not replicated, in each of the two databases),
  so one that is added later, or was away, gets what it lacks the next time somebody asks.
* Every statement can be applied again. A lock in the registry lets one broker at a time do it, so
  that two do not exchange the same view under each other; the lock of one who died is taken over.
* A new statement goes ON CLUSTER where servers replicate and all of them answer; otherwise to each
  server by itself. A replica that joins others takes its tables as theirs are now: ClickHouse
  refuses to make them as they once were (METADATA_MISMATCH after an ALTER).
* Tables of a newer version are refused before anything is changed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from storage.cluster_sql import (
    DATABASE,
    SHARD_DATABASE,
    ClusterLayout,
    foundation,
    made_by,
    on_cluster,
    people_migrations,
    shard_migrations,
)
from storage.engine import Engine, EngineError
from storage.registry import Registry, Versioned
from storage.schema import Migration, SchemaError, history, make_history, migrations, note

SCHEMA_KEY = "schema"
"""In the registry: the newest version that was applied anywhere, and who is at it."""
TAKE_OVER_S = 30.0
"""Whoever holds the lock and has not moved for this long is gone: a statement takes less."""
_POLL_S = 0.2
_DDL_TIMEOUT_S = 8

log = logging.getLogger(__name__)


class Server(Engine, Protocol):
    """One server, by itself: no failover. Its connections may be in any database that exists."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Migrated:
    """What came of it: names of what was applied to some server, and servers that were away."""

    applied: tuple[str, ...]
    away: tuple[str, ...]


@dataclass(slots=True)
class _Target:
    """A server that answers, and the numbers of what it has, by database."""

    shard: str
    server: Server
    has: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Version:
    """The registry's row. `turns` grows with every sign of life of the holder."""

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
            raise SchemaError(f"registry key {SCHEMA_KEY} is not a version: {row.value}") from error


async def migrate_cluster(
    shards: Mapping[str, Sequence[Server]], layout: ClusterLayout, registry: Registry
) -> Migrated:
    """Bring all servers that answer up to this version.

    `shards`: every server of every shard, by the shard's name. `registry` stands on the table
    `registry`, which need not be there yet. Raises `SchemaError` when the tables were made by a
    newer version or another one took the lock away, and `EngineError` when a statement failed or
    no server answers.
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
    lock = _Lock(registry)
    await lock.take()
    try:
        applied: list[str] = []
        for target in targets:
            await _read_history(target, made)
        for database, known in made.items():
            everywhere = layout.name if layout.replicated and not away else None
            applied += await _apply(targets, database, known, everywhere, lock.renew)
        await lock.done(_newest())
    finally:
        await lock.give_back()
    return Migrated(tuple(dict.fromkeys(applied)), away)


def _newest() -> int:
    return migrations()[-1].number


def databases(layout: ClusterLayout) -> dict[str, list[Migration]]:
    """What each database of a server is made by."""
    found = {SHARD_DATABASE: shard_migrations(layout)}
    if layout.distributed:
        found[DATABASE] = people_migrations(layout)
    return found


async def _reach(shards: Mapping[str, Sequence[Server]]) -> tuple[list[_Target], tuple[str, ...]]:
    """Who answers, and the addresses of those who do not. What they say is not hidden."""

    async def ask(shard: str, server: Server) -> EngineError | _Target:
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
        raise failures[0] if failures else EngineError("there are no servers")
    there = {target.server.url for target in targets}
    away = tuple(server.url for _, server in servers if server.url not in there)
    if away:
        log.warning("not migrated, because they do not answer: %s", ", ".join(away))
    return targets, away


async def _read_history(target: _Target, databases: Mapping[str, Sequence[Migration]]) -> None:
    rows = await target.server.rows(
        "SELECT database FROM system.tables WHERE name = 'schema_migrations'"
    )
    there = {str(database) for (database,) in rows}
    for database in databases:
        has = await history(target.server, database) if database in there else set()
        if has and max(has) > (newest := _newest()):
            raise SchemaError(
                f"the tables on {target.server.url} were made by a newer version of brokerhouse "
                f"(they are at {max(has)}, this version knows {newest}): start that one"
            )
        target.has[database] = has


def _lacks(target: _Target, databases: Mapping[str, Sequence[Migration]]) -> list[Migration]:
    return [
        one for name, known in databases.items() for one in known
        if one.number not in target.has[name]
    ]  # fmt: skip


async def _apply(
    targets: Sequence[_Target],
    database: str,
    known: Sequence[Migration],
    everywhere: str | None,
    still_alone: Callable[[], Awaitable[None]],
) -> list[str]:
    """All that somebody lacks, in order. `everywhere`: the cluster for ON CLUSTER, if it may be."""
    done: dict[str, list[Migration]] = {target.server.url: [] for target in targets}
    applied = []
    try:
        for number, statements in groupby(known, key=lambda one: one.number):
            lacking = [target for target in targets if number not in target.has[database]]
            if not lacking:
                continue
            for one in statements:
                await still_alone()
                if everywhere is not None and len(lacking) == len(targets):
                    await lacking[0].server.execute(_for_all(one.statement, everywhere))
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
                await note(target.server, database, news)
    return applied


def _for_all(statement: str, cluster: str) -> str:
    return (
        f"{on_cluster(statement, cluster)} FORMAT Null"
        f" SETTINGS distributed_ddl_task_timeout = {_DDL_TIMEOUT_S},"
        " distributed_ddl_output_mode = 'throw'"
    )


async def _for_one(
    one: Migration, target: _Target, targets: Sequence[_Target], database: str
) -> str:
    """The statement, or for a table that other replicas have, theirs."""
    made = made_by(one.statement)
    if made is None or "Replicated" not in one.statement:
        return one.statement
    for other in targets:
        if other.shard == target.shard and one.number in other.has[database]:
            rows = await other.server.rows(
                "SELECT create_table_query FROM system.tables"
                " WHERE concat(database, '.', name) = {name:String}",
                {"name": made},
            )
            if rows:
                theirs = str(rows[0][0])
                return theirs.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
    return one.statement


class _Lock:
    """One at a time: the registry's row names a holder, who shows that it lives by every turn."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._me = str(uuid.uuid4())

    async def take(self) -> None:
        """Waits for another holder, and takes over from one that has stopped moving."""
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
        """Raises `SchemaError` if somebody else has taken over."""
        await self._change(lambda now: replace(now, turns=now.turns + 1))

    async def done(self, version: int) -> None:
        await self._change(lambda now: replace(now, version=version, turns=now.turns + 1))

    async def give_back(self) -> None:
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
            raise SchemaError("another broker has taken the migration of the tables over")


def _refuse_newer(now: _Version) -> None:
    if now.version > (newest := _newest()):
        raise SchemaError(
            f"the cluster's tables were made by a newer version of brokerhouse (they are at "
            f"{now.version}, this version knows {newest}): start that one"
        )
