"""Writes answers: complete, streamed or held back, in a coding that the client accepts.

What must hold:
* The status line is sent when the first MiB of the result exists or the query has ended, so that
  most failures get their own status. A later failure is reported in the body, marked with the tag
  that the headers announced, and the stream is broken off without its last chunk.
* This code only copies bytes: threads compress them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Coroutine
from typing import IO, Any

from aiohttp import web

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.body import STALL_S, CodingThreads, StalledError
from brokerhouse.sql.http.codings import CODINGS, Encoder
from brokerhouse.sql.http.compressed_blocks import BlockEncoder, readable_block
from brokerhouse.sql.http.engine import Summary
from brokerhouse.sql.http.errors import SqlError, sql_error
from brokerhouse.sql.http.gateway import Facts
from brokerhouse.sql.http.held_bytes import Room
from brokerhouse.sql.http.hidden_from_readers import DISPLAY_NAME, PrivateText
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.running import RunningQuery
from brokerhouse.sql.http.settings import SqlSettings
from brokerhouse.storage.free_space import PEOPLE_KEEP_FREE_BYTES

HOLD_BYTES = 1024 * 1024  # of a result, before its status line goes out
SPOOL_MAX_BYTES = 2 * 1024**3  # of one result
_UNCOUNTED_BYTES = 64 * 1024
_INLINE_CODING_BYTES = 32 * 1024

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


# ClickHouse compresses the errors of a client that asks for blocks, except those of the login. Its
# Java client reads answers of both statuses as they are.
_NEVER_IN_BLOCKS = (401, 403)


class AnswerWriter:
    """`facts`: about the engine."""

    def __init__(self, facts: Facts, threads: CodingThreads, settings: SqlSettings) -> None:
        self._facts = facts
        self._threads = threads
        self._spool_dir = settings.data_dir
        quarter = settings.limits.bounds.temporary_bytes // 4
        waiting = "results that wait (wait_end_of_query)"
        self._spool_rooms = {
            Role.READER: Room(3 * quarter, waiting),
            Role.WRITER: Room(quarter, waiting),
        }
        self._unsent_room = Room(settings.limits.memory_bytes // 8, "results that are not read")
        self._private = PrivateText(settings.data_dir)

    def failure(
        self, error: SqlError, wanted: SqlRequest | None, status: int | None = None
    ) -> web.Response:
        """`wanted`: None where the request could not be read."""
        status = status or _STATUS.get(error.code, 500)
        headers = {} if wanted is None else self._headers(wanted, None)
        headers["X-ClickHouse-Exception-Code"] = str(error.code)
        headers["Content-Type"] = "text/plain; charset=UTF-8"
        if error.code == 516:
            headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        body = self._message(error, wanted).encode("utf-8", "replace")
        method = None if wanted is None else wanted.block_method
        if method is not None and status not in _NEVER_IN_BLOCKS:
            body = BlockEncoder(method).compress(body)
        return web.Response(status=status, body=body, headers=headers)

    async def whole(
        self, wanted: SqlRequest, body: bytes, summary: Summary, fmt: str | None
    ) -> web.Response:
        """An answer whose length is known."""
        headers = self._headers(wanted, fmt)
        headers["X-ClickHouse-Summary"] = self._summary(wanted, summary)
        encoder = _encoder(wanted)
        if encoder is not None and body:
            body = await self._encode(encoder, body) + encoder.finish()
            headers |= _content_encoding(wanted)
        return web.Response(body=body, headers=headers)

    async def stream(
        self, request: web.Request, wanted: SqlRequest, query: RunningQuery, fmt: str
    ) -> web.StreamResponse:
        """The result of a query, however long it is."""
        try:
            start = bytearray()
            while len(start) < HOLD_BYTES:
                piece = await query.read()
                if not piece:
                    query.close()
                    answer = await self.whole(wanted, bytes(start), await query.done, fmt)
                    return await self._sent(request, wanted, answer)
                start += piece
            if wanted.wait_end:
                return await self._hold_back(request, wanted, query, fmt, bytes(start))
            return await self._pass_on(request, wanted, query, fmt, bytes(start))
        except BaseException:
            query.abandon()
            raise

    async def _sent(
        self, request: web.Request, wanted: SqlRequest, answer: web.Response
    ) -> web.Response:
        """Send what would take much memory if readers do not read it; aiohttp sends the rest."""
        if (
            wanted.role is Role.READER
            and isinstance(answer.body, bytes)
            and len(answer.body) > _UNCOUNTED_BYTES
        ):
            with self._unsent_room.hold() as unsent:
                unsent.add(len(answer.body))
                wanted.answer_begun = True
                await _within_stall(answer.prepare(request))
                await _within_stall(answer.write_eof())
        return answer

    async def _pass_on(
        self, request: web.Request, wanted: SqlRequest, query: RunningQuery, fmt: str, start: bytes
    ) -> web.StreamResponse:
        """A long answer, streamed."""
        tag = secrets.token_hex(8)
        headers = self._headers(wanted, fmt)
        headers["X-ClickHouse-Exception-Tag"] = tag
        encoder = _encoder(wanted)
        headers |= _content_encoding(wanted)
        response = web.StreamResponse(headers=headers)
        if request.version >= (1, 1):
            response.enable_chunked_encoding()
        wanted.answer_begun = True
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
            block = _exception_block(self._message(error, wanted), tag)
            if encoder is not None:
                block = encoder.error(block) + encoder.finish()
            await _write(response, block)
            if request.transport is not None:
                # What was written still goes out; the last chunk does not.
                request.transport.close()
            return response
        if encoder is not None:
            await _write(response, encoder.finish())
        await response.write_eof()
        return response

    async def _hold_back(
        self, request: web.Request, wanted: SqlRequest, query: RunningQuery, fmt: str, start: bytes
    ) -> web.StreamResponse:
        """wait_end_of_query: nothing is sent before the query has succeeded; until then the result
        waits on disk.
        """
        encoder = _encoder(wanted)
        spool: IO[bytes]
        with (
            self._spool_rooms[wanted.role].hold() as spooled,
            tempfile.TemporaryFile(dir=str(self._spool_dir)) as spool,
        ):
            piece = start
            while piece:
                encoded = await self._encode(encoder, piece)
                spooled.add(len(encoded))
                self._check_spool(spool.tell())
                await self._threads.call(spool.write, encoded)
                piece = await query.read()
            query.close()
            summary = await query.done
            wanted.allow_as_much_time_again()
            if encoder is not None:
                spool.write(encoder.finish())
            headers = self._headers(wanted, fmt)
            headers["X-ClickHouse-Summary"] = self._summary(wanted, summary)
            headers |= _content_encoding(wanted)
            response = web.StreamResponse(headers=headers)
            response.content_length = spool.tell()
            spool.seek(0)
            wanted.answer_begun = True
            await response.prepare(request)
            while request.method != "HEAD" and (
                piece := await self._threads.call(spool.read, HOLD_BYTES)
            ):
                await _write(response, piece)
            await response.write_eof()
            return response

    def _check_spool(self, size: int) -> None:
        """Raises TOO_MANY_ROWS_OR_BYTES and NOT_ENOUGH_SPACE."""
        if size > SPOOL_MAX_BYTES:
            raise sql_error(
                396,
                "TOO_MANY_ROWS_OR_BYTES",
                f"Limit for result exceeded: wait_end_of_query holds {SPOOL_MAX_BYTES}"
                " bytes; leave it out to have the result streamed",
            )
        disk = os.statvfs(self._spool_dir)
        if disk.f_bavail * disk.f_frsize < PEOPLE_KEEP_FREE_BYTES:
            raise sql_error(
                243,
                "NOT_ENOUGH_SPACE",
                "The disk has too little space to hold a result: leave out wait_end_of_query to"
                " have the result streamed",
            )

    def _headers(self, wanted: SqlRequest, fmt: str | None) -> dict[str, str]:
        facts = self._facts
        headers = {
            "X-ClickHouse-Query-Id": wanted.query_id,
            "X-ClickHouse-Server-Display-Name": DISPLAY_NAME,
            "X-ClickHouse-Timezone": facts.timezone,
            "Content-Type": "text/plain; charset=UTF-8",
        }
        if fmt is not None:
            headers["X-ClickHouse-Format"] = fmt
            headers["Content-Type"] = facts.content_types.get(fmt, "text/plain; charset=UTF-8")
        return headers

    def _summary(self, wanted: SqlRequest, summary: Summary) -> str:
        return summary.as_header(time.monotonic_ns() - wanted.started_ns)

    def _message(self, error: SqlError, wanted: SqlRequest | None) -> str:
        """`wanted`: None where nobody knows yet who asks."""
        text = error.message.rstrip("\n")
        if wanted is None or wanted.role is Role.READER:
            text = self._private.removed_from(text)
        version = f"(version {self._facts.version})"
        return f"{text}\n" if text.endswith(version) else f"{text} {version}\n"

    async def _encode(self, encoder: _AnswerEncoder | None, data: bytes) -> bytes:
        if encoder is None:
            return data
        if len(data) <= _INLINE_CODING_BYTES:
            return encoder.compress(data)
        return await self._threads.call(encoder.compress, data)


class _AnswerEncoder:
    """The compressed blocks and the coding that an answer is wanted in: one of them, or both, the
    coding around the blocks.
    """

    def __init__(self, blocks: BlockEncoder | None, coding: Encoder | None) -> None:
        self._blocks = blocks
        self._coding = coding

    def compress(self, data: bytes) -> bytes:
        return self._coded(data if self._blocks is None else self._blocks.compress(data))

    def error(self, data: bytes) -> bytes:
        """What is written where the result breaks off."""
        return self._coded(data if self._blocks is None else readable_block(data))

    def finish(self) -> bytes:
        return b"" if self._coding is None else self._coding.finish()

    def _coded(self, data: bytes) -> bytes:
        return data if self._coding is None else self._coding.compress(data)


def _encoder(wanted: SqlRequest) -> _AnswerEncoder | None:
    method, coding = wanted.block_method, wanted.coding
    if method is None and coding is None:
        return None
    return _AnswerEncoder(
        None if method is None else BlockEncoder(method),
        None if coding is None else CODINGS[coding].encoder(),
    )


def _content_encoding(wanted: SqlRequest) -> dict[str, str]:
    return {} if wanted.coding is None else {"Content-Encoding": wanted.coding}


async def _write(response: web.StreamResponse, data: bytes) -> None:
    await _within_stall(response.write(data))


async def _within_stall(writing: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await writing
    except TimeoutError:
        raise StalledError from None


def _exception_block(message: str, tag: str) -> bytes:
    """An exception inside of a body, as ClickHouse 25.11 and later write it."""
    text = message.encode("utf-8", "replace")
    return b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (
        tag.encode(),
        text,
        len(text),
        tag.encode(),
    )
