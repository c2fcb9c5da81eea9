"""ClickHouse's HTTP interface as brokers use it, without the fence: everyone let in may do
everything. Blocks of brokers go into the journal where they can (storage/block_intake.py).

interface.py with another login and another gateway (trusted_gateway.py) behind it. A client proves
who it is by the password that is set; where none is set, it has to be a program of this machine.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from aiohttp import web

from brokerhouse.sql.http.access import Action
from brokerhouse.sql.http.block_connections import BlockTarget, KnownHeads
from brokerhouse.sql.http.body import Body
from brokerhouse.sql.http.engine import Summary
from brokerhouse.sql.http.errors import STD_EXCEPTION, SqlError, engine_error, sql_error
from brokerhouse.sql.http.handles import StatementContext
from brokerhouse.sql.http.interface import HttpInterface
from brokerhouse.sql.http.login import OwnerLogin
from brokerhouse.sql.http.pool import Permit
from brokerhouse.sql.http.request import DEFAULT_FORMAT, SqlRequest
from brokerhouse.sql.http.settings import SqlQueue, SqlSettings
from brokerhouse.sql.http.text import InsertData, output_clauses
from brokerhouse.sql.http.token_inserts import TokenInsert, token_insert
from brokerhouse.sql.http.trusted_gateway import InsertBody, TrustedGateway, WatchedEngine, is_small
from brokerhouse.storage.block_intake import BlockIntake
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE
from brokerhouse.storage.engine import EngineError, StorageFault
from brokerhouse.storage.journal_statements import changes_tables

NOTHING_COUNTED = Summary(0, 0, 0, 0, 0, 0)
STATEMENTS_AT_ONCE = 100  # ClickHouse's default of max_concurrent_queries is of this order
QUEUE = SqlQueue(max_waiting=25 * STATEMENTS_AT_ONCE, wait_ms=10_000)


class EngineInterface(HttpInterface):
    """Serves one engine, on any number of listeners."""

    def __init__(self, engine: WatchedEngine, settings: SqlSettings, blocks: BlockIntake) -> None:
        """`blocks`: of brokers, on their way into the journal in front of `engine`."""
        limits = replace(
            settings.limits,
            max_queries=STATEMENTS_AT_ONCE,
            kept_for_writer=0,
            bounds=replace(settings.limits.bounds, temporary_bytes=sys.maxsize),
            queue=QUEUE,
        )
        self._trusted = TrustedGateway(engine, limits, blocks)
        super().__init__(self._trusted, OwnerLogin(settings), replace(settings, limits=limits))
        self._blocks = blocks
        self.heads = KnownHeads()
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with `StorageFault` when the engine must not serve any more."""

    async def append(self, target: BlockTarget, block: bytes, token: str) -> bool:
        """As `BlockIntake.append`; after `StorageFault` the engine ends."""
        try:
            return await self._blocks.append(target.table, target.columns, block, token)
        except StorageFault as fault:
            self._end(fault)
            raise

    def _end(self, fault: StorageFault) -> None:
        if not self.fault.done():
            self.fault.set_exception(fault)

    def _while_running(
        self, text: bytes, database: str | None
    ) -> AbstractAsyncContextManager[None]:
        if changes_tables(text, database):
            return self._blocks.tables_may_change()
        return super()._while_running(text, database)

    async def _run(
        self,
        request: web.Request,
        wanted: SqlRequest,
        context: StatementContext,
        text: bytes,
        permit: Permit,
    ) -> web.StreamResponse:
        if not is_small(context, text):
            return await super()._run(request, wanted, context, text, permit)
        fmt = wanted.default_format or DEFAULT_FORMAT
        action, result, summary = await self._trusted.run_small(context, text, fmt)
        fmt = output_clauses(text)[0].format or fmt
        return await self._answers.whole(
            wanted, result, summary, fmt if action is Action.READ else None
        )

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
        data = InsertBody()
        data.write(text[head.data_start :])
        while not body.complete:
            data.write(await body.read())
        insert = token_insert(wanted, context, head)
        is_known = insert is not None and self.heads.learn(request, wanted, insert)
        try:
            summary = await self._store(insert, context, head, data)
        except StorageFault as fault:
            # Whether the rows are stored is unknown: the sender must not be told that they are, or
            # that they are not.
            self._end(fault)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        answer = await self._answers.whole(wanted, b"", summary, None)
        if is_known:
            answer.force_close()  # see block_connections.py
        return answer

    async def _store(
        self,
        insert: TokenInsert | None,
        context: StatementContext,
        head: InsertData,
        data: InsertBody,
    ) -> Summary:
        """Into the journal if that is possible, else into the table."""
        if insert is None:
            return await self._trusted.insert(context, head, data)
        table, token = insert.table, insert.token
        try:
            if insert.columns is not None and await self._blocks.append(
                table, insert.columns, data.whole(), token
            ):
                return NOTHING_COUNTED
            if not await self._blocks.begin_direct(table, token):
                return NOTHING_COUNTED
        except EngineError as error:
            raise _refused(error) from error
        return await self._trusted.insert(context, head, data)


def _refused(error: EngineError) -> SqlError:
    """Nothing was stored. TOO_MANY_PARTS says so to a broker, if the engine gave no reason."""
    text = str(error)
    found = engine_error(RuntimeError(text))
    if found.code != STD_EXCEPTION:
        return found
    if error.code == NOT_ENOUGH_SPACE:
        return sql_error(error.code, "NOT_ENOUGH_SPACE", text)
    return sql_error(252, "TOO_MANY_PARTS", text)
