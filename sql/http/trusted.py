"""ClickHouse's HTTP interface as brokers use it: one user, who may do everything.

interface.py with another gateway behind it (trusted_gateway.py). Who may do everything proves
it by the password that is set; where none is set, it has to be a program of this machine.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from sql.http.access import Role
from sql.http.gateway import Job, Limits
from sql.http.interface import Body, HttpInterface, Place, refused
from sql.http.request import Ask, credentials, is_local
from sql.http.settings import SqlSettings
from sql.http.text import InsertData
from sql.http.trusted_gateway import InsertBody, TrustedGateway, WatchedEngine
from storage.engine import StorageFault

STATEMENTS_AT_ONCE = 100  # ClickHouse's default of max_concurrent_queries is of this order


class EngineInterface(HttpInterface):
    """Serves one engine, on any number of listeners."""

    def __init__(self, engine: WatchedEngine, settings: SqlSettings) -> None:
        super().__init__(engine, settings)
        self._watched = engine
        self._trusted: TrustedGateway | None = None
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with `StorageFault` when the engine should serve no longer."""

    def _make_gateway(self) -> TrustedGateway:
        settings = self._settings
        limits = Limits(STATEMENTS_AT_ONCE, settings.max_threads, settings.max_memory_bytes)
        self._trusted = TrustedGateway(self._watched, limits)
        return self._trusted

    def _who(self, request: web.Request) -> Role:
        user, password = credentials(request)
        if self._settings.user is None:
            trusted = is_local(request) and user in ("", "default") and not password
        else:
            trusted = self._is_sql_user(user, password)
        if not trusted:
            raise refused(user, password)
        return Role.WRITER

    async def _insert(
        self, request: web.Request, ask: Ask, job: Job, text: bytes, head: InsertData,
        body: Body, place: Place,
    ) -> web.StreamResponse:  # fmt: skip
        assert self._trusted is not None
        data = InsertBody()
        try:
            data.write(text[head.data_start :])
            while not body.complete:
                data.write(await body.read())
        except BaseException:
            data.close()
            raise
        try:
            summary = await self._trusted.insert(job, head, data)
        except StorageFault as fault:
            # Whether the rows are stored is not known, and the sender must not be told otherwise.
            if not self.fault.done():
                self.fault.set_exception(fault)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        return await self._whole(request, ask, b"", summary, None)
