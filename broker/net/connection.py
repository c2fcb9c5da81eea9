"""One client connection: bytes to requests, responses back in the order of the requests.

Requests of one connection are answered one after the other, as in Kafka. Only Produce requests that
follow each other run together: all of them are queued for the log, in order, before the first one
waits. So a producer's pipeline fills one block instead of waiting for one insert per request.

The broker does not read from a connection while its requests wait their turn, while the client does
not read its responses, or while its requests use more than their share of an exhausted budget
(`RequestMemory`). So each connection uses bounded memory, and a slow client delays no other.

Responses go to the transport in slices, each when the previous one has left for the socket. The
memory of a response is charged to one budget until all of it is sent (`ResponseMemory`). The
connection of a client that does not read its responses is closed (`SlowClients`).

`asyncio.Protocol` gets a new `bytes` for whatever arrives, which is an allocation and a copy for
each read. A `BufferedProtocol` names the place instead. One place is enough for all connections: a
transport reads into it and calls `buffer_updated` before the event loop turns to another one
(https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols). The rest of
a large frame is received where the frame is put together."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from typing import NamedTuple, TypeAlias, cast

from kafka.protocol.api_message import ApiMessage

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.api_versions import unsupported_api_versions
from brokerhouse.broker.api.context import Api, CloseConnection, RequestContext
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.memory import is_tiny
from brokerhouse.broker.monitoring.request_counts import ApiCounts
from brokerhouse.broker.net.named_addresses import DEFAULT_LISTENER
from brokerhouse.broker.net.sending import Outgoing, Piece, RecentCost, SlowClients, Turns
from brokerhouse.common.address import client_network
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol._frames import FrameError, FrameReader
from brokerhouse.protocol.codec import MalformedRequest, Request, decode_request, encode_response
from brokerhouse.protocol.errors import KafkaError, UnknownServerError
from brokerhouse.protocol.versions import ApiKey

log = logging.getLogger(__name__)

_PIPELINED_MAX = 64
_SOCKET_UNSENT_BYTES = 256 << 10
"""What the kernel keeps for a client that does not read, of up to 4 MB by default."""
_WAITING_APIS = frozenset({ApiKey.JoinGroup, ApiKey.SyncGroup, ApiKey.Fetch})
"""They wait for other clients, and must not hold a reservation meanwhile. Fetch reserves itself."""

_BUILT_COST = 16
"""What a byte costs in a response that is built field by field; a byte of records costs 1."""
_LARGE_RESPONSE_BYTES = 1 << 20
"""A response that may be larger, as the last of its kind were, is encoded by a thread."""
_PRODUCE_KEY = ApiKey.Produce.to_bytes(2)

Response: TypeAlias = ApiMessage | bytes | None
"""What a handler returns: a message, the body of one, or nothing to answer."""
Finished: TypeAlias = Response | list[Piece]
"""A response that may be encoded already, in pieces."""


_READ_BYTES = 256 << 10
"""What one turn of the event loop takes from a socket at most; as uvloop does by default."""


def shared_buffer() -> memoryview:
    """A buffer for all connections of one event loop."""
    return memoryview(bytearray(_READ_BYTES))


class SharedBufferProtocol(asyncio.BufferedProtocol):
    """Gives its subclass whole frames: `buffer_updated` has to call `_read`."""

    def __init__(self, buffer: memoryview, frame_max_bytes: int) -> None:
        self._shared = buffer
        self._frames = FrameReader(frame_max_bytes)
        self._has_place = False

    def get_buffer(self, sizehint: int) -> memoryview:
        place = self._frames.place(_READ_BYTES)
        if place is None:
            self._has_place = False
            return self._shared
        self._has_place = True
        return place

    def _read(self, nbytes: int) -> list[bytes]:
        """The frames that what was just received completes. Raises `FrameError`."""
        if self._has_place:
            return self._frames.received(nbytes)
        return self._frames.feed(self._shared, nbytes)


class _BegunRequest(NamedTuple):
    """A request that has started, the size of its frame, and when it started."""

    request: Request[Api]
    size: int
    response: asyncio.Future[Finished]
    began_s: float


class Connection(SharedBufferProtocol):
    """One client's connection, created by the listener; it ends when either side closes."""

    def __init__(self, broker: Broker, connections: Connections, listener: str) -> None:
        super().__init__(connections.receive_buffer, broker.settings.request_max_bytes)
        self._broker = broker
        self._listener = listener
        self._connections = connections
        self._in_flight = broker.in_flight
        self._counts = broker.requests
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.network = ""
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque()
        self._running: deque[_BegunRequest] = deque()
        self._held = 0
        self._partial = 0
        self._charge = broker.response_memory.charge()
        self._uncharged = 0
        self._cost = RecentCost()
        self._written = 0
        self._has_unsent = False
        self._outgoing = Outgoing()
        self._write_paused = False
        self._writes_on = False
        self._reading = True
        self._draining = False
        self.last_active = self._loop.time()

    # Transport events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Whatever the socket does not take at once pauses this connection, and is charged.
        self._transport.set_write_buffer_limits(high=0)
        _limit_unsent(transport.get_extra_info("socket"))
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        self.network = client_network(address[0] if address else None)
        if not self._connections.admit(self):
            log.warning("%s refused: max_connections is reached", self.peer, extra=counted())
            self._transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        try:
            frames = self._read(nbytes)
        except FrameError as error:
            self.abort(str(error), FrameError.__name__)
            return
        partial = self._frames.buffered
        self._hold(partial - self._partial + sum(map(len, frames)))
        self._partial = partial
        self._waiting.extend(frames)
        self._advance()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._hold(-self._partial - sum(map(len, self._waiting)))
        self._in_flight.forget(self)
        self._waiting.clear()
        self._outgoing = Outgoing()
        for request, _, response, _ in self._running:
            # Queued records are stored all the same, and count as held until they are; nobody
            # waits for any other response.
            if request.api.key is not ApiKey.Produce:
                response.cancel()
        self._charge.close()
        self._connections.slow_clients.forget(self)
        self._partial = 0
        self._connections.forget(self)

    # Requests and responses

    def _advance(self) -> None:
        """Send finished responses, start the requests that may start, read on if there is room."""
        self._send_finished()
        while self._waiting and self._may_start(self._waiting[0]):
            try:
                request = decode_request(self._waiting[0], APIS)
            except MalformedRequest as error:
                if not self._running:  # otherwise what was asked before is answered first
                    self.abort(str(error), MalformedRequest.__name__)
                break
            size = len(self._waiting.popleft())
            began_s = time.perf_counter()
            response = self._start(request)
            response.add_done_callback(self._finished)
            self._running.append(_BegunRequest(request, size, response, began_s))
        self.update_reading()

    def _may_start(self, frame: bytes) -> bool:
        if self._write_paused or self._writes_on or self._draining or self._closing:
            return False
        if not self._running:
            return True
        return (
            frame.startswith(_PRODUCE_KEY)
            and self._running[-1].request.api.key is ApiKey.Produce
            and len(self._running) < _PIPELINED_MAX
        )

    def _start(self, request: Request[Api]) -> asyncio.Future[Finished]:
        """The response, which comes now or later."""
        try:
            if request.message is not None:
                context = RequestContext(
                    self._broker,
                    request.header,
                    self.peer,
                    APIS,
                    self._charge,
                    self,
                    self._listener,
                )
                if request.api.key is ApiKey.Produce:
                    return asyncio.ensure_future(request.api.handler(context, request.message))
                return self._loop.create_task(self._answer(request, context))
            response: asyncio.Future[Finished] = self._loop.create_future()
            response.set_result(unsupported_api_versions(APIS))
        except Exception as error:
            response = self._loop.create_future()
            response.set_exception(error)
        return response

    async def _answer(self, request: Request[Api], context: RequestContext) -> Finished:
        """The response, encoded: its message may be large, and ends before another is made."""
        key, memory, turns = request.api.key, self._broker.response_memory, self._connections.turns
        estimate = memory.estimate(key)
        if self._cost.is_high and not is_tiny(estimate):
            await turns.next(self._cost.in_all)
        self._charge.has_to_share = turns.is_crowded
        if key not in _WAITING_APIS and not is_tiny(estimate):
            await self._charge.reserve(estimate)
        response: Response = await request.api.handler(context, request.message)
        if response is None:
            return response
        if key is ApiKey.Fetch:
            self._cost.add(self._charge.size)
            return response
        self._counts.of(key).note_response(response)
        try:
            if estimate <= _LARGE_RESPONSE_BYTES or isinstance(response, bytes):
                pieces = encode_response(request, response)
            else:
                pieces = await asyncio.to_thread(encode_response, request, response)
        except Exception as error:
            log.exception(
                "%s: the response to %s cannot be encoded",
                self.peer,
                key.name,
                extra=counted(key.name),
            )
            raise CloseConnection("its response cannot be encoded") from error
        size = sum(map(len, pieces))
        memory.note_size(key, size)
        self._cost.add(size * _BUILT_COST)
        self._charge.add(size)
        self._charge.drop_reserved()
        return list(pieces)

    def _finished(self, response: asyncio.Future[Finished]) -> None:
        if self._running and self._running[0].response.done():
            self._advance()

    def _send_finished(self) -> None:
        """Write the responses that are finished, in order, by one system call."""
        while self._running and self._running[0].response.done():
            request, size, response, began_s = self._running.popleft()
            self._hold(-size)
            counts = self._counts.of(request.api.key)
            counts.received_bytes += size
            if not response.cancelled():
                self._send(request, response, counts)
                counts.timings.add(time.perf_counter() - began_s)
        self._write()

    def _send(
        self, request: Request[Api], finished: asyncio.Future[Finished], counts: ApiCounts
    ) -> None:
        try:
            response = _response(request, finished, self.peer)
        except (KafkaError, CloseConnection) as error:
            counts.note_error(error)
            name = request.api.key.name
            if self._transport is None:
                log.error(
                    "%s: %s failed after its client had left: %s",
                    self.peer,
                    name,
                    error,
                    extra=counted(name),
                )
            self.abort(f"{name} cannot be answered: {error}", name)
            return
        if response is None or self._transport is None or self._closing:
            return
        self._has_unsent = True
        if isinstance(response, list):
            size = sum(map(len, response))
            counts.sent_bytes += size
            self._outgoing.add(response)
            if request.api.key is ApiKey.Produce:  # others were charged when they were encoded
                self._uncharged += size
            return
        counts.note_response(response)
        try:
            pieces = encode_response(request, response)
        except Exception:
            name = request.api.key.name
            log.exception(
                "%s: the response to %s cannot be encoded", self.peer, name, extra=counted(name)
            )
            self.abort(f"{name} cannot be answered")
            return
        self._outgoing.add(pieces)
        size = sum(map(len, pieces))
        counts.sent_bytes += size
        if request.api.key is not ApiKey.Fetch:
            self._uncharged += size

    def _write(self) -> None:
        """Write a slice; the next one in the next turn of the loop, if the socket takes more."""
        if not self._has_unsent or self._transport is None or self._closing:
            return
        if self._outgoing and not self._write_paused:
            pieces = self._outgoing.next_slice()
            self._written += sum(map(len, pieces))
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            else:
                self._transport.writelines(pieces)
            if self._outgoing and not self._write_paused:
                if not self._writes_on:
                    self._writes_on = True
                    self._loop.call_soon(self._write_on)
                return
        if self._write_paused:
            self._charge.add(self._uncharged)
            self._connections.slow_clients.watch(self)
        else:
            self._connections.slow_clients.forget(self)
            self._charge.sent(self._written)
            self._has_unsent = False
        self._uncharged = 0

    def _write_on(self) -> None:
        self._writes_on = False
        self._advance()

    # Back-pressure

    def _hold(self, delta: int) -> None:
        self._held += delta
        self._in_flight.change(delta)

    def update_reading(self) -> None:
        if self._transport is None or self._closing:
            return
        read = not (
            self._waiting
            or self._write_paused
            or self._writes_on
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
    def has_left(self) -> bool:
        """Whether the client is gone."""
        return self._transport is None

    @property
    def held_bytes(self) -> int:
        """What its responses hold."""
        return self._charge.size

    @property
    def sent_bytes(self) -> int:
        """What the socket has taken so far: a number that only grows."""
        transport = self._transport
        return self._written - (0 if transport is None else transport.get_write_buffer_size())

    @property
    def idle(self) -> bool:
        """Whether none of its requests is being answered."""
        return not self._running

    async def drain(self) -> None:
        """Start no further request, answer those that have started, then close."""
        self._draining = True
        self.update_reading()
        while self._running:
            await asyncio.wait([self._running[0].response])
            self._send_finished()
        if self._transport is not None and not self._closing:
            self._transport.writelines(self._outgoing.take_all())
            self._transport.close()

    def abort(self, reason: str, kind: str = "") -> None:
        """Close it now, and log why. `kind`: of the reason, if that says what the client sent."""
        self._write()  # what was finished before it
        if self._transport is not None:
            host, _, _ = self.peer.rpartition(":")
            log.info("%s closed: %s", self.peer, reason, extra=counted((host, kind or reason)))
            self._counts.aborted += 1
            self._transport.abort()

    def drop(self) -> None:
        """Close it now, and free what it holds. The caller logs it."""
        self._connections.slow_clients.forget(self)
        self._charge.close()
        self._outgoing = Outgoing()
        if self._transport is not None:
            self._counts.aborted += 1
            self._transport.abort()


class Connections:
    """Every open connection of a broker, `max_connections` at most."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: set[Connection] = set()
        self._by_network: Counter[str] = Counter()
        self.receive_buffer = shared_buffer()
        self.turns = Turns()
        self.slow_clients = SlowClients(
            broker.response_memory, broker.settings.response_send_timeout_ms / 1000
        )
        self._draining = False

    def new(self, listener: str = DEFAULT_LISTENER) -> Connection:
        """The protocol of a client that has just connected to the listener with this name."""
        return Connection(self._broker, self, listener)

    def admit(self, connection: Connection) -> bool:
        """Add a new connection. False if the limit is reached or the broker is stopping."""
        if self._draining or not self._has_place_for(connection):
            self._broker.requests.refused += 1
            return False
        self._broker.requests.accepted += 1
        self._open.add(connection)
        self._by_network[connection.network] += 1
        return True

    def _has_place_for(self, connection: Connection) -> bool:
        """At the limit, an address with more than half of all places loses one to another address:
        that of the connection which has been silent longest, and waits for no answer.
        """
        max_connections = self._broker.settings.max_connections
        if len(self._open) < max_connections:
            return True
        crowd, count = self._by_network.most_common(1)[0]
        if connection.network == crowd or 2 * count <= max_connections:
            return False
        idle = [one for one in self._open if one.network == crowd and one.idle]
        if not idle:
            return False
        silent = min(idle, key=lambda one: one.last_active)
        self.forget(silent)
        silent.drop()
        return True

    def __len__(self) -> int:
        return len(self._open)

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._by_network[connection.network] -= 1
            if not self._by_network[connection.network]:
                del self._by_network[connection.network]

    def close_idle(self) -> None:
        """Close connections that have been silent for `connections_max_idle_ms`."""
        max_idle_s = self._broker.settings.connections_max_idle_ms / 1000
        limit = asyncio.get_running_loop().time() - max_idle_s
        for connection in tuple(self._open):
            if connection.idle and connection.last_active < limit:
                connection.abort("idle")

    async def drain(self) -> None:
        """Answer the requests that have started on every connection, and close them all."""
        self._draining = True
        self._broker.stop_waiting()
        await asyncio.gather(*(connection.drain() for connection in tuple(self._open)))


def _limit_unsent(accepted: socket.socket | None) -> None:
    """Let the kernel keep little of what a client has not asked for by reading.

    A fast client loses nothing by it: https://lwn.net/Articles/560082/.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if accepted is not None and option is not None:
        with suppress(OSError):  # a transport without TCP, or a kernel without the option
            accepted.setsockopt(socket.IPPROTO_TCP, option, _SOCKET_UNSENT_BYTES)


def _response(request: Request[Api], finished: asyncio.Future[Finished], peer: str) -> Finished:
    """What the handler returned, or the response for its error.

    Raises `CloseConnection`, and the `KafkaError` for which the response has no field.
    """
    try:
        return finished.result()
    except KafkaError as error:
        return _error_response(request, error)
    except CloseConnection:
        raise
    except Exception:
        log.exception(
            "%s: %s version %d failed",
            peer,
            request.api.key.name,
            request.header.api_version,
            extra=counted(request.api.key.name),
        )
        return _error_response(
            request, UnknownServerError("The request failed; see the broker's log.")
        )


def _error_response(request: Request[Api], error: KafkaError) -> ApiMessage:
    """The error in the response's own top-level field; raises `error` if it has none."""
    if not request.api.has_error_code(request.header.api_version):
        raise error
    response = request.api.response()
    response.error_code = error.code
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response
