"""Makes the table of a feed on every server of a cluster, as one of them has it.

`brokerhouse tables create` makes it on one server; a broker that feeds brings it to the others, and
to those that are added later. DATABASE.TABLE_local has the rows of a shard. Where the cluster is
`distributed`, DATABASE.TABLE has those of all shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.feeds.definition import BLOCK_COLUMN, FeedDefinition, split_name
from coordinator.feeds.inference import InferredColumn
from coordinator.feeds.tables import adding, preparing
from storage.clickhouse import ClickHouseServer
from storage.cluster_sql import ClusterLayout
from storage.engine import EngineError
from storage.parameters import quoted

log = logging.getLogger(__name__)

_LOOK = """
SELECT engine, create_table_query, (
    SELECT count() FROM system.columns
    WHERE database = {database:String} AND table = {table:String} AND name = {block:String}
)
FROM system.tables
WHERE database = {database:String} AND name = {table:String}
"""


@dataclass(frozen=True, slots=True)
class _TableThere:
    """The table on a server; `statement` is empty where there is none."""

    server: ClickHouseServer
    engine: str = ""
    statement: str = ""
    has_block_column: bool = False


class FeedTables:
    def __init__(
        self, servers: Mapping[str, Sequence[ClickHouseServer]], layout: ClusterLayout
    ) -> None:
        """`servers`: by shard."""
        self._servers = [server for replicas in servers.values() for server in replicas]
        self._layout = layout

    async def make(self, feed: FeedDefinition) -> None:
        """Raises `EngineError`. A server that does not answer is left out: it gets the table when
        the feed is prepared the next time.
        """
        found = await self._look_everywhere(feed)
        model = next((one for one in found if one.statement), None)
        if model is None:
            raise EngineError(f"no server that answers has the table {feed.database}.{feed.table}")
        self._check(feed, model)
        for one in found:
            await self._bring(feed, one, model)

    async def statement_of(self, feed: FeedDefinition) -> str:
        """What makes the feed's table; empty if no server that answers has one."""
        found = await self._look_everywhere(feed)
        return next((one.statement for one in found if one.statement), "")

    async def make_first(self, feed: FeedDefinition, statement: str) -> None:
        """Run the statement on one server; `make` brings the table to the others.

        Raises `EngineError`.
        """
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

    async def add_columns(self, feed: FeedDefinition, columns: Sequence[InferredColumn]) -> None:
        """On every server, for a shard without them would leave its values out.

        Raises `EngineError` if one does not answer.
        """
        database = quoted(feed.database)
        targets = [f"{database}.{quoted(feed.table)}"]
        if self._layout.distributed:
            targets.append(f"{database}.{quoted(split_name(feed.name)[1])}")
        for server in self._servers:
            for target in targets:
                await server.execute(adding(target, columns))

    @property
    def is_replicated(self) -> bool:
        return self._layout.replicated

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

    async def _look(self, server: ClickHouseServer, feed: FeedDefinition) -> _TableThere:
        rows = await server.rows(
            _LOOK, {"database": feed.database, "table": feed.table, "block": BLOCK_COLUMN}
        )
        if not rows:
            return _TableThere(server)
        [[engine, statement, columns]] = rows
        return _TableThere(server, engine, statement, bool(columns))

    def _check(self, feed: FeedDefinition, model: _TableThere) -> None:
        name = f"{feed.database}.{feed.table}"
        if not model.engine.endswith("MergeTree"):
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
            log.info("feed %s: made %s on %s", feed.name, target, to.server.url)
        if not (to if to.statement else model).has_block_column:
            for statement in preparing(target, replicated=self._layout.replicated):
                await to.server.execute(statement)
        if self._layout.distributed:
            whole = f"{database}.{quoted(feed.name.partition('.')[2])}"
            await to.server.execute(
                f"CREATE TABLE IF NOT EXISTS {whole} AS {target}"
                f" ENGINE = Distributed('{self._layout.name}', {database}, {quoted(feed.table)})"
            )
