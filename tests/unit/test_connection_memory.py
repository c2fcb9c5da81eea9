"""One connection over a transport in memory: back-pressure, and what is in flight."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time

import pytest
from kafka.protocol.producer import InitProducerIdResponse

from brokerhouse.broker import memory
from brokerhouse.broker.memory import RequestMemory, ResponseMemory
from brokerhouse.broker.net import sending
from brokerhouse.broker.settings.config import Settings
from brokerhouse.protocol.errors import KafkaStorageError
from tests.support.scripted_connection import (
    EMPTY,
    MIB,
    Connect,
    FakeBroker,
    in_flight,
    init_producer_id,
    metadata,
    produce,
    settle,
)

LIMIT_S = 30.0


# --- Back-pressure ---


async def test_a_connection_does_not_read_while_its_requests_wait(connect: Connect) -> None:
    client = connect()
    client.send(metadata(1))
    assert not client.wire.paused
    client.send(metadata(2), metadata(3))
    assert client.wire.paused
    await client.finish(1)
    assert client.wire.paused
    await client.finish(2)
    assert not client.wire.paused


async def test_requests_of_a_client_that_reads_no_responses_are_not_started(
    connect: Connect,
) -> None:
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


async def test_unsent_responses_reduce_the_room_of_other_responses(connect: Connect) -> None:
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


async def test_a_large_response_is_sent_in_slices_as_the_client_reads_them(
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


async def test_a_client_that_reads_nothing_is_disconnected_and_logged_in_one_line(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sending, "_LOOK_EVERY_S", 0.01)
    broker = FakeBroker(Settings(response_send_timeout_ms=100))
    slow, quick = connect(broker), connect(broker)
    slow.wire.high_water = 10
    began = time.monotonic()
    slow.send(metadata(1))
    await slow.finish(1)
    quick.send(metadata(2))
    await quick.finish(2)
    async with asyncio.timeout(LIMIT_S):
        await slow.wire.aborts.wait()
    assert not quick.wire.aborted
    assert broker.response_memory.used == 0
    (line,) = [record.message for record in caplog.records]
    told = re.search(r"192\.0\.2\.1:5000 closed: its client has read nothing for (\S+) s", line)
    assert told is not None, line
    assert 0.1 <= float(told[1]) <= time.monotonic() - began + 0.05  # rounded


async def test_low_memory_disconnects_the_stalled_clients_with_the_most_unsent_bytes_first(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sending, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(sending, "_PATIENCE_WHEN_TIGHT_S", LIMIT_S)
    broker = FakeBroker(response_memory=ResponseMemory(64 * MIB))
    clients = [connect(broker) for _ in range(12)]
    for number, client in enumerate(clients):
        client.wire.high_water = 10
        client.send(metadata(number))
        await client.finish(number, bytes((4 if number >= 2 else 1) * MIB))
    assert broker.response_memory.is_tight
    await asyncio.sleep(0.06)  # nobody of them has taken anything for that long
    monkeypatch.setattr(sending, "_PATIENCE_WHEN_TIGHT_S", 0.05)
    async with asyncio.timeout(LIMIT_S):
        while broker.response_memory.is_tight:
            await asyncio.sleep(0.01)
            await settle()
    closed = [number for number, client in enumerate(clients) if client.wire.aborted]
    assert len(closed) == 3  # 42 MB were held, and half of 64 may be
    assert min(closed) >= 2
    assert 24 * MIB < broker.response_memory.used <= 32 * MIB


async def test_a_connection_with_many_unread_bytes_waits_when_the_budget_is_used_up(
    connect: Connect,
) -> None:
    broker = FakeBroker(in_flight=RequestMemory(4 * MIB))
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
    broker = FakeBroker(in_flight=RequestMemory(4 * MIB))
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


async def test_a_client_that_has_its_turn_and_sends_nothing_is_disconnected(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STALLED_AFTER_S", 0.02)
    broker = FakeBroker(in_flight=RequestMemory(4 * MIB))
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


async def test_a_request_is_counted_until_it_is_answered(connect: Connect) -> None:
    client = connect()
    whole, half = produce(1, 1000), produce(2, 5000)[:3000]
    client.send(whole, half)
    assert in_flight(client.broker) == len(whole) - 4 + len(half)
    await client.finish(1)
    assert in_flight(client.broker) == len(half)
    client.connection.connection_lost(None)
    assert in_flight(client.broker) == 0


async def test_records_of_a_client_that_disconnected_are_stored(
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
async def test_the_count_of_bytes_in_flight_returns_to_zero(connect: Connect, seed: int) -> None:
    rnd = random.Random(seed)
    broker = FakeBroker(in_flight=RequestMemory(3 * MIB))
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
