"""A session on one replica of a shard: statements that see the same temporary tables.

It stays on its replica as long as that works. After an `EngineError` it is another session, maybe
on another replica, and its temporary tables are gone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from storage.clickhouse import ClickHouseServer
from storage.engine import EngineError, FileQuery, Parameter, Row
from storage.server_session import ServerSession
from storage.shards import TOO_FEW_LIVE_REPLICAS, Shard

T = TypeVar("T")


class ShardSession:
    """Everything raises `EngineError`."""

    reads_files = False

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._server: ClickHouseServer | None = None
        self._session: ServerSession | None = None

    async def readable(self) -> None:
        """Returns when what was acknowledged is seen. The session may be another one then."""
        server = await self._shard.readable_server(self._server)
        if server is not self._server:
            await self.close()
            self._server = server

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        return await self._ask(lambda session: session.rows(sql, params))

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        async def ask(session: ServerSession) -> None:
            try:
                await session.execute(sql, params)
            except EngineError as error:
                if error.code != TOO_FEW_LIVE_REPLICAS:
                    raise
                await session.execute(sql, params, self._shard.quorum_settings(least=True))

        await self._ask(ask)

    async def save(self, query: FileQuery, params: Mapping[str, Parameter]) -> None:
        await self._ask(lambda session: session.save(query, params))

    async def send(self, table: str, path: str) -> None:
        await self._ask(lambda session: session.send(table, path))

    async def settle(self, table: str) -> None:
        if self._shard.quorum_settings():
            await self.execute(f"SYSTEM SYNC REPLICA {table} LIGHTWEIGHT")

    async def close(self) -> None:
        session, self._session, self._server = self._session, None, None
        if session is not None:
            await session.close()

    async def _ask(self, ask: Callable[[ServerSession], Awaitable[T]]) -> T:
        if self._server is None:
            await self.readable()
        server = self._server
        assert server is not None, "pinned a moment ago"
        if self._session is None:
            self._session = ServerSession(
                server.url, server.settings, self._shard.quorum_settings()
            )
        asked_at = time.monotonic()
        try:
            return await ask(self._session)
        except EngineError as error:
            self._shard.has_failed(server, error, asked_at)
            await self.close()  # the statement may still run
            raise
