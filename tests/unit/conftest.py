"""What several unit tests ask for by name."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.net import connection as connection_module
from brokerhouse.broker.net.connection import Connection
from tests.support.record_codecs import BOTH
from tests.support.scripted_connection import Client, Connect, FakeBroker, Handlers, Wire


@pytest.fixture(params=BOTH, ids=["compiled", "reference"])
def module(request: pytest.FixtureRequest) -> Any:
    """Each implementation of the record batch format in turn."""
    return request.param


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
