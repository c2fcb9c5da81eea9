"""ClickHouse's HTTP interface (https://clickhouse.com/docs/interfaces/http) in front of the
embedded engine.

login.py says who sends a request; the request becomes a `SqlRequest` (request.py); gateway.py runs
its statement; answers.py writes the answer. What must hold:
* A client that leaves ends its query.
* The event loop only copies bytes: parsing SQL, running it and compressing happen in threads.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, nullcontext

from aiohttp import web

from brokerhouse.common.address import client_network
from brokerhouse.common.counted_lines import counted
from brokerhouse.sql.http.access import Action, Role
from brokerhouse.sql.http.answers import HOLD_BYTES, AnswerWriter
from brokerhouse.sql.http.body import Body, CodingThreads, Patience, StalledError
from brokerhouse.sql.http.codings import CodingError, UnknownCoding
from brokerhouse.sql.http.compressed_blocks import BlockDecoder
from brokerhouse.sql.http.endings import GoneClients, StatementsById
from brokerhouse.sql.http.engine import MARK, SqlEngine
from brokerhouse.sql.http.errors import SYNTAX_ERROR, CredentialsNeeded, SqlError, sql_error
from brokerhouse.sql.http.gateway import SqlGateway, people_gateway
from brokerhouse.sql.http.go_handshake import FACTS, FACTS_FORMAT, hello_block, is_hello
from brokerhouse.sql.http.handles import NO_EXPRESSIONS, StatementContext
from brokerhouse.sql.http.held_bytes import Hold, Room
from brokerhouse.sql.http.limits import RequestPlaces, TemporaryFiles
from brokerhouse.sql.http.login import PeopleLogin, SqlLogin
from brokerhouse.sql.http.pool import KILL_AGAIN_S, Permit
from brokerhouse.sql.http.refuse_web_pages import refuse_other_sites
from brokerhouse.sql.http.request import (
    BLOCK_MAX_BYTES,
    DEFAULT_FORMAT,
    SqlRequest,
    external_tables,
    read_form,
    read_request,
    url_parameters,
)
from brokerhouse.sql.http.settings import SqlSettings
from brokerhouse.sql.http.text import (
    InsertData,
    NotAnInsert,
    Unfinished,
    insert_head,
    output_clauses,
)
from brokerhouse.storage.view_doubts import InDoubt

log = logging.getLogger(__name__)

URL_MAX_BYTES = 1024 * 1024  # ClickHouse's http_max_uri_size
FIELD_MAX_BYTES = 16 * 1024
FIELDS_MAX = 64
STOP_GRACE_S = 2.0
GIVE_UP_AFTER_S = 2.0  # past the time that the engine is given

_REPAIR_VIEW, _DROP_VIEW = "/views/repair", "/views/drop"
_VIEW_PATHS = (_REPAIR_VIEW, _DROP_VIEW)
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
_HELP = (
    "There is nothing here. SQL goes to / as ?query=... or as the body of a POST;"
    " /ping and /replicas_status say whether the server is alive;"
    " /metrics, /live and /ready are for monitoring.\n"
)


def make_app(engine: SqlEngine, settings: SqlSettings) -> web.Application:
    """The SQL interface for people, as an aiohttp application."""
    gateway = people_gateway(engine, settings.limits)
    return application(HttpInterface(gateway, PeopleLogin(settings), settings))


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
            "max_headers": FIELDS_MAX,
        }
    )
    app.on_startup.append(interface.start)
    app.on_shutdown.append(interface.stop_queries)
    app.on_cleanup.append(interface.stop)
    app.router.add_route("*", "/{path:.*}", interface.handle)
    return app


class HttpInterface:
    """Answers requests with what the gateway gives."""

    def __init__(self, gateway: SqlGateway, login: SqlLogin, settings: SqlSettings) -> None:
        self._settings = settings
        self._gateway = gateway
        self._login = login
        self._threads = CodingThreads()
        self._writer: AnswerWriter | None = None
        self._gone = GoneClients()
        self._statements = StatementsById(gateway.pool)
        self._temporary_files = TemporaryFiles(
            gateway.pool,
            settings.data_dir / "clickhouse" / "tmp",
            settings.limits.bounds.temporary_bytes,
        )
        self._text_rooms = {
            Role.READER: Room(settings.limits.memory_bytes // 8, "statements"),
            Role.WRITER: Room(sys.maxsize, "statements"),
        }
        self._places = RequestPlaces(settings.max_connections)
        self._handlers: set[asyncio.Task[web.StreamResponse]] = set()

    # --- start and stop

    async def start(self, _app: web.Application) -> None:
        facts = await self._gateway.start()
        self._writer = AnswerWriter(facts, self._threads, self._settings)
        self._gone.start()
        self._temporary_files.start()

    async def stop_queries(self, _app: web.Application) -> None:
        """Short queries end by themselves; the others are killed, and their clients are told."""
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=STOP_GRACE_S)
        for handler in self._handlers:
            handler.cancel()
        while self._handlers:
            await self._gateway.pool.kill(MARK)
            if self._handlers:  # the last may have ended meanwhile
                await asyncio.wait(self._handlers, timeout=KILL_AGAIN_S)
        await self._gone.close()
        await self._temporary_files.close()
        await self._gateway.close()

    async def stop(self, _app: web.Application) -> None:
        self._threads.close()

    @property
    def _answers(self) -> AnswerWriter:
        assert self._writer is not None, "the application was not started"
        return self._writer

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
        if request.path in _VIEW_PATHS and request.method == "POST":
            return await self._change_view(request)
        if request.path != "/":
            return web.Response(status=404, text=_HELP)
        if request.method != "POST" and "query" not in url_parameters(request):
            return web.Response(text="Ok.\n", content_type="text/html", charset="UTF-8")
        # A task of its own, so that a stop can end it and still wait for it.
        handler = asyncio.get_running_loop().create_task(self._sql(request))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        self._gone.watch(handler, request)
        try:
            return await handler
        except asyncio.CancelledError:
            # The client has left, or the server stops: the handler ends its query first.
            handler.cancel()
            await asyncio.wait([handler])
            raise

    async def _change_view(self, request: web.Request) -> web.StreamResponse:
        """Repair or drop the failed view `database`.`view` of the URL's parameters.

        The body of a repair, if there is one, is the query that the view gets before. The
        parameter `in_doubt` is `fill` or `keep`.
        """
        try:
            refuse_other_sites(request)
            if self._login.role(request) is not Role.WRITER:
                raise sql_error(497, "ACCESS_DENIED", "Only a user who may write changes a view")
            values = url_parameters(request)
            view = values.get("database", ""), values.get("view", "")
            if request.path == _DROP_VIEW:
                await self._gateway.drop_view(*view)
                return web.json_response({})
            body = await request.read()
            query = body.decode() if body else None
            missed = await self._gateway.repair_view(*view, query, _in_doubt(values))
        except UnicodeDecodeError:
            return web.Response(status=400, text="The query has to be UTF-8\n")
        except CredentialsNeeded as error:
            return self._answers.failure(error, None, status=401)
        except SqlError as error:
            return self._answers.failure(error, None)
        return web.json_response({"missed": missed})

    async def _sql(self, request: web.Request) -> web.StreamResponse:
        """The answer to a request with SQL, also if the request fails."""
        with ExitStack() as stack:
            return await self._sql_within(request, stack)

    async def _sql_within(self, request: web.Request, stack: ExitStack) -> web.StreamResponse:
        """`stack` gives back what the request holds."""
        wanted: SqlRequest | None = None
        try:
            refuse_other_sites(request)
            role = self._login.role(request)
            stack.enter_context(self._places.place(role, request.remote))
            hold = stack.enter_context(self._text_rooms[role].hold())
            patience = Patience(role)
            values = url_parameters(request)
            files: dict[str, bytes] = {}
            if request.content_type == "multipart/form-data":
                fields, files = await read_form(request, role, hold, patience)
                values |= fields
            wanted = read_request(request, role, values)
            wanted.tables = external_tables(wanted, values, files)
            body = Body(request, self._threads, patience, _block_decoder(wanted, hold))
            return await self._answer(request, wanted, body, hold)
        except CredentialsNeeded as error:
            return self._answers.failure(error, wanted, status=401)
        except SqlError as error:
            return self._answers.failure(error, wanted)
        except TimeoutError:
            return self._too_late(request, wanted)
        except StalledError:
            log.info(
                "closed an SQL connection: its body or its answer moved too slowly",
                extra=counted(),
            )
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=408)
        except UnknownCoding as error:
            return self._answers.failure(sql_error(48, "NOT_IMPLEMENTED", str(error)), wanted)
        except CodingError as error:
            message = f"The body cannot be decompressed: {error}"
            return self._answers.failure(
                sql_error(error.code, error.name, message), wanted, status=400
            )

    def _too_late(self, request: web.Request, wanted: SqlRequest | None) -> web.Response:
        """The statement has not ended by itself: whether it is killed or still runs, it is lost."""
        if wanted is None or wanted.answer_begun:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=408)
        limit = self._settings.limits.bounds.max_execution_ms
        message = f"Timeout exceeded: maximum: {limit} ms"
        return self._answers.failure(sql_error(159, "TIMEOUT_EXCEEDED", message), wanted)

    async def _answer(
        self, request: web.Request, wanted: SqlRequest, body: Body, hold: Hold
    ) -> web.StreamResponse:
        if request.content_type == "multipart/form-data":
            body.complete = True
        async with AsyncExitStack() as stack:
            context = await self._context(wanted, stack)
            text, head = await _read_statement(wanted, body, hold)
            text = self._statements.kill(wanted, request.remote, text) or text
            stack.enter_context(self._statements.with_one(wanted, request.remote, context.mark))
            permit = await self._gateway.pool.permit(wanted.role, client_network(request.remote))
            try:
                wanted.max_time_s = self._longest_s(wanted.role)
                async with asyncio.timeout(wanted.max_time_s) as wanted.time_limit:
                    if isinstance(head, InsertData):
                        return await self._insert(
                            request, wanted, context, text, head, body, permit
                        )
                    async with self._while_running(text, context.database):
                        return await self._run(request, wanted, context, text, permit)
            finally:
                permit.give_back()

    def _longest_s(self, role: Role) -> float | None:
        """When a statement is given up. The engine ends nearly all by itself before: it looks at
        the time between two blocks of rows, and a function may take minutes for one.
        """
        if role is Role.WRITER:
            return None  # the engine's limit may have been raised for the statement
        return self._settings.limits.bounds.max_execution_ms / 1000 + GIVE_UP_AFTER_S

    async def _context(self, wanted: SqlRequest, stack: AsyncExitStack) -> StatementContext:
        """What the statement runs with. `stack` returns its session."""
        session = None
        if wanted.session_id is not None:
            session = await stack.enter_async_context(
                self._gateway.sessions.use(
                    wanted.role,
                    wanted.session_id,
                    wanted.session_timeout_s,
                    must_exist=wanted.session_check,
                    last=wanted.session_close,
                )
            )
        if wanted.tables and session is not None and session.handle is not None:
            raise sql_error(
                48,
                "NOT_IMPLEMENTED",
                "External tables cannot be sent into a session that has SET values or temporary"
                " tables of its own",
            )
        return StatementContext(
            role=wanted.role,
            database=wanted.database,
            settings=wanted.settings,
            params=wanted.params,
            read_only=wanted.method != "POST",
            session=session,
            tables=wanted.tables,
        )

    def _while_running(
        self, text: bytes, database: str | None
    ) -> AbstractAsyncContextManager[None]:
        """Entered around a statement that is not an INSERT with data."""
        return nullcontext()

    async def _run(
        self,
        request: web.Request,
        wanted: SqlRequest,
        context: StatementContext,
        text: bytes,
        permit: Permit,
    ) -> web.StreamResponse:
        """Any statement but an INSERT with data."""
        gateway, answers = self._gateway, self._answers
        default_format = wanted.default_format or DEFAULT_FORMAT
        fmt = output_clauses(text)[0].format or default_format
        if is_hello(wanted.client_revision, fmt, text):
            asked = FACTS[wanted.role]
            opened = await gateway.open(context, asked, permit)
            facts, summary = await gateway.execute(opened, asked, FACTS_FORMAT)
            hello = hello_block(wanted.client_revision, facts)
            return await answers.whole(wanted, hello, summary, fmt)
        opened = await gateway.open(context, text, permit)
        if opened.action is not Action.READ:
            result, summary = await gateway.execute(opened, text, default_format)
            return await answers.whole(wanted, result, summary, None)
        query = gateway.start_read(opened, opened.sql, default_format)
        return await answers.stream(request, wanted, query, fmt)

    async def _insert(
        self,
        request: web.Request,
        wanted: SqlRequest,
        context: StatementContext,
        text: bytes,
        head: InsertData,
        body: Body,
        permit: Permit,
    ) -> web.StreamResponse:
        """An INSERT with data: `text` is its statement and the first of its data."""
        data = text[head.data_start :]
        if head.format.lower() == "values":
            while len(data) < HOLD_BYTES and not body.complete:
                data += await body.read()
            if not _may_hold_expressions(data, complete=body.complete):
                if b"input_format_values" in head.settings.lower():
                    raise sql_error(497, "ACCESS_DENIED", _NO_EXPRESSIONS_HERE)
                context.settings = {**context.settings, **NO_EXPRESSIONS}
        opened = await self._gateway.open(context, head.statement(), permit)
        insert = self._gateway.start_insert(opened, head)
        try:
            await insert.write(data)
            while not body.complete:
                await insert.write(await body.read())
            summary = await insert.finish()
        except BaseException:
            insert.abandon()
            raise
        return await self._answers.whole(wanted, b"", summary, None)


def _block_decoder(wanted: SqlRequest, hold: Hold) -> BlockDecoder | None:
    """For a body that is in ClickHouse's compressed blocks (`decompress=1`)."""
    if not wanted.in_blocks:
        return None
    return BlockDecoder(BLOCK_MAX_BYTES[wanted.role], hold.add, check_sums=wanted.check_sums)


