"""One ClickHouse server over HTTP, by clickhouse-connect's asynchronous client.

* An insert is sent at most once per call. `_SURELY_REFUSED` decides what its outcome is: a code
  that ClickHouse only raises before anything is written is a rejection. Everything else that is not
  a plain success (a time-out, a lost connection, an answer that is not from ClickHouse, any other
  code) is unknown.
* Blocks are sent as they are, compressed with LZ4 in both directions. The server reports the status
  and error code of an insert and of a small query when it has ended (`wait_end_of_query`). A range
  is a stream; it is complete only if its last chunk, the end of its LZ4 frame and the end of its
  last block have arrived.
* Connections are kept alive, but for less time than servers keep them, so that a request seldom
  uses a connection that is being closed. A read that does is repeated, an insert is not.

Small queries do not use aiochclient: it writes parameters into the text of the statement with
str.format (which takes `{name:Type}` for a format of its own), reports no error codes, and fails
with an assertion on a truncated answer (2.7).
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import clickhouse_connect
import lz4.frame
from clickhouse_connect.driver.asyncclient import AsyncClient
from clickhouse_connect.driver.exceptions import ClickHouseError, ProgrammingError
from clickhouse_connect.driver.summary import QuerySummary
from yarl import URL

from storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    Parameter,
    Row,
)
from storage.native_stream import BlockStream, NotNative, ServerException
from storage.parameters import parameter_texts

# One block is one part: see storage/embedded.py.
INSERT_SETTINGS = {
    "max_insert_block_size": "1000000000",
    "min_insert_block_size_rows": "0",
    "min_insert_block_size_bytes": "0",
    "async_insert": "0",
    "insert_deduplicate": "1",
    "input_format_skip_unknown_fields": "0",
    "materialized_views_ignore_errors": "1",
    "max_threads": "1",
    "max_insert_threads": "1",
    "wait_end_of_query": "1",
}
# Ranges of the log: see storage/embedded.py. `readonly` lets the server end a query whose client
# has disconnected: https://clickhouse.com/docs/operations/settings/settings, at
# cancel_http_readonly_queries_on_client_close (which clickhouse-connect sets).
_RANGE_SETTINGS = {
    "max_threads": "1",
    "optimize_read_in_order": "1",
    "read_in_order_use_buffering": "0",
    "max_block_size": "8192",
    "readonly": "2",
    "enable_http_compression": "1",
}
_ROWS_SETTINGS = {
    "readonly": "2",
    "wait_end_of_query": "1",
    "output_format_json_quote_64bit_integers": "0",
}
# Raised before a row is written, and nowhere later in an insert of one block (ClickHouse's
# ErrorCodes.cpp, ReplicatedMergeTreeSink.cpp). Three codes that seem to belong here are
# left out: 242 TABLE_IS_READ_ONLY is also raised after a commit, when Keeper was lost during it;
# 241 MEMORY_LIMIT and 243 NOT_ENOUGH_SPACE are also raised when the first of two parts (a block
# that spans midnight) is stored.
_SURELY_REFUSED = frozenset(
    (
        8,  # THERE_IS_NO_COLUMN
        10,  # NOT_FOUND_COLUMN_IN_BLOCK
        16,  # NO_SUCH_COLUMN_IN_TABLE
        20,  # NUMBER_OF_COLUMNS_DOESNT_MATCH
        47,  # UNKNOWN_IDENTIFIER
        50,  # UNKNOWN_TYPE
        53,  # TYPE_MISMATCH
        60,  # UNKNOWN_TABLE
        62,  # SYNTAX_ERROR
        70,  # CANNOT_CONVERT_TYPE
        81,  # UNKNOWN_DATABASE
        115,  # UNKNOWN_SETTING
        117,  # INCORRECT_DATA
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        194,  # REQUIRED_PASSWORD
        195,  # IP_ADDRESS_NOT_ALLOWED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        252,  # TOO_MANY_PARTS
        285,  # TOO_FEW_LIVE_REPLICAS
        349,  # CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
        452,  # SETTING_CONSTRAINT_VIOLATION
        469,  # VIOLATED_CONSTRAINT
        472,  # READONLY_SETTING
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    )
)
PING = "SELECT 1"
"""What a ping asks. `brokerhouse engine` answers it by a shorter way."""
# Servers close a connection that is idle for 30 s, older ones for 3 s.
_KEEP_ALIVE_S = 2.5
_READERS = 8
_PINGS = 4
_COMPRESS_IN_THREAD_BYTES = 256 * 1024
_CODE = re.compile(r"Code: (\d+)\. ")
_TOLD = re.compile(r"Code: \d+\. .*(?= \(for url )", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach a server, and how long to wait for it.

    `tls_ca` is trusted in addition to the system's authorities. A connection that cannot be made in
    time is tried twice. `request_timeout_ms` limits an insert, a small query, a statement, and each
    piece of a range.
    """

    user: str
    password: str = field(repr=False)
    database: str = "brokerhouse_shard"
    lanes: int = 1
    tls_ca: Path | None = None
    connect_timeout_ms: int = 1000
    request_timeout_ms: int = 10_000
    ping_timeout_ms: int = 1000


