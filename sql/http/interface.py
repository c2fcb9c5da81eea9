"""ClickHouse's HTTP interface (https://clickhouse.com/docs/interfaces/http) in front of the
embedded engine.

A request becomes an `Ask` (request.py); sql/http/gateway.py runs it; the answer is written
here. Rules that hold:
* The status line goes out when the first MiB of the result is there or the query has ended, so that
  most failures get their own status. A later failure is told in the body, marked with the tag that
  the headers announced, and the stream is broken off without its last chunk.
* A client that leaves ends its query.
* Bytes are copied here and nothing else: parsing SQL, running it and compressing happen in threads.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import IO, TypeVar

from aiohttp import web

from sql.http.access import Action, Role, SqlError, sql_error
from sql.http.codings import (
    ENCODERS,
    CodingError,
    Decoder,
    Encoder,
    UnknownCoding,
    decoder,
)
from sql.http.gateway import (
    KILL_AGAIN_S,
    MARK,
    NO_EXPRESSIONS,
    Engine,
    Facts,
    Job,
    Limits,
    RunningQuery,
    SqlGateway,
    Summary,
)
from sql.http.go_hello import FACTS, FACTS_FORMAT, hello_block, is_hello
from sql.http.request import (
    DEFAULT_FORMAT,
    Ask,
    credentials,
    external_tables,
    is_local,
    read_ask,
    read_form,
    url_parameters,
)
from sql.http.settings import SqlSettings
from sql.http.text import InsertData, NotAnInsert, Unfinished, insert_head, output_clauses

log = logging.getLogger(__name__)

T = TypeVar("T")

URL_MAX_BYTES = 1024 * 1024  # ClickHouse's http_max_uri_size
FIELD_MAX_BYTES = 128 * 1024
HOLD_BYTES = 1024 * 1024  # of a result, before its status line goes out
SPOOL_BYTES = 4 * 1024 * 1024  # of a result that is waited for: in memory, and then on disk
SPOOL_MAX_BYTES = 2 * 1024**3
STALL_S = 300
STOP_GRACE_S = 2.0
_INLINE_CODING_BYTES = 32 * 1024
_CODING_THREADS = 2

_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
_HELP = (
    "There is nothing here. SQL goes to / as ?query=... or as the body of a POST;"
    " /ping and /replicas_status say whether the server is alive.\n"
)

# https://clickhouse.com/docs/interfaces/http: codes that have an HTTP status of their own; the
# others are 500.
_STATUS = {
    194: 401,
    **dict.fromkeys((192, 193, 497, 512, 516), 403),
    **dict.fromkeys((6, 25, 26, 27, 36, 38, 41, 44, 53, 62, 69, 72, 117, 151, 167, 168), 400),
    **dict.fromkeys((220, 263, 289, 352, 371, 376, 427, 441, 675, 676), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 81, 115, 336, 511, 106, 107), 404),
    159: 408,
    381: 411,
    223: 413,
    48: 501,
    **dict.fromkeys((76, 209, 439), 503),
}


def make_app(engine: Engine, settings: SqlSettings) -> web.Application:
    """The SQL interface for people, as an aiohttp application."""
    return application(HttpInterface(engine, settings))


def application(interface: HttpInterface) -> web.Application:
    """Runs on the loop that starts it."""
    app = web.Application(
        handler_args={
            # Bodies are decoded here, in bounded memory; a client that leaves ends its handler;
            # long URLs are usual.
            "auto_decompress": False,
            "handler_cancellation": True,
            "max_line_size": URL_MAX_BYTES,
            "max_field_size": FIELD_MAX_BYTES,
        }
    )
    app.on_startup.append(interface.start)
    app.on_shutdown.append(interface.stop_queries)
    app.on_cleanup.append(interface.stop)
    app.router.add_route("*", "/{path:.*}", interface.handle)
    return app


class StalledError(Exception):
    """The client neither takes nor gives anything, and holds a place while it does so."""


class NobodyError(SqlError):
    """Credentials are needed, and there are none."""


class HttpInterface:
    def __init__(self, engine: Engine, settings: SqlSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._gateway: SqlGateway | None = None
        self._facts: Facts | None = None
        self._handlers: set[asyncio.Task[web.StreamResponse]] = set()
        self._coding_pool = ThreadPoolExecutor(_CODING_THREADS, thread_name_prefix="sql-coding")

    # --- life

    async def start(self, _app: web.Application) -> None:
        self._gateway = self._make_gateway()
        self._facts = await self._gateway.start()

    def _make_gateway(self) -> SqlGateway:
        settings = self._settings
        limits = Limits(settings.max_queries, settings.max_threads, settings.max_memory_bytes)
        return SqlGateway(self._engine, limits)

    async def stop_queries(self, _app: web.Application) -> None:
        """Short queries end by themselves; the others are ended, and their clients see it."""
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=STOP_GRACE_S)
        for handler in self._handlers:
            handler.cancel()
        while self._handlers:
            await self.gateway.kill(MARK)
            if self._handlers:  # the last may have ended meanwhile
                await asyncio.wait(self._handlers, timeout=KILL_AGAIN_S)
        await self.gateway.close()

    async def stop(self, _app: web.Application) -> None:
        self._coding_pool.shutdown()

    @property
    def gateway(self) -> SqlGateway:
        assert self._gateway is not None, "the application was not started"
        return self._gateway

    @property
    def facts(self) -> Facts:
        assert self._facts is not None, "the application was not started"
        return self._facts

    # --- requests

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method not in _METHODS:
            return web.Response(
                status=405, text="Method not allowed\n", headers={"Allow": ", ".join(_METHODS)}
            )
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": ", ".join(_METHODS)})
        if request.path in ("/ping", "/replicas_status"):
            return web.Response(text="Ok.\n", content_type="text/html", charset="UTF-8")
        if request.path != "/":
            return web.Response(status=404, text=_HELP)
        if request.method != "POST" and "query" not in url_parameters(request):
            return web.Response(text="Ok.\n", content_type="text/html", charset="UTF-8")
        # A task of its own, so that a stop can end it and still wait for it.
        handler = asyncio.get_running_loop().create_task(self._sql(request))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        try:
            return await handler
        except asyncio.CancelledError:
            # The client has left, or the server stops: the handler ends its query first.
            handler.cancel()
            await asyncio.wait([handler])
            raise

    async def _sql(self, request: web.Request) -> web.StreamResponse:
        ask: Ask | None = None
        try:
            role = self._who(request)
            values = url_parameters(request)
            files: dict[str, bytes] = {}
            if request.content_type == "multipart/form-data":
                fields, files = await read_form(request)
                values |= fields
            ask = read_ask(request, role, values)
            ask.tables = external_tables(ask, values, files)
            return await self._answer(request, ask)
        except NobodyError as error:
            return self._failure(error, ask, status=401)
        except SqlError as error:
            return self._failure(error, ask)
        except StalledError:
            log.info("a client of the SQL interface took or gave nothing for %d s", STALL_S)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=408)
        except UnknownCoding as error:
            return self._failure(sql_error(48, "NOT_IMPLEMENTED", str(error)), ask)
        except CodingError as error:
            return self._failure(
                sql_error(354, "ZLIB_INFLATE_FAILED", f"The body cannot be decompressed: {error}"),
                ask,
                status=400,
            )

    def _who(self, request: web.Request) -> Role:
        """Who asks. Raises AUTHENTICATION_FAILED."""
        user, password = credentials(request)
        settings = self._settings
        if self._is_sql_user(user, password):
            return Role.WRITER
        here = settings.anonymous == "always" or (
            settings.anonymous == "loopback" and is_local(request)
        )
        if here and user in ("", "default") and not password:
            return Role.READER
        raise refused(user, password)

    def _is_sql_user(self, user: str, password: str) -> bool:
        settings = self._settings
        if settings.user is None or settings.password is None:
            return False
        # Bytes of a header that are no UTF-8 come as surrogates; they are nobody's name.
        right = hmac.compare_digest(user.encode(errors="surrogateescape"), settings.user.encode())
        return right & hmac.compare_digest(
            password.encode(errors="surrogateescape"),
            settings.password.encode(),
        )

    async def _answer(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        body = Body(request, self._in_coding_thread)
        if request.content_type == "multipart/form-data":
            body.complete = True
        async with AsyncExitStack() as stack:
            session = None
            if ask.session_id is not None:
                session = await stack.enter_async_context(
                    self.gateway.session(
                        ask.role,
                        ask.session_id,
                        ask.session_timeout_s,
                        must_exist=ask.session_check,
                        last=ask.session_close,
                    )
                )
            job = Job(
                role=ask.role,
                database=ask.database,
                settings=ask.settings,
                params=ask.params,
                read_only=ask.method != "POST",
                session=session,
                tables=ask.tables,
            )
            if ask.tables and session is not None and session.handle is not None:
                raise sql_error(
                    48,
                    "NOT_IMPLEMENTED",
                    "External tables cannot be sent into a session that has SET values or temporary"
                    " tables of its own",
                )
            text, head = await _head(ask, body)
            await self.gateway.take_place()
            place = Place(self.gateway)
            try:
                if isinstance(head, InsertData):
                    return await self._insert(request, ask, job, text, head, body, place)
                handle, statement = await self.gateway.open(job, text)
                if statement.action is Action.READ:
                    fmt, asked = _format(text, ask)
                    if is_hello(ask.client_revision, fmt, text):
                        facts, summary = await self.gateway.execute(
                            handle, job, FACTS, FACTS_FORMAT
                        )
                        hello = hello_block(ask.client_revision, facts)
                        return await self._whole(request, ask, hello, summary, fmt)
                    query = self.gateway.start_read(handle, job, text, asked, place.hand_over())
                    return await self._stream(request, ask, query, fmt)
                asked = _format(text, ask)[1]
                result, summary = await self.gateway.execute(handle, job, text, asked)
                return await self._whole(request, ask, result, summary, None)
            finally:
                place.give_back()

    # --- answers

    def _headers(self, ask: Ask, fmt: str | None) -> dict[str, str]:
        headers = {
            "X-ClickHouse-Query-Id": ask.query_id,
            "X-ClickHouse-Server-Display-Name": self.facts.host,
            "X-ClickHouse-Timezone": self.facts.timezone,
            "Content-Type": "text/plain; charset=UTF-8",
        }
        if fmt is not None:
            headers["X-ClickHouse-Format"] = fmt
            headers["Content-Type"] = self.facts.content_types.get(fmt, "text/plain; charset=UTF-8")
        return headers

    def _failure(self, error: SqlError, ask: Ask | None, status: int | None = None) -> web.Response:
        status = status or _STATUS.get(error.code, 500)
        headers = {} if ask is None else self._headers(ask, None)
        headers["X-ClickHouse-Exception-Code"] = str(error.code)
        headers["Content-Type"] = "text/plain; charset=UTF-8"
        if error.code == 516:
            headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        return web.Response(
            status=status, body=self._message(error).encode("utf-8", "replace"), headers=headers
        )

    def _message(self, error: SqlError) -> str:
        text = error.message.rstrip("\n")
        version = f"(version {self.facts.version})"
        return f"{text}\n" if text.endswith(version) else f"{text} {version}\n"

    async def _whole(
        self, request: web.Request, ask: Ask, body: bytes, summary: Summary, fmt: str | None
    ) -> web.StreamResponse:
        """An answer whose end is known."""
        headers = self._headers(ask, fmt)
        headers["X-ClickHouse-Summary"] = summary.as_header(time.monotonic_ns() - ask.started_ns)
        if ask.coding is not None and body:
            encoder = ENCODERS[ask.coding]()
            body = await self._encode(encoder, body) + encoder.finish()
            headers["Content-Encoding"] = ask.coding
        return web.Response(body=body, headers=headers)

    async def _stream(
        self, request: web.Request, ask: Ask, query: RunningQuery, fmt: str
    ) -> web.StreamResponse:
        try:
            start = bytearray()
            while len(start) < HOLD_BYTES:
                piece = await query.read()
                if not piece:
                    query.close()
                    return await self._whole(request, ask, bytes(start), await query.done, fmt)
                start += piece
            if ask.wait_end:
                return await self._spool(request, ask, query, fmt, bytes(start))
            return await self._pass_on(request, ask, query, fmt, bytes(start))
        except BaseException:
            query.abandon()
            raise

    async def _pass_on(
        self, request: web.Request, ask: Ask, query: RunningQuery, fmt: str, start: bytes
    ) -> web.StreamResponse:
        """A long answer, as it comes."""
        tag = secrets.token_hex(8)
        headers = self._headers(ask, fmt)
        headers["X-ClickHouse-Exception-Tag"] = tag
        encoder: Encoder | None = None
        if ask.coding is not None:
            encoder = ENCODERS[ask.coding]()
            headers["Content-Encoding"] = ask.coding
        response = web.StreamResponse(headers=headers)
        if request.version >= (1, 1):
            response.enable_chunked_encoding()
        await response.prepare(request)
        if request.method == "HEAD":
            query.abandon()
            return response
        piece = start
        while piece:
            await _write(response, await self._encode(encoder, piece))
            # Writing to a fast client never waits, so others on the loop get their turn here.
            await asyncio.sleep(0)
            piece = await query.read()
        query.close()
        try:
            await query.done
        except SqlError as error:
            told = _told_in_stream(self._message(error), tag)
            await _write(
                response, await self._encode(encoder, told) + (encoder.finish() if encoder else b"")
            )
            if request.transport is not None:
                # What was written still goes out; the last chunk does not.
                request.transport.close()
            return response
        if encoder is not None:
            await _write(response, encoder.finish())
        await response.write_eof()
        return response

    async def _spool(
        self, request: web.Request, ask: Ask, query: RunningQuery, fmt: str, start: bytes
    ) -> web.StreamResponse:
        """wait_end_of_query: nothing goes out before the query has ended well; what does not fit
        waits on disk.
        """
        encoder = ENCODERS[ask.coding]() if ask.coding is not None else None
        spool: IO[bytes]
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(self._settings.data_dir)) as spool:
            piece = start
            while piece:
                if spool.tell() > SPOOL_MAX_BYTES:
                    raise sql_error(
                        396,
                        "TOO_MANY_ROWS_OR_BYTES",
                        f"Limit for result exceeded: wait_end_of_query holds {SPOOL_MAX_BYTES}"
                        " bytes; leave it out to have the result streamed",
                    )
                await self._in_coding_thread(spool.write, await self._encode(encoder, piece))
                piece = await query.read()
            query.close()
            summary = await query.done
            if encoder is not None:
                spool.write(encoder.finish())
            headers = self._headers(ask, fmt)
            headers["X-ClickHouse-Summary"] = summary.as_header(
                time.monotonic_ns() - ask.started_ns
            )
            if ask.coding is not None:
                headers["Content-Encoding"] = ask.coding
            response = web.StreamResponse(headers=headers)
            response.content_length = spool.tell()
            spool.seek(0)
            await response.prepare(request)
            while request.method != "HEAD" and (
                piece := await self._in_coding_thread(spool.read, HOLD_BYTES)
            ):
                await _write(response, piece)
            await response.write_eof()
            return response

    async def _insert(
        self, request: web.Request, ask: Ask, job: Job, text: bytes, head: InsertData,
        body: Body, place: Place,
    ) -> web.StreamResponse:  # fmt: skip
        data = text[head.data_start :]
        if head.format.lower() == "values":
            while len(data) < HOLD_BYTES and not body.complete:
                data += await body.read()
            if not _may_hold_expressions(data, complete=body.complete):
                if b"input_format_values" in head.settings.lower():
                    raise sql_error(497, "ACCESS_DENIED", _NO_EXPRESSIONS_HERE)
                job.settings = {**job.settings, **NO_EXPRESSIONS}
        handle, _ = await self.gateway.open(job, head.statement())
        insert = self.gateway.start_insert(handle, job, head, place.hand_over())
        try:
            await insert.write(data)
            while not body.complete:
                await insert.write(await body.read())
            summary = await insert.finish()
        except BaseException:
            insert.abandon()
            raise
        return await self._whole(request, ask, b"", summary, None)

    async def _encode(self, encoder: Encoder | None, data: bytes) -> bytes:
        if encoder is None:
            return data
        if len(data) <= _INLINE_CODING_BYTES:
            return encoder.compress(data)
        return await self._in_coding_thread(encoder.compress, data)

    async def _in_coding_thread(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._coding_pool, function, *args)


def refused(user: str, password: str) -> SqlError:
    error = sql_error(
        516,
        "AUTHENTICATION_FAILED",
        f"{user or 'default'}: Authentication failed: password is incorrect,"
        " or there is no user with such name.",
    )
    return error if user or password else NobodyError(error.code, error.message)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except TimeoutError:
        raise StalledError from None


class Place:
    """A place in the pool, given back once: by the request, or by the query that it was handed
    to.
    """

    def __init__(self, gateway: SqlGateway) -> None:
        self._gateway = gateway
        self._mine = True

    def hand_over(self) -> Callable[[], None]:
        self._mine = False
        return self._gateway.give_place

    def give_back(self) -> None:
        if self._mine:
            self._mine = False
            self._gateway.give_place()


class Body:
    """The request's body, decoded, in pieces."""

    def __init__(
        self, request: web.Request, in_thread: Callable[..., Awaitable[bytes | None]]
    ) -> None:
        self._content = request.content
        self._decoder: Decoder | None = decoder(request.headers.get("Content-Encoding", ""))
        self._in_thread = in_thread
        self._pieces: AsyncIterator[bytes] = self._read()
        self.complete = False

    async def read(self) -> bytes:
        """The next piece; empty, and `complete`, at the end. Raises CodingError."""
        piece = await anext(self._pieces, b"")
        self.complete = not piece
        return piece

    async def _read(self) -> AsyncIterator[bytes]:
        while data := await self._received():
            if self._decoder is None:
                yield data
                continue
            pieces = self._decoder.decompress(data)
            while (piece := await self._in_thread(next, pieces, None)) is not None:
                yield piece
        if self._decoder is not None:
            self._decoder.finish()

    async def _received(self) -> bytes:
        try:
            async with asyncio.timeout(STALL_S):
                return await self._content.readany()
        except TimeoutError:
            raise StalledError from None


