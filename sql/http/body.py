"""The body of a request: decoded, in pieces, and no faster than it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.codings import Decoder, decoder
from brokerhouse.sql.http.compressed_blocks import BlockDecoder

T = TypeVar("T")
P = TypeVar("P")

STALL_S = 300
READER_PATIENCE_S = 20.0
READER_LEAST_BYTES_PER_S = 4096
_CODING_THREADS = 2
_INLINE_LZ4_BYTES = 32 * 1024
"""So much is decoded without a thread, which costs more: at most 8 MB, as LZ4 expands 255 times."""


class StalledError(Exception):
    """The client has sent or read too little for too long."""


class Patience:
    """How long the body of one request may take, apart from the time in which nobody wants it.

    A reader has READER_PATIENCE_S for it, and a second more, up to as much again, for each
    READER_LEAST_BYTES_PER_S that have come. The user with a password may send nothing for STALL_S:
    an INSERT may take its rows from something slow.
    """

    def __init__(self, role: Role) -> None:
        self._is_reader = role is Role.READER
        self._left_s = READER_PATIENCE_S if self._is_reader else float(STALL_S)

    async def wait(self, reading: Coroutine[Any, Any, P]) -> P:
        """Raises StalledError."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                return await reading
        except TimeoutError:
            raise StalledError from None
        finally:
            if self._is_reader:
                self._left_s -= loop.time() - began_s

    def came(self, size: int) -> None:
        """So many bytes have come."""
        if self._is_reader:
            more_s = size / READER_LEAST_BYTES_PER_S
            self._left_s = min(self._left_s + more_s, READER_PATIENCE_S)


class CodingThreads:
    """Threads that compress and decompress bodies and answers, outside the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_CODING_THREADS, thread_name_prefix="sql-coding")

    async def call(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        self._pool.shutdown()


class Body:
    """The request's body, decoded, in pieces."""

    def __init__(
        self,
        request: web.Request,
        threads: CodingThreads,
        patience: Patience,
        blocks: BlockDecoder | None = None,
    ) -> None:
        """`blocks`: what decodes the body after its Content-Encoding."""
        self._content = request.content
        self._patience = patience
        coding = request.headers.get("Content-Encoding", "")
        self._decoder: Decoder | None = decoder(coding)
        self._is_lz4 = coding == "lz4"
        self._threads = threads
        self._pieces: AsyncIterator[bytes] = self._read()
        if blocks is not None:
            self._pieces = self._out_of_blocks(blocks, self._pieces)
        self.complete = False

    async def read(self) -> bytes:
        """The next piece; empty, and `complete`, at the end. Raises CodingError, StalledError."""
        piece = await anext(self._pieces, b"")
        self.complete = not piece
        return piece

    async def _read(self) -> AsyncIterator[bytes]:
        while data := await self._received():
            if self._decoder is None:
                yield data
                continue
            pieces = self._decoder.decompress(data)
            if self._is_lz4 and len(data) <= _INLINE_LZ4_BYTES:
                for piece in pieces:
                    yield piece
                continue
            while (piece := await self._threads.call(next, pieces, None)) is not None:
                yield piece
        if self._decoder is not None:
            self._decoder.finish()

    async def _out_of_blocks(
        self, blocks: BlockDecoder, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        async for data in pieces:
            decoded = blocks.decompress(data)
            while (piece := await self._threads.call(next, decoded, None)) is not None:
                yield piece
        blocks.finish()

    async def _received(self) -> bytes:
        data = await self._patience.wait(self._content.readany())
        self._patience.came(len(data))
        return data
