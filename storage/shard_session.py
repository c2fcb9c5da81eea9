"""A session on one replica of a shard: statements that see the same temporary tables.

It stays on its replica as long as that works. After an `EngineError` it is another session, maybe
on another replica: the statement may still run on the server, and its temporary tables are gone.

`session_id` is what makes a session (https://clickhouse.com/docs/interfaces/http#using-clickhouse-sessions-in-the-http-protocol).
It has one connection, because a session runs one statement at a time.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp

from brokerhouse.storage.clickhouse import (
    ClickHouseServer,
    ConnectionSettings,
    clickhouse_error,
    tls_context,
)
from brokerhouse.storage.engine import EngineError, FileQuery, Parameter, Row, parsed_rows
from brokerhouse.storage.insert_client import KEEP_ALIVE_S
from brokerhouse.storage.parameters import parameter_texts
from brokerhouse.storage.shards import TOO_FEW_LIVE_REPLICAS, Shard

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


STATEMENT_TIMEOUT_S = 60.0
"""A block of records takes a few seconds at most."""
_SETTINGS = {
    "session_timeout": "300",
    "wait_end_of_query": "1",
    "output_format_json_quote_64bit_integers": "0",
}


class ServerSession:
    """Everything raises `EngineError`."""

    def __init__(self, url: str, settings: ConnectionSettings, own: Mapping[str, str]) -> None:
        """`own`: settings of ClickHouse for every statement."""
        self._url = url
        self._own = own
        self._session_id = uuid.uuid4().hex
        self._database = settings.database
        context = tls_context(settings.tls_ca) if url.startswith("https") else True
        self._client = aiohttp.ClientSession(
            auth=aiohttp.BasicAuth(settings.user, settings.password, "utf-8"),
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=KEEP_ALIVE_S, ssl=context),
            timeout=aiohttp.ClientTimeout(
                total=STATEMENT_TIMEOUT_S, connect=settings.connect_timeout_ms / 1000
            ),
            headers={"Accept-Encoding": "identity"},
        )

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        answer = await self._run(sql, params, "JSONCompactEachRow")
        try:
            return await parsed_rows(answer)
        except ValueError as error:
            raise EngineError(f"{self._url}: the answer is not from ClickHouse: {error}") from error

    async def execute(
        self,
        sql: str,
        params: Mapping[str, Parameter] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        await self._run(sql, params, "Null", settings)

    async def save(self, query: FileQuery, params: Mapping[str, Parameter]) -> None:
        """The rows of a query into its file."""
        rows = await self._run(query.sql, params, query.format)
        await asyncio.to_thread(Path(query.path).write_bytes, rows)

    async def send(self, table: str, path: str) -> None:
        """A file of RowBinary into a table."""
        rows = await asyncio.to_thread(Path(path).read_bytes)
        async with self._request({"query": f"INSERT INTO {table} FORMAT RowBinary"}, rows):
            pass

    async def close(self) -> None:
        await self._client.close()

    async def _run(
        self,
        sql: str,
        params: Mapping[str, Parameter] | None,
        fmt: str,
        settings: Mapping[str, str] | None = None,
    ) -> bytes:
        async with self._answer(sql, params, fmt, settings) as answer:
            return await answer.read()

    @asynccontextmanager
    async def _answer(
        self,
        sql: str,
        params: Mapping[str, Parameter] | None,
        fmt: str,
        settings: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        bound = {f"param_{name}": text for name, text in parameter_texts(params).items()}
        asked = {"default_format": fmt, **(settings or {}), **bound}
        async with self._request(asked, sql.encode()) as answer:
            yield answer

    @asynccontextmanager
    async def _request(
        self, url_parameters: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        parameters = {
            "database": self._database,
            "session_id": self._session_id,
            **_SETTINGS,
            **self._own,
            **url_parameters,
        }
        try:
            async with self._client.post(self._url, params=parameters, data=body) as answer:
                if answer.status != 200 or "X-ClickHouse-Exception-Code" in answer.headers:
                    code = answer.headers.get("X-ClickHouse-Exception-Code", "")
                    text = (await answer.read()).decode("utf-8", "replace").strip()
                    raise clickhouse_error(self._url, text, code)
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise EngineError(f"{self._url}: {what}") from error
