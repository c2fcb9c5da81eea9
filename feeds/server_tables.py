"""The tables of feeds on every server: made, brought to others as one of them has it, and changed.

`brokerhouse tables create` makes a table on one server; a process that feeds brings it to the
others, and to those that are added later. DATABASE.TABLE_local has the rows of a shard. Where the
cluster is `distributed`, DATABASE.TABLE has those of all shards. A single broker is one server with
`ALONE`: there, the table keeps its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from brokerhouse.feeds.definition import BLOCK_COLUMN, FeedDefinition, split_name
from brokerhouse.feeds.inference import InferredColumn
from brokerhouse.feeds.tables import adding, filled_table, made_like, making, preparing
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.parameters import quoted
from brokerhouse.storage.registry import RegistryServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _TableThere:
    """The table on a server; `statement` is empty where there is none."""

    server: RegistryServer
    engine: str = ""
    statement: str = ""
    has_block_column: bool = False

    @property
    def is_merge_tree(self) -> bool:
        return self.engine.endswith("MergeTree")


class FeedTables:
    """Every method raises `EngineError`."""

    def __init__(self, servers: Iterable[RegistryServer], layout: ClusterLayout) -> None:
        """`servers`: of all shards, with all replicas."""
        self._servers = list(servers)
        self._layout = layout

    async def prepare(self, feed: FeedDefinition) -> None:
        """Every server has the feed's table afterwards, with what a feed needs.

        A server that does not answer is left out: it gets the table when the feed is prepared the
        next time.
        """
        found = await self._look_everywhere(feed)
        model = next((one for one in found if one.statement), None)
        if model is None:
            where = "" if len(found) == len(self._servers) else " on the servers that answer"
            raise EngineError(f"there is no table {feed.database}.{feed.table}{where}")
        self._check(feed, model)
        for one in found:
            await self._bring(feed, one, model)

    async def exists(self, feed: FeedDefinition) -> bool:
        return await self._find(self._filled_by(feed)) is not None

    async def make(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        """On one server: `prepare` brings it to the others. Does nothing if it exists there."""
        filled = self._filled_by(feed)
        statement = making(
            filled.database, filled.table, columns, replicated=self._layout.replicated
        )
        await self._make_first(filled, statement)
        log.info("feed %s: made its table", feed.name)

    async def make_like(self, feed: FeedDefinition, model: str) -> None:
        """As `make`. `model`: DATABASE.TABLE; its part on a shard, where there is such a table."""
        filled = self._filled_by(feed)
        database, table = split_name(model)
        for name in dict.fromkeys((filled_table(table, self._layout), table)):
            there = await self._find(replace(feed, database=database, table=name))
            if there is not None and there.is_merge_tree:
                made = made_like(there.statement, (database, name), (filled.database, filled.table))
                await self._make_first(filled, made)
                log.info("feed %s: made its table like %s", feed.name, model)
                return
        raise EngineError(f"there is no MergeTree table {model} to make {feed.name} like")

    async def add_columns(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        """On every server, for a shard without them would leave its values out.

        Those that are there already are left as they are. Fails if a server does not answer.
        """
        filled = self._filled_by(feed)
        database = quoted(filled.database)
        targets = [f"{database}.{quoted(filled.table)}"]
        if self._layout.distributed:
            targets.append(f"{database}.{quoted(split_name(feed.name)[1])}")
        for server in self._servers:
            for target in targets:
                await server.execute(adding(target, columns))
        names = ", ".join(f"{one.name} {one.type}" for one in columns)
        log.info("feed %s: added columns %s", feed.name, names)

    def _filled_by(self, feed: FeedDefinition) -> FeedDefinition:
        """With the name of the table that has the rows."""
        return replace(feed, table=filled_table(split_name(feed.name)[1], self._layout))

    async def _find(self, feed: FeedDefinition) -> _TableThere | None:
        """The feed's table on the first server that answers and has it."""
        return next((one for one in await self._look_everywhere(feed) if one.statement), None)

    async def _make_first(self, feed: FeedDefinition, statement: str) -> None:
        """Run the statement on one server."""
        failure = EngineError("there is no server")
        for server in self._servers:
            try:
                await server.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(feed.database)}")
                await server.execute(statement)
            except EngineError as error:
                failure = error
            else:
                return
        raise failure

    async def _look_everywhere(self, feed: FeedDefinition) -> list[_TableThere]:
        """What the servers have that answer."""
        answers = await asyncio.gather(
            *(self._look(server, feed) for server in self._servers), return_exceptions=True
        )
        found = []
        for answer in answers:
            if isinstance(answer, _TableThere):
                found.append(answer)
            elif isinstance(answer, EngineError):
                log.warning("feed %s: its table cannot be looked for: %s", feed.name, answer)
            else:
                raise answer
        return found

    async def _look(self, server: RegistryServer, feed: FeedDefinition) -> _TableThere:
        rows = await server.rows(
            query("feed_table_on_server"),
            {"database": feed.database, "table": feed.table, "block": BLOCK_COLUMN},
        )
        if not rows:
            return _TableThere(server)
        [[engine, statement, columns]] = rows
        return _TableThere(server, engine, statement, bool(columns))

    def _check(self, feed: FeedDefinition, model: _TableThere) -> None:
        name = f"{feed.database}.{feed.table}"
        if not model.is_merge_tree:
            raise EngineError(f"{name} is of engine {model.engine}: a feed needs a MergeTree table")
        if not self._layout.replicated:
            return
        if not model.engine.startswith("Replicated"):
            raise EngineError(f"{name} is not replicated, but the cluster is: make it Replicated")
        if "{uuid}" in model.statement:
            raise EngineError(
                f"the path of {name} in Keeper contains {{uuid}}, so that replicas cannot be added:"
                " make the table with a path of its own"
            )

    async def _bring(self, feed: FeedDefinition, to: _TableThere, model: _TableThere) -> None:
        database, target = quoted(feed.database), f"{quoted(feed.database)}.{quoted(feed.table)}"
        if not to.statement:
            await to.server.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
            await to.server.execute(
                model.statement.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
            )
            log.info("feed %s: made %s on %s", feed.name, target, to.server)
        if not (to if to.statement else model).has_block_column:
            for statement in preparing(target, replicated=self._layout.replicated):
                await to.server.execute(statement)
        if self._layout.distributed:
            whole = f"{database}.{quoted(feed.name.partition('.')[2])}"
            await to.server.execute(
                query(
                    "make_whole_feed_table",
                    whole=whole,
                    target=target,
                    cluster=self._layout.name,
                    database=database,
                    table=quoted(feed.table),
                )
            )
