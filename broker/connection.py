"""One client connection: bytes to requests, responses back in the order of the requests.

Requests of one connection are answered one after the other, as Kafka does, except that Produce
requests that follow each other run together: they are queued for the log in order before the
first of them waits, so a producer's pipeline fills one block instead of waiting for one insert
each.

Reading stops while requests wait their turn, while the client does not take its responses, and
while this connection holds more than its share of an exhausted budget (`InFlight`). So a
connection costs bounded memory whatever it sends, and a slow one holds up nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from kafka.protocol.api_message import ApiMessage

from broker.api import HANDLERS
from broker.api.context import CloseConnection, RequestContext
from broker.api.metadata import unsupported_api_versions
from protocol.codec import MalformedRequest, Request, decode_request, encode_response
from protocol.errors import KafkaError, UnknownServerError
from protocol.frames import FrameError, FrameReader
from protocol.versions import ApiKey

if TYPE_CHECKING:
    from broker.node import Broker

log = logging.getLogger(__name__)

_PIPELINED_MAX = 64
_SMALL_SHARE_BYTES = 1 << 20
_STALLED_AFTER_S = 5.0


class InFlight:
    """Bytes of requests not answered and of responses not sent, over all connections.

    Past the budget one connection at a time has the turn and is read on: half-sent requests that
    fill the budget between them would otherwise all wait for each other. One that has the turn and
    sends nothing is closed. The newest is next, because clients that stalled are among the older.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds the requests and, by itself, the responses."""
        self._max_bytes = max_bytes
        self._size = 0
        self._unsent = 0
        self._held_back: dict[Connection, None] = {}  # a set that keeps its order
        self._turn: Connection | None = None

    def change(self, delta: int) -> None:
        self._size += delta
        if self._held_back and self._size < self._max_bytes:
            released, self._held_back = self._held_back, {}
            for connection in released:
                connection.update_reading()

    def change_unsent(self, delta: int) -> None:
        self._unsent += delta

    @property
    def response_room(self) -> int:
        """How large a response may be now: less while clients do not take theirs."""
        return max(self._max_bytes - self._unsent, _SMALL_SHARE_BYTES)

    def holds_back(self, connection: Connection, held: int) -> bool:
        """Whether a connection that holds `held` bytes has to wait before it may send more.

        One that holds little is always read, so small requests get through when large ones wait.
        """
        if self._size < self._max_bytes or held <= _SMALL_SHARE_BYTES:
            if self._held_back or self._turn is connection:
                self.forget(connection)
            return False
        if self._turn is None:
            self._give_turn(connection)
        if self._turn is connection:
            return False
        self._held_back[connection] = None
        return True

    def forget(self, connection: Connection) -> None:
        """This connection needs no turn, or is gone; the next one has it."""
        self._held_back.pop(connection, None)
        if self._turn is connection:
            self._turn = None
        for waiting in reversed(tuple(self._held_back)):
            if self._turn is not None:
                return
            waiting.update_reading()

    def _give_turn(self, connection: Connection) -> None:
        self._turn = connection
        self._held_back.pop(connection, None)
        loop = asyncio.get_running_loop()
        loop.call_later(_STALLED_AFTER_S, self._check_turn, connection, loop.time())

    def _check_turn(self, connection: Connection, since: float) -> None:
        if self._turn is not connection:
            return
        if self._held_back and connection.idle and connection.last_active <= since:
            connection.abort("its request stopped arriving while others wait for the memory")
            return
        self._give_turn(connection)


class Connection(asyncio.Protocol):
    """Made by the listener for each client; lives until either side closes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_flight = broker.in_flight
        self._frames = FrameReader(broker.settings.request_max_bytes)
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._waiting: deque[tuple[Request, int]] = deque()
        self._running: deque[tuple[Request, int, asyncio.Task[ApiMessage | None]]] = deque()
        self._held = 0
        self._partial = 0
        self._unsent = 0
        self._write_paused = False
        self._reading = True
        self._draining = False
        self.last_active = asyncio.get_running_loop().time()

    # Transport events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "?"
        if not self._broker.admit(self):
            log.warning("%s refused: the limit of connections is reached", self._peer)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.last_active = asyncio.get_running_loop().time()
        try:
            frames = self._frames.feed(data)
            self._hold(self._frames.buffered - self._partial)
            self._partial = self._frames.buffered
            for frame in frames:
                self._waiting.append((decode_request(frame), len(frame)))
                self._hold(len(frame))
        except (FrameError, MalformedRequest) as error:
            self._close(str(error))
            return
        self._advance()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._set_unsent(0)
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._hold(-self._partial - sum(size for _, size in self._waiting))
        self._in_flight.forget(self)
        self._waiting.clear()
        for request, _, task in self._running:
            # What is on its way into the log goes on, and is held until it is there; nobody waits
            # for the rest any more.
            if request.api.key is not ApiKey.Produce:
                task.cancel()
        self._set_unsent(0)
        self._partial = 0
        self._broker.forget(self)

    # Requests and responses

    def _advance(self) -> None:
        """Send what is done, start what may start, and read on if there is room."""
        self._send_finished()
        while self._waiting and self._may_start(self._waiting[0][0]):
            request, size = self._waiting.popleft()
            task = asyncio.create_task(self._handle(request))
            task.add_done_callback(self._finished)
            self._running.append((request, size, task))
        self.update_reading()

    def _may_start(self, request: Request) -> bool:
        if self._write_paused or self._draining or self._closing:
            return False
        if not self._running:
            return True
        return (
            request.api.key is ApiKey.Produce
            and self._running[-1][0].api.key is ApiKey.Produce
            and len(self._running) < _PIPELINED_MAX
        )

    async def _handle(self, request: Request) -> ApiMessage | None:
        if request.message is None:
            return unsupported_api_versions()
        context = RequestContext(self._broker, request.header, self._peer)
        try:
            response: ApiMessage | None = await HANDLERS[request.api.key](context, request.message)
        except KafkaError as error:
            return _error_response(request, error)
        except CloseConnection:
            raise
        except Exception:
            log.exception(
                "%s: %s version %d failed",
                self._peer, request.api.key.name, request.header.api_version,
            )  # fmt: skip
            return _error_response(request, UnknownServerError("see the broker's log"))
        return response

    def _finished(self, task: asyncio.Task[ApiMessage | None]) -> None:
        self._advance()

    def _send_finished(self) -> None:
        while self._running and self._running[0][2].done():
            request, size, task = self._running.popleft()
            self._hold(-size)
            if not task.cancelled():
                self._send(request, task)

    def _send(self, request: Request, task: asyncio.Task[ApiMessage | None]) -> None:
        name = request.api.key.name
        if (error := task.exception()) is not None:
            if self._transport is None:
                log.error("%s: %s failed after its client had left: %s", self._peer, name, error)
            self._close(f"{name} cannot be answered: {error}")
            return
        response = task.result()
        if response is None or self._transport is None or self._closing:
            return
        try:
            frame = encode_response(request.header, response)
        except Exception:
            log.exception("%s: the response to %s cannot be encoded", self._peer, name)
            self._close(f"{name} cannot be answered")
            return
        self._transport.write(frame)
        if self._write_paused:
            self._set_unsent(self._transport.get_write_buffer_size())

    # Back-pressure

    def _hold(self, delta: int) -> None:
        self._held += delta
        self._in_flight.change(delta)

    def _set_unsent(self, size: int) -> None:
        self._in_flight.change_unsent(size - self._unsent)
        self._unsent = size

    def update_reading(self) -> None:
        if self._transport is None or self._closing:
            return
        read = not (
            self._waiting
            or self._write_paused
            or self._draining
            or self._in_flight.holds_back(self, self._held)
        )
        if read and not self._reading:
            self._transport.resume_reading()
        elif not read and self._reading:
            self._transport.pause_reading()
        self._reading = read

    # Closing

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def idle(self) -> bool:
        """Whether nothing is being answered."""
        return not self._running

    async def drain(self) -> None:
        """Take no further request; end long polls; answer what is on its way; close."""
        self._draining = True
        self.update_reading()
        while self._running:
            _, _, task = self._running[0]
            await asyncio.wait([task])
            self._send_finished()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        self._close(reason)

    def _close(self, reason: str) -> None:
        if self._transport is not None:
            log.info("%s closed: %s", self._peer, reason)
            self._transport.abort()


def _error_response(request: Request, error: KafkaError) -> ApiMessage:
    """The error in the response's own top-level field; raises `error` where there is none."""
    if not request.api.has_error_code(request.header.api_version):
        raise error
    response = request.api.response()
    response.error_code = error.code
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response
