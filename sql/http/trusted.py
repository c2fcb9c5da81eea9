"""ClickHouse's HTTP interface as brokers use it, without the fence: everyone let in may do
everything.

interface.py with another login and another gateway (trusted_gateway.py) behind it. A client proves
who it is by the password that is set; where none is set, it has to be a program of this machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiohttp import web

from sql.http.body import Body
from sql.http.handles import StatementContext
from sql.http.interface import HttpInterface
from sql.http.login import OwnerLogin
from sql.http.pool import Permit
from sql.http.request import SqlRequest
from sql.http.settings import SqlSettings
from sql.http.text import InsertData
from sql.http.trusted_gateway import InsertBody, TrustedGateway, WatchedEngine
from storage.engine import StorageFault

STATEMENTS_AT_ONCE = 100  # ClickHouse's default of max_concurrent_queries is of this order


class EngineInterface(HttpInterface):
    """Serves one engine, on any number of listeners."""

    def __init__(self, engine: WatchedEngine, settings: SqlSettings) -> None:
        limits = replace(settings.limits, max_queries=STATEMENTS_AT_ONCE)
        self._trusted = TrustedGateway(engine, limits)
        super().__init__(self._trusted, OwnerLogin(settings), settings.data_dir)
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with `StorageFault` when the engine must not serve any more."""

    async def _insert(
        self, request: web.Request, wanted: SqlRequest, context: StatementContext, text: bytes,
        head: InsertData, body: Body, permit: Permit,
    ) -> web.StreamResponse:  # fmt: skip
        data = InsertBody()
        try:
            data.write(text[head.data_start :])
            while not body.complete:
                data.write(await body.read())
        except BaseException:
            data.close()
            raise
        try:
            summary = await self._trusted.insert(context, head, data)
        except StorageFault as fault:
            # Whether the rows are stored is unknown: the sender must not be told that they are, or
            # that they are not.
            if not self.fault.done():
                self.fault.set_exception(fault)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        return await self._answers.whole(wanted, b"", summary, None)
