"""The listener for Kafka clients: its address, and when it accepts connections."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from brokerhouse.broker.broker import Broker
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.memory import RequestMemory, ResponseMemory
from brokerhouse.broker.monitoring.request_counts import RequestCounts
from brokerhouse.broker.net.connection import Connections
from brokerhouse.broker.net.listener import KafkaListener, ListenError
from brokerhouse.broker.settings.config import Settings
from tests.support.server_process import free_port


def connections() -> Connections:
    broker = SimpleNamespace(
        settings=Settings(),
        in_flight=RequestMemory(1 << 20),
        requests=RequestCounts(),
        response_memory=ResponseMemory(1 << 20),
    )
    return Connections(cast(Broker, broker))


async def test_the_address_is_known_before_a_client_can_connect() -> None:
    listener = await KafkaListener.bind(Settings(kafka="127.0.0.1:0"))
    try:
        assert listener.endpoint() == BrokerEndpoint(1, "127.0.0.1", listener.addresses[0].port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.addresses[0].port)

        await listener.accept(connections())
        _, writer = await asyncio.open_connection("127.0.0.1", listener.addresses[0].port)
        writer.close()
    finally:
        listener.close()


async def test_clients_are_told_the_advertised_address() -> None:
    settings = Settings(
        kafka="127.0.0.1:0", advertised="kafka.example.com:9094", rack="r1", node_id=7
    )
    listener = await KafkaListener.bind(settings)
    try:
        assert listener.endpoint() == BrokerEndpoint(7, "kafka.example.com", 9094, "r1")
    finally:
        listener.close()


async def test_listening_on_every_address_needs_an_advertised_one() -> None:
    listener = await KafkaListener.bind(Settings(kafka="0.0.0.0:0"))
    try:
        with pytest.raises(ListenError, match="give --advertised HOST:PORT"):
            listener.endpoint()
    finally:
        listener.close()


async def test_each_listener_advertises_its_own_address() -> None:
    settings = Settings(
        kafka="inside://127.0.0.1:0, outside://0.0.0.0:0", advertised="outside://example.com:9094"
    )
    listener = await KafkaListener.bind(settings)
    try:
        inside, outside = listener.addresses
        assert inside.port != outside.port
        endpoint = listener.endpoint()
        assert (endpoint.host, endpoint.port) == ("127.0.0.1", inside.port)
        assert endpoint.seen_from("INSIDE") == endpoint
        assert endpoint.seen_from("OUTSIDE") == replace(endpoint, host="example.com", port=9094)
        assert endpoint.seen_from("PLAINTEXT") is None
    finally:
        listener.close()


async def test_the_first_address_is_freed_if_the_second_is_in_use() -> None:
    first = await KafkaListener.bind(Settings(kafka="127.0.0.1:0"))
    await first.accept(connections())
    wanted = f"127.0.0.1:{free_port()}"
    try:
        with pytest.raises(ListenError, match="in use"):
            await KafkaListener.bind(
                Settings(kafka=f"A://{wanted},B://{first.addresses[0].address}")
            )
        again = await KafkaListener.bind(Settings(kafka=wanted))
        again.close()
    finally:
        first.close()


async def test_an_address_in_use_is_reported_in_one_sentence() -> None:
    settings = Settings(kafka="127.0.0.1:0")
    first = await KafkaListener.bind(settings)
    await first.accept(connections())
    try:
        taken = f"127.0.0.1:{first.addresses[0].port}"
        with pytest.raises(ListenError, match=f"cannot listen for Kafka on {taken}: .*in use"):
            await KafkaListener.bind(Settings(kafka=taken))
    finally:
        first.close()


async def test_an_unknown_host_is_reported_in_one_sentence() -> None:
    with pytest.raises(ListenError, match="no such host"):
        await KafkaListener.bind(Settings(kafka="nowhere.invalid:9092"))
