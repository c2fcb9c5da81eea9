"""One connection over a transport in memory: order, pipelining, back-pressure, what is in flight.

The handlers are stand-ins that answer when the test says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
)

from broker import connection as connection_module
from broker import in_flight as in_flight_module
from broker import slow_clients as slow_clients_module
from broker.api import APIS
from broker.api.context import CloseConnection, RequestContext
from broker.config import Settings
from broker.connection import Connection, Connections
from broker.in_flight import InFlight
from broker.node import Broker
from broker.request_counts import RequestCounts
from broker.response_memory import ResponseMemory
from protocol.errors import KafkaError, KafkaStorageError
from protocol.versions import ApiKey

LIMIT_S = 30.0
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
    in_flight: InFlight = field(default_factory=lambda: InFlight(256 * MIB))
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
        """As a transport does: the bytes arrive in the connection's own buffer."""
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


@pytest.fixture
async def connect(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Makes connections; those of one broker share its budget."""
    handlers = Handlers()
    connections: list[Connection] = []
    scripted = {key: replace(api, handler=handlers) for key, api in APIS.items()}
    monkeypatch.setattr(connection_module, "APIS", scripted)

    def make(broker: FakeBroker | None = None) -> Client:
        broker = broker or FakeBroker()
        made, wire = broker.connections.new(), Wire()
        wire.protocol = made
        made.connection_made(wire)
        connections.append(made)
        return Client(broker, handlers, made, wire)

    yield make
    tasks = [task for made in connections for _, _, task, _ in made._running]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_flight(broker: FakeBroker) -> int:
    return broker.in_flight.size


# --- Order ---


async def test_responses_come_in_the_order_of_the_requests(connect: Connect) -> None:
    client = connect()
    client.send(*(produce(n) for n in range(5)))
    await settle()
    assert client.handlers.started == [0, 1, 2, 3, 4]
    for number in (4, 2, 1):
        await client.finish(number)
    assert client.answers == []
    await client.finish(0)
    assert client.answers == [0, 1, 2]
    await client.finish(3)
    assert client.answers == [0, 1, 2, 3, 4]


async def test_responses_that_are_finished_together_are_written_together(connect: Connect) -> None:
    client = connect()
    client.send(*(produce(n) for n in range(5)))
    await settle()
    for number in (0, 1, 2):
        client.handlers.answer(number)
    await settle()
    assert (client.answers, client.wire.writes) == ([0, 1, 2], 1)
    client.handlers.answer(3)
    await client.finish(4)
    assert (client.answers, client.wire.writes) == ([0, 1, 2, 3, 4], 2)


async def test_produce_requests_run_together_and_all_others_one_after_the_other(
    connect: Connect,
) -> None:
    client = connect()
    client.send(produce(0), produce(1), metadata(2), metadata(3), produce(4), produce(5))
    await settle()
    for finished, started in (
        (0, [0, 1]),
        (1, [0, 1, 2]),
        (2, [0, 1, 2, 3]),
        (3, [0, 1, 2, 3, 4, 5]),
    ):
        await client.finish(finished)
        assert client.handlers.started == started
    await client.finish(5)
    await client.finish(4)
    assert client.answers == [0, 1, 2, 3, 4, 5]


async def test_the_pipeline_of_a_producer_has_a_limit(connect: Connect) -> None:
    client = connect()
    client.send(*(produce(n) for n in range(100)))
    await settle()
    assert len(client.handlers.started) == 64
    await client.finish(0)
    assert len(client.handlers.started) == 65


async def test_a_slow_request_holds_up_no_other_connection(connect: Connect) -> None:
    slow, fast = connect(), connect()
    slow.send(metadata(1))
    fast.send(metadata(2))
    await fast.finish(2)
    assert (slow.answers, fast.answers) == ([], [2])


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_requests_may_come_in_any_pieces(connect: Connect, size: int) -> None:
    client = connect()
    stream = b"".join(produce(n, n * 10) for n in range(20))
    for start in range(0, len(stream), size):
        client.send(stream[start : start + size])
    await settle()
    assert client.handlers.started == list(range(20))


async def test_a_request_without_an_answer_is_passed_over(connect: Connect) -> None:
    client = connect()
    client.send(produce(0), produce(1), metadata(2))
    await client.finish(1)
    await client.finish(0, None)  # acks=0
    await client.finish(2)
    assert client.answers == [1, 2]


# --- Errors ---


@pytest.mark.parametrize(
    ("error", "code"), [(KafkaStorageError("no"), 56), (RuntimeError("a defect"), -1)]
)
async def test_a_handler_that_fails_is_answered_with_a_code_and_the_connection_goes_on(
    connect: Connect, error: Exception, code: int
) -> None:
    client = connect()
    client.send(init_producer_id(1), metadata(2))
    await client.finish(1, error)
    response = InitProducerIdResponse.decode(bytes(client.wire.written)[4:], version=0, header=True)
    assert response.error_code == code
    await client.finish(2)
    assert client.answers == [1, 2]


@pytest.mark.parametrize("error", [KafkaStorageError("no"), RuntimeError("a defect")])
async def test_where_a_response_has_no_place_for_an_error_the_connection_is_closed(
    connect: Connect, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = connect()
    client.send(metadata(1), metadata(2))
    await client.finish(1, error)
    assert client.wire.aborted
    assert client.answers == []
    assert client.handlers.started == [1]
    closed = [r.message for r in caplog.records if "closed" in r.message]
    assert len(closed) == 1
    assert closed[0].startswith("192.0.2.1:5000 closed: Metadata cannot be answered")


async def test_a_handler_that_is_no_coroutine_may_answer_at_once_later_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(3)]
    started: list[int] = []

    def handler(ctx: RequestContext, request: object) -> asyncio.Future[object]:
        number = ctx.header.correlation_id
        started.append(number)
        if number == 3:
            raise AssertionError("a defect")
        return answers[number]

    produce_api = replace(APIS[ApiKey.Produce], handler=handler)
    monkeypatch.setattr(connection_module, "APIS", {ApiKey.Produce: produce_api})
    client = connect()
    answers[0].set_result(b"at once")
    client.send(*[produce(number) for number in range(4)])
    assert started == [0, 1, 2, 3]  # before the loop has gone on
    await settle()
    assert client.answers == [0]
    answers[2].set_result(b"first")
    await settle()
    assert client.answers == [0]
    answers[1].set_result(b"second")
    await settle()
    assert client.answers == [0, 1, 2]
    assert client.wire.writes == 2
    assert client.wire.aborted  # a Produce response has no place for an error of the whole


async def test_a_handler_may_close_the_connection_after_what_came_before(
    connect: Connect,
) -> None:
    client = connect()
    client.send(produce(0), produce(1), produce(2))
    await client.finish(2)
    await client.finish(1, CloseConnection("acks=0 and an error"))
    assert not client.wire.aborted
    await client.finish(0)
    assert client.wire.aborted
    assert client.answers == [0]


async def test_what_waits_behind_a_closed_connection_is_not_begun(connect: Connect) -> None:
    client = connect()
    client.send(*(produce(n) for n in range(65)))
    await client.finish(0, CloseConnection("acks=0 and an error"))
    assert client.wire.aborted
    assert 64 not in client.handlers.started


async def test_a_response_that_cannot_be_encoded_closes_the_connection(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    client.send(init_producer_id(1), metadata(2))
    await client.finish(1, InitProducerIdResponse(producer_id=2**64))
    assert client.wire.aborted
    assert in_flight(client.broker) == 0
    assert any(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(b"\xff\xff\xff\xff", id="a negative size"),
        pytest.param(b"\x7f\xff\xff\xff", id="a claim of 2 GB"),
        pytest.param(b"\0\0\0\0", id="an empty frame"),
        pytest.param(b"\0\0\0\x0a" + b"\x7f" * 10, id="an unknown API"),
        pytest.param(b"\0\0\0\x0c\0\3\0\1\0\0\0\0\xff\xff\0\0", id="a frame cut short"),
    ],
)
async def test_bytes_that_are_no_request_close_the_connection_with_one_line(
    connect: Connect, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.INFO)
    client, other = connect(), connect()
    client.send(data)
    await settle()
    assert client.wire.aborted
    assert len(caplog.records) == 1
    assert "192.0.2.1:5000 closed: " in caplog.records[0].message
    assert in_flight(client.broker) == 0
    assert client.broker.connections._open == set()
    other.send(metadata(1))
    await other.finish(1)
    assert other.answers == [1]


async def test_api_versions_in_an_unknown_version_is_answered_in_version_0(
    connect: Connect,
) -> None:
    client = connect()
    client.send(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\x07\0\0?")
    await settle()
    answer = bytes(client.wire.written)[4:]
    response = ApiVersionsResponse.decode(answer, version=0, header=True)
    assert response.error_code == 35
    assert ApiKey.ApiVersions in [api.api_key for api in response.api_keys]
    assert client.handlers.started == []


async def test_a_connection_beyond_the_limit_is_refused_at_once(connect: Connect) -> None:
    broker = FakeBroker(Settings(max_connections=1))
    first, second = connect(broker), connect(broker)
    await settle()
    assert (first.wire.aborted, second.wire.aborted) == (False, True)
    assert broker.connections._open == {first.connection}
    assert not connect(FakeBroker(Settings(max_connections=1))).wire.aborted


# --- Back-pressure ---


async def test_nothing_is_read_while_requests_wait_their_turn(connect: Connect) -> None:
    client = connect()
    client.send(metadata(1))
    assert not client.wire.paused
    client.send(metadata(2), metadata(3))
    assert client.wire.paused
    await client.finish(1)
    assert client.wire.paused
    await client.finish(2)
    assert not client.wire.paused


async def test_a_client_that_takes_no_responses_gets_no_more_work_done(connect: Connect) -> None:
    client = connect()
    client.wire.high_water = 10
    client.send(produce(0), produce(1))
    await client.finish(0)
    assert client.wire.paused
    client.send(produce(2), metadata(3))  # requests that were in flight already
    await settle()
    assert client.handlers.started == [0, 1]
    await client.finish(1)
    assert client.answers == [0]  # the transport holds what the client has not taken
    client.wire.sent()
    await settle()
    assert client.answers == [0, 1]
    assert client.handlers.started == [0, 1]
    client.wire.sent()
    await settle()
    assert client.handlers.started == [0, 1, 2]
    await client.finish(2)
    client.wire.sent()
    await client.finish(3)
    client.wire.sent()
    assert client.answers == [0, 1, 2, 3]
    assert not client.wire.paused


async def test_unsent_responses_leave_less_room_for_others(connect: Connect) -> None:
    client = connect()
    memory = client.broker.response_memory
    client.wire.high_water = 10
    for request, answer in (
        (init_producer_id, InitProducerIdResponse()),
        (metadata, EMPTY),
        (produce, EMPTY),
    ):
        client.send(request(1))
        await client.finish(1, answer)
        assert memory.used == client.wire.unsent > 0
        client.wire.sent()
        assert memory.used == 0
        client.handlers.forget(1)
    client.send(init_producer_id(2))
    await client.finish(2, InitProducerIdResponse())
    client.connection.connection_lost(None)
    assert memory.used == 0


async def test_a_large_response_goes_out_in_slices_as_the_client_takes_them(
    connect: Connect,
) -> None:
    client = connect()
    client.wire.high_water = 10
    client.send(metadata(1), metadata(2))
    await settle()
    client.handlers.answer(1, bytes(3 * MIB))
    await settle()
    assert len(client.wire.written) == 3 * MIB + 8  # one piece is not cut
    assert client.broker.response_memory.used == 3 * MIB + 8
    assert client.handlers.started == [1]
    client.wire.sent()
    await settle()
    assert client.handlers.started == [1, 2]
    assert client.broker.response_memory.used == 3 * MIB + 8  # the next may be as large
    await client.finish(2)
    client.wire.sent()
    assert client.broker.response_memory.used == 0


async def test_a_request_waits_until_there_is_room_for_its_response(connect: Connect) -> None:
    broker = FakeBroker(response_memory=ResponseMemory(4 * MIB))
    first, second = connect(broker), connect(broker)
    first.wire.high_water = 10
    first.send(metadata(1))
    await first.finish(1, bytes(3 * MIB))
    second.send(metadata(2))
    await settle()
    assert second.handlers.started == [1]
    assert broker.response_memory.is_short
    first.wire.sent()
    await settle()
    assert second.handlers.started == [1, 2]
    await second.finish(2)
    assert second.answers == [2]
    assert broker.response_memory.used == 0


async def test_a_client_that_takes_nothing_is_closed_with_one_line(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(slow_clients_module, "_LOOK_EVERY_S", 0.01)
    broker = FakeBroker(Settings(response_send_timeout_ms=100))
    slow, quick = connect(broker), connect(broker)
    slow.wire.high_water = 10
    slow.send(metadata(1))
    await slow.finish(1)
    quick.send(metadata(2))
    await quick.finish(2)
    async with asyncio.timeout(LIMIT_S):
        await slow.wire.aborts.wait()
    assert not quick.wire.aborted
    assert broker.response_memory.used == 0
    (line,) = [record.message for record in caplog.records]
    assert "192.0.2.1:5000 closed: its client has read nothing for 0." in line


async def test_when_memory_is_tight_the_largest_of_those_who_take_nothing_go_first(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(slow_clients_module, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(slow_clients_module, "_PATIENCE_WHEN_TIGHT_S", LIMIT_S)
    broker = FakeBroker(response_memory=ResponseMemory(64 * MIB))
    clients = [connect(broker) for _ in range(12)]
    for number, client in enumerate(clients):
        client.wire.high_water = 10
        client.send(metadata(number))
        await client.finish(number, bytes((4 if number >= 2 else 1) * MIB))
    assert broker.response_memory.is_tight
    await asyncio.sleep(0.06)  # nobody of them has taken anything for that long
    monkeypatch.setattr(slow_clients_module, "_PATIENCE_WHEN_TIGHT_S", 0.05)
    async with asyncio.timeout(LIMIT_S):
        while broker.response_memory.is_tight:
            await asyncio.sleep(0.01)
            await settle()
    closed = [number for number, client in enumerate(clients) if client.wire.aborted]
    assert len(closed) == 3  # 42 MB were held, and half of 64 may be
    assert min(closed) >= 2
    assert 24 * MIB < broker.response_memory.used <= 32 * MIB


async def test_a_connection_that_holds_much_waits_when_the_budget_is_used_up(
    connect: Connect,
) -> None:
    broker = FakeBroker(in_flight=InFlight(4 * MIB))
    first, second, small = connect(broker), connect(broker), connect(broker)
    first.send(produce(1, 3 * MIB))
    assert not first.wire.paused
    second.send(produce(2, 2 * MIB))
    # Above the budget the first that asks has the turn, and the next waits.
    first.send(produce(3, 1))
    paused = [first.wire.paused, second.wire.paused]
    assert sorted(paused) == [False, True]
    small.send(produce(4, 1000))
    assert not small.wire.paused
    for number in (1, 2, 3, 4):
        await first.finish(number)
    assert [client.wire.paused for client in (first, second, small)] == [False] * 3
    assert in_flight(broker) == 0


async def test_half_sent_requests_that_fill_the_budget_do_not_wait_for_each_other(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker(in_flight=InFlight(4 * MIB))
    clients = [connect(broker) for _ in range(4)]
    requests = [produce(n, 3 * MIB) for n in range(4)]
    rest = [request[2 * MIB :] for request in requests]
    for client, request in zip(clients, requests, strict=True):
        client.send(request[: 2 * MIB])
    for number in range(4):
        await settle()
        reading = [n for n in range(4) if rest[n] and not clients[n].wire.paused]
        assert reading, "somebody can always go on"
        clients[reading[-1]].send(rest[reading[-1]])
        rest[reading[-1]] = b""
        await settle()
        assert len(clients[0].handlers.started) == number + 1
        await clients[0].finish(clients[0].handlers.started[-1])
    assert in_flight(broker) == 0


async def test_one_that_has_the_turn_and_sends_nothing_is_closed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight_module, "_STALLED_AFTER_S", 0.02)
    broker = FakeBroker(in_flight=InFlight(4 * MIB))
    first, second, third, fourth = clients = [connect(broker) for _ in range(4)]
    for client in clients:
        client.send(produce(1, 3 * MIB)[: 2 * MIB])
    assert not second.wire.paused
    assert third.wire.paused
    assert fourth.wire.paused
    async with asyncio.timeout(LIMIT_S):
        await second.wire.aborts.wait()
        await fourth.wire.aborts.wait()
    await settle()
    # The others wait for nobody any more, and are left alone.
    assert not first.wire.paused
    assert not third.wire.paused
    assert in_flight(broker) == 4 * MIB


# --- What is in flight ---


async def test_what_came_is_counted_until_it_is_answered(connect: Connect) -> None:
    client = connect()
    whole, half = produce(1, 1000), produce(2, 5000)[:3000]
    client.send(whole, half)
    assert in_flight(client.broker) == len(whole) - 4 + len(half)
    await client.finish(1)
    assert in_flight(client.broker) == len(half)
    client.connection.connection_lost(None)
    assert in_flight(client.broker) == 0


async def test_a_client_that_left_waits_for_nothing_but_its_records_are_stored(
    connect: Connect,
) -> None:
    client, other = connect(), connect()
    client.send(produce(1), produce(2))
    other.send(metadata(3), metadata(4))
    await settle()
    client.wire.abort()
    other.wire.abort()
    await settle()
    assert client.handlers.cancelled == [3]
    assert client.handlers.started == [1, 2, 3]
    await client.finish(1)
    await client.finish(2, RuntimeError("told to nobody"))
    assert client.answers == []


async def test_records_of_a_client_that_left_are_counted_until_they_are_stored(
    connect: Connect,
) -> None:
    """Otherwise clients that send and leave fill the memory without a limit."""
    client = connect()
    requests = [produce(1, MIB), produce(2, MIB)]
    client.send(*requests, metadata(3), produce(4, MIB)[: MIB // 2])
    await settle()
    client.wire.abort()
    await settle()
    assert in_flight(client.broker) == sum(len(request) - 4 for request in requests)
    await client.finish(2)
    await client.finish(1, KafkaStorageError("refused"))
    assert in_flight(client.broker) == 0


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_nothing_stays_in_flight(connect: Connect, seed: int) -> None:
    rnd = random.Random(seed)
    broker = FakeBroker(in_flight=InFlight(3 * MIB))
    clients = [connect(broker) for _ in range(5)]
    handlers = clients[0].handlers
    unsent = [b""] * 5
    answered: set[int] = set()
    number = 0

    def finish_one() -> None:
        waiting = [n for n in handlers.started if n not in answered | set(handlers.cancelled)]
        if waiting:
            answered.add(one := rnd.choice(waiting))
            outcomes = [EMPTY, None, KafkaStorageError("no")]
            handlers.answer(one, rnd.choice(outcomes))

    for _ in range(300):
        which = rnd.randrange(5)
        client = clients[which]
        alive = not client.wire.closing
        event = rnd.choice(["send", "send", "send", "finish", "finish", "take", "leave", "garbage"])
        if event == "send" and alive and not client.wire.paused:
            if not unsent[which]:
                number += 1
                unsent[which] = rnd.choice([metadata, init_producer_id, produce])(number)
                if rnd.random() < 0.3:
                    unsent[which] = produce(number, rnd.randrange(2 * MIB))
            size = rnd.choice([10, 2 * MIB, 4 * MIB])
            client.send(unsent[which][:size])
            unsent[which] = unsent[which][size:]
        elif event == "finish":
            finish_one()
        elif event == "take" and alive:
            client.wire.high_water = rnd.choice([10, 1 << 30])
            client.wire.sent()
        elif event == "leave" and alive and rnd.random() < 0.2:
            client.wire.abort()
        elif event == "garbage" and alive and rnd.random() < 0.05 and not client.wire.paused:
            client.send(b"\xff" * 100)
        if rnd.random() < 0.5:
            await settle()
    for client in clients:
        client.wire.abort()
    await settle()
    while set(handlers.started) - answered - set(handlers.cancelled):
        finish_one()
        await settle()
    assert in_flight(broker) == 0
    assert broker.response_memory.used == 0
    assert not broker.response_memory.is_short
    assert not broker.response_memory._holders
    assert not broker.connections.slow_clients._watched
    assert broker.in_flight._turn is None
    assert not broker.in_flight._held_back
    assert broker.connections._open == set()


# --- Stopping ---


async def test_draining_answers_what_is_on_its_way_and_closes(connect: Connect) -> None:
    client = connect()
    client.send(produce(1), produce(2), metadata(3))
    await settle()
    draining = asyncio.create_task(client.connection.drain())
    await settle()
    assert client.wire.paused
    client.handlers.answer(2)
    client.handlers.answer(1)
    await draining
    assert client.answers == [1, 2]
    assert client.handlers.started == [1, 2]
    assert client.wire.closing
    assert not client.wire.aborted
    await settle()
    assert in_flight(client.broker) == 0


async def test_draining_does_not_spin_while_the_first_of_many_is_slow(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = asyncio.wait

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*args, **kwargs)

    monkeypatch.setattr(asyncio, "wait", counted)
    client = connect()
    client.send(produce(1), produce(2))
    await client.finish(2)
    draining = asyncio.create_task(client.connection.drain())
    for _ in range(10):
        await settle()
    await client.finish(1)
    await draining
    assert client.answers == [1, 2]
    assert waits <= 2


async def test_draining_ends_when_the_client_leaves_meanwhile(connect: Connect) -> None:
    client = connect()
    client.send(metadata(1))
    await settle()
    draining = asyncio.create_task(client.connection.drain())
    await settle()
    client.wire.abort()
    async with asyncio.timeout(LIMIT_S):
        await draining


async def test_an_idle_connection_is_one_that_waits_for_nothing(connect: Connect) -> None:
    client = connect()
    assert client.connection.idle
    client.send(metadata(1))
    await settle()
    assert not client.connection.idle
    await client.finish(1)
    assert client.connection.idle


def test_a_kafka_error_has_a_message_even_without_words() -> None:
    assert KafkaError().message == "KafkaError"
    assert KafkaStorageError("a sentence").message == "a sentence"
