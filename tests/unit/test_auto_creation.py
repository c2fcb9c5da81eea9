"""Topics that clients ask for in Metadata: gathered, created once, and waited for a while only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from brokerhouse.broker.topics import auto_creation
from brokerhouse.broker.topics.auto_creation import AutoCreation
from brokerhouse.broker.topics.catalog import NewTopic, Outcome, TopicCatalog
from brokerhouse.protocol.errors import KafkaStorageError
from brokerhouse.storage.engine import EngineError


class SlowCatalog:
    """A catalog that creates topics when `gate` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.changes: list[list[str]] = []
        self.error: Exception | None = None

    async def create_all(self, wanted: Sequence[NewTopic]) -> dict[str, Outcome]:
        self.changes.append([one.name for one in wanted])
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {}


def creation(catalog: SlowCatalog, partitions: int = 1) -> AutoCreation:
    return AutoCreation(cast(TopicCatalog, catalog), partitions)


async def test_topics_asked_for_during_a_creation_are_created_together_and_each_once() -> None:
    catalog = SlowCatalog()
    topics = creation(catalog)
    requests = [asyncio.create_task(topics.create(["a", "b"]))]
    await asyncio.sleep(0.01)
    more: list[list[str]] = [["b", "c"], ["c", "d"], ["a"], []]
    requests += [asyncio.create_task(topics.create(names)) for names in more]
    await asyncio.sleep(0.01)
    assert catalog.changes == [["a", "b"]]
    assert [request.done() for request in requests] == [False] * 4 + [True]
    catalog.gate.set()
    await asyncio.gather(*requests)
    assert catalog.changes == [["a", "b"], ["c", "d"]]


async def test_a_topic_is_created_even_if_its_request_stops_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_creation, "_WAIT_S", 0.01)
    catalog = SlowCatalog()
    topics = creation(catalog)
    for _ in range(3):
        await topics.create(["a"])
    assert catalog.changes == [["a"]]
    catalog.gate.set()
    await topics.create(["a"])
    await topics.create(["b"])
    assert catalog.changes == [["a"], ["b"]]


async def test_the_number_of_topics_waiting_for_creation_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_creation, "_WAIT_S", 0.01)
    catalog = SlowCatalog()
    topics = creation(catalog, partitions=100)
    await topics.create(f"a{n}" for n in range(70))
    await topics.create(f"b{n}" for n in range(70))
    catalog.gate.set()
    await topics.create(["a0"])
    assert [len(names) for names in catalog.changes] == [70, 30]


@pytest.mark.parametrize("error", [EngineError("no space"), KafkaStorageError("busy")])
async def test_after_an_error_the_next_request_tries_again(error: Exception) -> None:
    catalog = SlowCatalog()
    catalog.gate.set()
    topics = creation(catalog)
    catalog.error = error
    await topics.create(["a"])
    catalog.error = None
    await topics.create(["a"])
    assert catalog.changes == [["a"], ["a"]]


async def test_waiting_requests_are_answered_when_the_broker_stops() -> None:
    catalog = SlowCatalog()
    topics = creation(catalog)
    requests = [asyncio.create_task(topics.create([name])) for name in ("a", "b")]
    await asyncio.sleep(0.01)
    await topics.close()
    async with asyncio.timeout(1):  # sooner than `_WAIT_S`
        await asyncio.gather(*requests)
    assert catalog.changes == [["a", "b"]]