async def _read_statement(
    wanted: SqlRequest, body: Body, hold: Hold
) -> tuple[bytes, InsertData | None]:
    """The SQL of a request; for an INSERT with data, its beginning and as much data as came with
    it.
    """
    text = bytearray(wanted.query)
    piece = b"" if body.complete else await body.read()
    if text and piece:
        text += b"\n"
    look_at = 0
    hold.add(len(text))
    while True:
        hold.add(len(piece))
        text += piece
        # Each look begins at the start, so a text that comes byte by byte is looked at whenever it
        # has doubled.
        if body.complete or len(text) >= look_at:
            head = insert_head(bytes(text), complete=body.complete)
            if isinstance(head, InsertData):
                return bytes(text), head
            look_at = 2 * len(text)
        if body.complete:
            break
        limit = wanted.max_query_bytes()
        if len(text) > limit:
            raise sql_error(
                SYNTAX_ERROR,
                "SYNTAX_ERROR",
                f"Syntax error: Max query size exceeded (max_query_size = {limit})",
            )
        piece = await body.read()
    assert isinstance(head, NotAnInsert | Unfinished)
    return bytes(text), None


_NO_EXPRESSIONS_HERE = (
    "Not enough privileges to evaluate expressions in this much data, or in data that names a file:"
    " write literals, and leave out input_format_values_*"
)


def _may_hold_expressions(data: bytes, *, complete: bool) -> bool:
    """Whether all VALUES data has arrived and none of it can name the function `file`."""
    return complete and not any(sign in data for sign in (b"file", b"`", b'"', b"\xe2\x80\x9c"))


def _in_doubt(values: Mapping[str, str]) -> InDoubt | None:
    """What to do about records in doubt. Raises `SqlError`."""
    text = values.get("in_doubt")
    try:
        return None if text is None else InDoubt(text)
    except ValueError as error:
        raise sql_error(36, "BAD_ARGUMENTS", "in_doubt is fill or keep") from error