@dataclass(slots=True)
class LastHeard:
    """When a server has answered last (`time.monotonic`). Set by those who ask it."""

    at: float = 0.0


class ClickHouseServer:
    """`storage.engine.Engine` on one server. It connects on the first request."""

    def __init__(self, url: str, settings: ConnectionSettings) -> None:
        """`url` is http:// or https://."""
        self.url = url
        self.request_timeout_ms = settings.request_timeout_ms
        self.heard = LastHeard()
        self._where = URL(url)
        self._settings = settings
        self._request_timeout_s = settings.request_timeout_ms / 1000
        # As many connections as can be used at once: nothing ever waits for one.
        self._connections = settings.lanes + _READERS + _PINGS
        self._readers = asyncio.Semaphore(_READERS)
        self._connecting = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<ClickHouseServer {self.url}>"

    # --- inserts

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        await self.insert(table, columns, block, token, {})

    async def insert(
        self, table: str, columns: str, block: bytes, token: str, settings: Mapping[str, str]
    ) -> None:
        """`insert_block` with additional settings."""
        client = await self._connected()
        body = _Body(await _compressed(block))
        query_id = str(uuid.uuid4())
        try:
            async with asyncio.timeout(self._request_timeout_s):
                answer = await client.command(
                    f"INSERT INTO {table} ({columns}) FORMAT Native",
                    data=body,
                    settings={
                        **INSERT_SETTINGS,
                        **settings,
                        "insert_deduplication_token": token,
                        "query_id": query_id,
                    },
                    transport_settings={"Content-Encoding": "lz4"},
                )
        except Exception as error:  # whatever it was, bytes may have been sent
            failure = self._failure(error)
            if isinstance(failure, InsertRejected):
                raise failure from error
            known = failure.code in _SURELY_REFUSED
            outcome = InsertRejected if known else InsertOutcomeUnknown
            raise outcome(str(failure), failure.code) from error
        # A proxy may answer 200 to anything, for example after a redirect.
        if not isinstance(answer, QuerySummary) or answer.query_id() != query_id:
            raise InsertOutcomeUnknown(
                f"{self.url}: the answer to an insert is not from ClickHouse"
            )

    # --- reads

    async def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        blocks = BlockStream()
        lost: EngineError | None = None
        async with self._readers, aclosing(self._pieces(sql, params, chunk_bytes)) as pieces:
            while True:
                try:
                    complete = blocks.feed(await anext(pieces))
                except StopAsyncIteration:
                    break
                except EngineError as error:
                    lost = error
                    break
                except NotNative as error:
                    raise EngineError(f"{self.url}: {error}") from error
                for block in complete:
                    yield block
        try:
            blocks.finish()
        except ServerException as error:
            # A server that fails midway says why in the body, and then omits the last chunk.
            raise self._told(str(error)) from error
        except NotNative as error:
            if lost is None:
                raise EngineError(f"{self.url}: {error}") from error
        if lost is not None:
            raise lost

    async def _pieces(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """The stream of a query without its compression."""
        client = await self._connected()
        frame = lz4.frame.LZ4FrameDecompressor()
        begun = False
        try:
            async with asyncio.timeout(self._request_timeout_s):
                stream = await client.raw_stream(
                    sql,
                    parameters=_bound(params),
                    settings={**_RANGE_SETTINGS, "preferred_block_size_bytes": str(chunk_bytes)},
                    fmt="Native",
                    transport_settings={"Accept-Encoding": "lz4"},
                )
        except (ClickHouseError, TimeoutError) as error:
            raise self._failure(error) from error
        async with stream as source:
            pieces = aiter(source)
            while True:
                try:
                    data = await anext(pieces)
                    begun = True
                    piece = frame.decompress(data)
                except StopAsyncIteration:
                    break
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise self._failure(error) from error
                except (RuntimeError, EOFError) as error:
                    raise EngineError(f"{self.url}: the answer is not LZ4: {error}") from error
                if piece:
                    yield piece
        if begun and not frame.eof:
            raise EngineError(f"{self.url}: the answer is truncated")

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        text = await self._small(sql, params, _ROWS_SETTINGS, "JSONCompactEachRow")
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError as error:
            raise EngineError(f"{self.url}: the answer is not from ClickHouse: {error}") from error

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """Sent once. Raises `NotSent` if it was not sent, and `EngineError` otherwise."""
        await self._small(sql, params, {"wait_end_of_query": "1"}, None)

    async def _small(
        self,
        sql: str,
        params: Mapping[str, Parameter] | None,
        settings: Mapping[str, str],
        fmt: str | None,
    ) -> bytes:
        async with self._readers:
            client = await self._connected()
            try:
                async with asyncio.timeout(self._request_timeout_s):
                    return await client.raw_query(
                        sql, parameters=_bound(params), settings=dict(settings), fmt=fmt
                    )
            except (ClickHouseError, TimeoutError) as error:
                raise self._failure(error) from error

    # --- start and stop

    async def ping(self) -> None:
        """Raises `EngineError` unless the server soon answers a query of this user."""
        try:
            async with asyncio.timeout(self._settings.ping_timeout_ms / 1000):
                client = await self._connected()
                answer = await client.raw_query(PING, settings=dict(_ROWS_SETTINGS))
        except (ClickHouseError, TimeoutError) as error:
            raise self._failure(error) from error
        if answer != b"1\n":
            raise EngineError(f"{self.url}: the answer to a ping is not from ClickHouse")

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> AsyncClient:
        """Raises `NotSent`: whatever went wrong, the request of the caller was not sent."""
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._closed:
                raise NotSent(f"{self.url}: closed")
            if self._client is None:
                try:
                    async with asyncio.timeout(self._request_timeout_s):
                        self._client = await self._open()
                except (ClickHouseError, TimeoutError, OSError) as error:
                    failure = self._failure(error)
                    raise NotSent(str(failure), failure.code) from error
            return self._client

    async def _open(self) -> AsyncClient:
        where, settings = self._where, self._settings
        return await clickhouse_connect.get_async_client(
            interface=where.scheme,
            host=where.host,
            port=where.port or (8443 if where.scheme == "https" else 8123),
            proxy_path=where.path,
            username=settings.user,
            password=settings.password,
            database=settings.database,
            ca_cert=None if settings.tls_ca is None else str(settings.tls_ca),
            connect_timeout=settings.connect_timeout_ms / 1000,
            send_receive_timeout=self._request_timeout_s,
            connector_limit=self._connections,
            connector_limit_per_host=self._connections,
            keepalive_timeout=_KEEP_ALIVE_S,
            compress=False,
            query_retries=0,
            client_name="brokerhouse",
        )

    # --- errors

    def _failure(self, error: Exception) -> EngineError:
        """What failed, in a sentence that begins with the server's address."""
        if isinstance(error, ClickHouseError):
            code = getattr(error, "code", None)
            if code:
                told = _TOLD.search(str(error))
                return EngineError(f"{self.url}: {told[0] if told else error}", code)
            # The client refused before it sent anything: the user may not change a setting, or the
            # client is closed.
            if isinstance(error, ProgrammingError) or _never_connected(error):
                return NotSent(f"{self.url}: {error}")
            return EngineError(f"{self.url}: {error}")
        if isinstance(error, TimeoutError):
            return EngineError(f"{self.url}: no answer in time")
        return EngineError(f"{self.url}: {type(error).__name__}: {error}")

    def _told(self, text: str) -> EngineError:
        match = _CODE.search(text)
        return EngineError(f"{self.url}: {text}", int(match[1]) if match else 0)


class _Body(bytes):
    """A block that is being sent.

    clickhouse-connect decodes a statement with its data as text to see whether it may be repeated
    (11 ms per MB, measured). The statement alone is enough: an INSERT may not.
    """

    __slots__ = ()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return ""


class _Bound:
    """A parameter that is already in the form that the server parses."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _bound(params: Mapping[str, Parameter] | None) -> dict[str, Any]:
    return {name: _Bound(text) for name, text in parameter_texts(params).items()}


async def _compressed(block: bytes) -> bytes:
    if len(block) < _COMPRESS_IN_THREAD_BYTES:
        return bytes(lz4.frame.compress(block))
    return bytes(await asyncio.to_thread(lz4.frame.compress, block))


def _never_connected(error: ClickHouseError) -> bool:
    return isinstance(
        error.__cause__, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    )
