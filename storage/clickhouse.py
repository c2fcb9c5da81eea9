"""One ClickHouse server over HTTP: reads by clickhouse-connect's asynchronous client, inserts by
storage/insert_client.py.

* An insert is sent at most once per call. `_SURELY_REFUSED` decides what its outcome is: a code
  that ClickHouse only raises before anything is written is a rejection. Everything else that is not
  a plain success (a time-out, a lost connection, an answer that is not from ClickHouse, any other
  code) is unknown.
* Large blocks are compressed with LZ4, in both directions. The server reports the status and error
  code of an insert and of a small query when it has ended (`wait_end_of_query`). A range is a
  stream; it is complete only if its last chunk, the end of its LZ4 frame and the end of its last
  block have arrived.
* Connections are kept alive, but for less time than servers keep them, so that a request seldom
  uses a connection that is being closed. A read that does is repeated, an insert is not.

Small queries do not use aiochclient: it writes parameters into the text of the statement with
str.format (which takes `{name:Type}` for a format of its own), reports no error codes, and fails
with an assertion on a truncated answer (2.7).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import clickhouse_connect
import lz4.frame
from clickhouse_connect.driver.asyncclient import AsyncClient
from clickhouse_connect.driver.exceptions import ClickHouseError, ProgrammingError
from yarl import URL

from brokerhouse.storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    Parameter,
    Row,
    parsed_rows,
)
from brokerhouse.storage.insert_client import KEEP_ALIVE_S, InsertAnswer, InsertClient, NotAnAnswer
from brokerhouse.storage.native_stream import BlockStream, NotNative, ServerException
from brokerhouse.storage.parameters import parameter_texts

# One block is one part: see storage/embedded.py. A block that is sent again, because its outcome
# was unknown, fills the materialized views again (measured, chdb-core 26.9): its server may have
# ended between the table and a view. With the setting for dependent views, which is on by default
# from 26.2, the table of a view drops what it has, if it has a deduplication window.
INSERT_SETTINGS = {
    "max_insert_block_size": "1000000000",
    "min_insert_block_size_rows": "0",
    "min_insert_block_size_bytes": "0",
    "async_insert": "0",
    "insert_deduplicate": "1",
    "input_format_skip_unknown_fields": "0",
    "materialized_views_ignore_errors": "1",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
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
_READERS = 8
_PINGS = 4
_PLAIN_MAX_BYTES = 256 << 10
"""A smaller block is sent as it is: that takes 0.2 ms at 10 Gbit/s, and the turns of threads that
compress and decompress it take longer."""
_CODE = re.compile(r"Code: (\d+)\. ")
_TOLD = re.compile(r"Code: \d+\. .*?(?=\s*\Z| \(for url )", re.DOTALL)


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
        """Of requests that are sent from now on. It may change."""
        self.heard = LastHeard()
        self.ping_timeout_ms = settings.ping_timeout_ms
        self.settings = settings
        self._where = URL(url)
        # As many connections as can be used at once: nothing ever waits for one.
        self._connections = settings.lanes + _READERS + _PINGS
        self._readers = asyncio.Semaphore(_READERS)
        self._connecting = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._closed = False
        self._inserts = InsertClient(
            self._where,
            settings.database,
            settings.user,
            settings.password,
            settings.connect_timeout_ms / 1000,
            partial(tls_context, settings.tls_ca),
        )
        self._identity = uuid.uuid4().hex
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<ClickHouseServer {self.url}>"

    @property
    def _request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    # --- inserts

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        await self.insert(table, columns, block, token, {})

    async def insert(
        self, table: str, columns: str, block: bytes, token: str, settings: Mapping[str, str]
    ) -> None:
        """`insert_block` with additional settings."""
        await self._connected()  # the user may log in, and the server is one of ClickHouse's
        body, coding = block, ""
        if len(block) > _PLAIN_MAX_BYTES:
            body, coding = await asyncio.to_thread(lz4.frame.compress, block), "lz4"
        query_id = f"{self._identity}-{next(self._numbers)}"
        try:
            answer = await self._inserts.insert(
                f"INSERT INTO {table} ({columns}) FORMAT Native",
                {**INSERT_SETTINGS, **settings},
                token,
                query_id,
                body,
                coding=coding,
                timeout_s=self._request_timeout_s,
            )
        except (OSError, NotAnAnswer) as error:  # bytes may have been sent
            raise InsertOutcomeUnknown(str(self._failure(error))) from error
        self._check_inserted(answer, query_id)

    def _check_inserted(self, answer: InsertAnswer, query_id: str) -> None:
        """Raises `InsertRejected` and `InsertOutcomeUnknown`."""
        digits = answer.headers.get(b"x-clickhouse-exception-code", b"")
        code = int(digits) if digits.isdigit() else 0
        if code:
            told = _TOLD.search(answer.body.decode("utf-8", "replace"))
            known = code in _SURELY_REFUSED
            outcome = InsertRejected if known else InsertOutcomeUnknown
            text = told[0] if told else f"Code: {code}."
            raise outcome(f"{self.url}: {text}", code)
        # A proxy may answer 200 to anything, for example after a redirect.
        is_mine = answer.headers.get(b"x-clickhouse-query-id") == query_id.encode()
        if answer.status != 200 or digits or answer.body or not is_mine:
            raise InsertOutcomeUnknown(
                f"{self.url}: the answer to an insert is not from ClickHouse"
                f" (HTTP status {answer.status})"
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
                    raise EngineError(
                        f"{self.url}: cannot decompress the answer with LZ4: {error}"
                    ) from error
                if piece:
                    yield piece
        if begun and not frame.eof:
            raise EngineError(f"{self.url}: the answer is truncated")

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        text = await self._small(sql, params, _ROWS_SETTINGS, "JSONCompactEachRow")
        try:
            return await parsed_rows(text)
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
            async with asyncio.timeout(self.ping_timeout_ms / 1000):
                client = await self._connected()
                answer = await client.raw_query(PING, settings=dict(_ROWS_SETTINGS))
        except (ClickHouseError, TimeoutError) as error:
            raise self._failure(error) from error
        if answer != b"1\n":
            raise EngineError(f"{self.url}: the answer to a ping is not from ClickHouse")

    async def close(self) -> None:
        self._closed = True
        self._inserts.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> AsyncClient:
        """Raises `NotSent`: whatever went wrong, the request of the caller was not sent."""
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._closed:
                raise NotSent(f"{self.url}: this broker has closed its connections")
            if self._client is None:
                try:
                    async with asyncio.timeout(self._request_timeout_s):
                        self._client = await self._open()
                except (ClickHouseError, TimeoutError, OSError) as error:
                    failure = self._failure(error)
                    raise NotSent(str(failure), failure.code) from error
            return self._client

    async def _open(self) -> AsyncClient:
        where, settings = self._where, self.settings
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
            keepalive_timeout=KEEP_ALIVE_S,
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
            return EngineError(f"{self.url}: the server did not answer in time")
        return EngineError(f"{self.url}: {type(error).__name__}: {error}")

    def _told(self, text: str) -> EngineError:
        match = _CODE.search(text)
        return EngineError(f"{self.url}: {text}", int(match[1]) if match else 0)


class _Bound:
    """A parameter that is already in the form that the server parses."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _bound(params: Mapping[str, Parameter] | None) -> dict[str, Any]:
    return {name: _Bound(text) for name, text in parameter_texts(params).items()}


def clickhouse_error(url: str, text: str, code: str) -> EngineError:
    """What a server said: the text of its answer, and its header X-ClickHouse-Exception-Code."""
    told = _TOLD.search(text)
    return EngineError(f"{url}: {told[0] if told else text}", int(code) if code.isdigit() else 0)


def tls_context(tls_ca: Path | None) -> ssl.SSLContext:
    """For servers that the system's authorities or `tls_ca` vouch for."""
    context = ssl.create_default_context()
    if tls_ca is not None:
        context.load_verify_locations(tls_ca)
    return context


def _never_connected(error: ClickHouseError) -> bool:
    return isinstance(
        error.__cause__, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    )