async def _head(ask: Ask, body: Body) -> tuple[bytes, InsertData | None]:
    """The SQL of a request; for an INSERT with data, its beginning and as much data as came with
    it.
    """
    text = bytearray(ask.query)
    piece = b"" if body.complete else await body.read()
    if text and piece:
        text += b"\n"
    while True:
        text += piece
        head = insert_head(bytes(text), complete=body.complete)
        if isinstance(head, InsertData):
            return bytes(text), head
        if body.complete:
            break
        if len(text) > ask.max_query_bytes():
            raise sql_error(
                62, "SYNTAX_ERROR",
                f"Syntax error: Max query size exceeded (max_query_size = {ask.max_query_bytes()})",
            )  # fmt: skip
        piece = await body.read()
    assert isinstance(head, NotAnInsert | Unfinished)
    return bytes(text), None


def _format(text: bytes, ask: Ask) -> tuple[str, str]:
    """The output format, and the one to ask for where the query names none."""
    asked = ask.default_format or DEFAULT_FORMAT
    return output_clauses(text)[0].format or asked, asked


_NO_EXPRESSIONS_HERE = (
    "Not enough privileges to evaluate expressions in this much data, or in data that names a file:"
    " write literals, and leave out input_format_values_*"
)


def _may_hold_expressions(data: bytes, *, complete: bool) -> bool:
    """Whether VALUES data is seen whole and cannot name the function `file` by any spelling."""
    return complete and not any(sign in data for sign in (b"file", b"`", b'"', b"\xe2\x80\x9c"))


def _told_in_stream(message: str, tag: str) -> bytes:
    """An exception inside of a body, as ClickHouse 25.11 and later write it."""
    text = message.encode("utf-8", "replace")
    return b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (
        tag.encode(),
        text,
        len(text),
        tag.encode(),
    )
