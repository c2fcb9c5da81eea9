"""One connection over a transport in memory: order, pipelining, errors, stopping."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.producer import InitProducerIdResponse

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import CloseConnection, RequestContext
from brokerhouse.broker.net import connection as connection_module
from brokerhouse.broker.settings.config import Settings
from brokerhouse.protocol.errors import KafkaError, KafkaStorageError
from brokerhouse.protocol.versions import ApiKey
from tests.support.scripted_connection import (
    Connect,
    FakeBroker,
    in_flight,
    init_producer_id,
    metadata,
    produce,
    settle,
)

LIMIT_S = 30.0


# --- Order ---


async def test_responses_are_sent_in_the_order_of_the_requests(connect: Connect) -> None:
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


async def test_responses_that_finish_together_are_written_in_one_piece(connect: Connect) -> None:
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


async def test_produce_requests_run_concurrently_and_all_others_one_after_the_other(
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


async def test_a_slow_request_does_not_delay_other_connections(connect: Connect) -> None:
    slow, fast = connect(), connect()
    slow.send(metadata(1))
    fast.send(metadata(2))
    await fast.finish(2)
    assert (slow.answers, fast.answers) == ([], [2])


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_requests_cut_into_any_pieces_are_answered(connect: Connect, size: int) -> None:
    client = connect()
    stream = b"".join(produce(n, n * 10) for n in range(20))
    for start in range(0, len(stream), size):
        client.send(stream[start : start + size])
    await settle()
    assert client.handlers.started == list(range(20))


async def test_connections_that_share_a_read_buffer_each_get_their_own_requests(
    connect: Connect,
) -> None:
    broker = FakeBroker()
    clients = [connect(broker), connect(broker)]
    first, second = (produce(number, 1000) for number in (1, 2))
    assert clients[0].connection.get_buffer(1) is clients[1].connection.get_buffer(1)
    for begin in range(0, len(first), 300):
        clients[0].send(first[begin : begin + 300])
        clients[1].send(second[begin : begin + 300])
    await settle()
    for number, client in enumerate(clients, start=1):
        await client.finish(number)
        assert client.answers == [number]


async def test_a_request_that_gets_no_response_does_not_delay_the_next_response(
    connect: Connect,
) -> None:
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
async def test_a_failing_handler_is_answered_with_an_error_code_and_the_connection_stays_open(
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
async def test_the_connection_is_closed_when_the_response_has_no_field_for_an_error(
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


async def test_a_plain_handler_may_answer_at_once_later_or_not_at_all(
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


async def test_a_handler_may_close_the_connection_after_the_earlier_responses(
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


async def test_requests_that_wait_on_a_closed_connection_are_not_started(connect: Connect) -> None:
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
async def test_bytes_that_are_not_a_request_close_the_connection_and_log_one_line(
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


# --- Stopping ---


async def test_draining_answers_the_requests_in_progress_and_closes(connect: Connect) -> None:
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


async def test_draining_ends_when_the_client_disconnects(connect: Connect) -> None:
    client = connect()
    client.send(metadata(1))
    await settle()
    draining = asyncio.create_task(client.connection.drain())
    await settle()
    client.wire.abort()
    async with asyncio.timeout(LIMIT_S):
        await draining


async def test_a_connection_is_idle_while_no_request_is_in_progress(connect: Connect) -> None:
    client = connect()
    assert client.connection.idle
    client.send(metadata(1))
    await settle()
    assert not client.connection.idle
    await client.finish(1)
    assert client.connection.idle


def test_a_kafka_error_without_a_text_has_a_message() -> None:
    assert KafkaError().message == "KafkaError"
    assert KafkaStorageError("a sentence").message == "a sentence"
