"""One connection over a transport in memory, with stand-ins for its broker and for every handler.

A test decides when a handler answers, and what the transport takes. The fixture `connect` of
tests/unit/conftest.py makes such connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.memory import RequestMemory, ResponseMemory
from brokerhouse.broker.monitoring.request_counts import RequestCounts
from brokerhouse.broker.net.connection import Connection, Connections
from brokerhouse.broker.settings.config import Settings
from brokerhouse.protocol.versions import ApiKey

MIB = 1 << 20
EMPTY = object()
"""As an answer: the response of that API with nothing in it."""


class Wire(asyncio.Transport):
    """Collects what is written; `high_water` bytes unsent pause the writer, as a socket would."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Connection | None = None
        self.written = bytearray()
        self.writes = 0
        self.unsent = 0
        self.high_water = 1 << 30
        self.paused = False
        self.closing = False
        self.aborts = asyncio.Event()

    @property
    def aborted(self) -> bool:
        return self.aborts.is_set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.written += data
        self.writes += 1
        self.unsent += len(data)
        assert self.protocol is not None
        if self.unsent > self.high_water:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0  # what is not sent at once must pause the connection

    def sent(self) -> None:
        """The client takes everything."""
        self.unsent = 0
        assert self.protocol is not None
        self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 5000) if name == "peername" else default

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborts.set()
        self.close()


@dataclass
class FakeBroker:
    """What a connection needs of a broker."""

    settings: Settings = field(default_factory=Settings)
    in_flight: RequestMemory = field(default_factory=lambda: RequestMemory(256 * MIB))
    response_memory: ResponseMemory = field(default_factory=lambda: ResponseMemory(64 * MIB))
    requests: RequestCounts = field(default_factory=RequestCounts)
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(cast(Broker, self))


class Handlers:
    """Stands in for every handler. A request waits until it is answered by its correlation id."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self._answers: dict[int, asyncio.Future[object]] = {}

    async def __call__(self, ctx: RequestContext, request: ApiMessage) -> object:
        number = ctx.header.correlation_id
        self.started.append(number)
        try:
            answer = await self._answer(number)
            return APIS[ApiKey(ctx.header.api_key)].response() if answer is EMPTY else answer
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise

    def forget(self, number: int) -> None:
        """The number is used again."""
        del self._answers[number]

    def _answer(self, number: int) -> asyncio.Future[object]:
        return self._answers.setdefault(number, asyncio.get_running_loop().create_future())

    def answer(self, number: int, response: object = EMPTY) -> None:
        """With a response, None for no response, or an exception."""
        if isinstance(response, BaseException):
            self._answer(number).set_exception(response)
        else:
            self._answer(number).set_result(response)


@dataclass
class Client:
    """One connection, seen from both ends."""

    broker: FakeBroker
    handlers: Handlers
    connection: Connection
    wire: Wire

    def send(self, *frames: bytes) -> None:
        """As a transport does: the bytes arrive in the buffer that the connection names."""
        data = b"".join(frames)
        while data:
            buffer = self.connection.get_buffer(len(data))
            received, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(received)] = received
            self.connection.buffer_updated(len(received))

    async def finish(self, number: int, *response: object) -> None:
        """The handler of a request ends, with an empty answer if none is given."""
        self.handlers.answer(number, *response)
        await settle()

    @property
    def answers(self) -> list[int]:
        """Correlation ids of the responses so far."""
        data, found = bytes(self.wire.written), []
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(int.from_bytes(data[4:8], "big"))
            data = data[4 + size :]
        return found


async def settle() -> None:
    """Let everything that can go on without the test go on."""
    for _ in range(20):
        await asyncio.sleep(0)


def framed(message: ApiMessage, number: int) -> bytes:
    message.with_header(correlation_id=number, client_id="test")
    return bytes(message.encode(header=True, framed=True))


def produce(number: int, size: int = 0) -> bytes:
    topic = ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=0, records=b"x" * size)
    return framed(
        ProduceRequest[3](
            transactional_id=None,
            acks=-1,
            timeout_ms=0,
            topic_data=[topic(name="t", partition_data=[part])],
        ),
        number,
    )


def metadata(number: int) -> bytes:
    return framed(MetadataRequest[1](topics=[]), number)


def init_producer_id(number: int) -> bytes:
    return framed(InitProducerIdRequest[0](transactional_id=None, transaction_timeout_ms=0), number)


Connect = Callable[..., Client]


def in_flight(broker: FakeBroker) -> int:
    return broker.in_flight.size
