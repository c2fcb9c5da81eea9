"""A Kafka client that sends any bytes, valid or not, and reads frames back.

Messages are encoded and decoded by kafka-python's classes. A response counts as decoded only if it
ends exactly where its frame ends. Every wait has a limit; a wait that reaches it is an error.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from types import TracebackType
from typing import Any, Protocol, Self

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import ProduceRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey

LIMIT_S = 30.0


class Closed(Exception):
    """The broker closed the connection."""


def frame(body: bytes, claimed: int | None = None) -> bytes:
    """`body` with its length, or another claimed length, in front of it."""
    return struct.pack(">i", len(body) if claimed is None else claimed) + body


def header(key: int, version: int, correlation_id: int = 1, client_id: bytes = b"wire") -> bytes:
    """A request header without tagged fields, of any key and version."""
    fixed = struct.pack(">hhih", key, version, correlation_id, len(client_id))
    return fixed + client_id + (b"\0" if _has_flexible_header(key, version) else b"")


def request_body(request: ApiMessage, version: int, correlation_id: int = 1) -> bytes:
    """A request as it goes into a frame, header included."""
    request.API_VERSION = version
    request.with_header(correlation_id=correlation_id, client_id="wire")
    return bytes(request.encode(header=True))


def decode(response: type[ApiMessage], version: int, body: bytes) -> tuple[int, Any]:
    """(correlation id, message) of a response frame; AssertionError unless it ends with it."""
    (correlation_id,) = struct.unpack_from(">i", body)
    flexible = response.flexible_version_q(version)
    position = 4
    if flexible and ApiKey.ApiVersions != response.API_KEY:
        assert body[position] == 0, "a response header has no tagged fields"
        position += 1
    decode_from = response._struct.compiled_decode_from(
        version, compact=flexible, tagged=flexible, data_class=response[None]
    )
    message, end = decode_from(memoryview(body), position)
    assert end == len(body), f"{response.name} {version} ends at {end} of {len(body)} bytes"
    return correlation_id, message


class Listening(Protocol):
    @property
    def kafka(self) -> str:
        """HOST:PORT."""


class Wire:
    """One connection to a broker."""

    def __init__(
        self,
        broker: Listening,
        *,
        receive_buffer_bytes: int | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        host, port = broker.kafka.rsplit(":", 1)
        self.socket = socket.socket()
        self.socket.settimeout(limit_s)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Disconnect as a crashed machine does: with RST, without flushing."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Raises `Closed` if the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def send_request(self, request: ApiMessage, version: int) -> int:
        """Returns the correlation id that the response must carry."""
        correlation_id = next(self._correlation_ids)
        self.send(frame(request_body(request, version, correlation_id)))
        return correlation_id

    def receive(self) -> bytes:
        """The next frame's body."""
        (size,) = struct.unpack(">i", self._read(4))
        assert size >= 4, f"a response of {size} bytes"
        return self._read(size)

    def receive_response(self, request: ApiMessage, version: int, correlation_id: int) -> Any:
        api = APIS[ApiKey(request.API_KEY)]
        answered, response = decode(api.response, version, self.receive())
        assert answered == correlation_id
        return response

    def ask(self, request: ApiMessage, version: int) -> Any:
        """Sends a request; returns its response. Produce with acks=0 has none."""
        assert not isinstance(request, ProduceRequest) or request.acks != 0
        return self.receive_response(request, version, self.send_request(request, version))

    def is_silent_for(self, seconds: float) -> bool:
        """Whether the broker sends nothing and keeps the connection open for that long."""
        limit = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(1)
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False
        finally:
            self.socket.settimeout(limit)
        assert not data, "the broker sent something that was not asked for"
        return False

    def frames_until_closed(self) -> list[bytes]:
        """The frames that still arrive before the broker closes the connection."""
        frames = []
        try:
            while True:
                frames.append(self.receive())
        except Closed:
            return frames

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        deadline = time.monotonic() + (self.socket.gettimeout() or LIMIT_S)
        while done < size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done} of {size} bytes came in time")
            try:
                count = self.socket.recv_into(view[done:])
            except ConnectionResetError as error:
                raise Closed from error
            if count == 0:
                raise Closed
            done += count
        return bytes(data)


def _has_flexible_header(key: int, version: int) -> bool:
    known = {int(api.key): api.request for api in APIS.values()}
    request = known.get(key)
    return request is not None and bool(request.flexible_version_q(version))
