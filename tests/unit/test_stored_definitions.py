"""Definitions of feeds that are stored on shards which may not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from brokerhouse.feeds.stored_definitions import StoredDefinitions
from brokerhouse.feeds.tables import ALONE
from brokerhouse.storage.cluster_sql import ClusterLayout
from brokerhouse.storage.engine import EngineError, Parameter, Row

CLUSTER = ClusterLayout("main", replicated=False, distributed=True)


def row(name: str, version: int, *, status: str = "running", topic: str = "orders") -> Row:
    database, table = name.split(".")
    feed_id = "00000000-0000-0000-0000-000000000009"
    settings = ["earliest", 250, 0, status, 0, [], []]
    return [name, feed_id, version, database, table, [topic], "json", [], [], *settings]


class ShardStub:
    """Has these rows, unless it is away."""

    def __init__(self, *rows: Row) -> None:
        self.has = list(rows)
        self.away = False

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        self._check()
        return self.has

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        self._check()
        self.has.append(row("shop.new", 1))

    def _check(self) -> None:
        if self.away:
            raise EngineError("away")


def stored(**shards: ShardStub) -> StoredDefinitions:
    return StoredDefinitions(shards, CLUSTER)


async def test_the_highest_version_counts_wherever_it_is_stored() -> None:
    one = ShardStub(row("shop.a", 1), row("shop.b", 1))
    two = ShardStub(row("shop.a", 2, status="paused"), row("shop.b", 2, status="dropped"))
    definitions = stored(one=one, two=two)
    [[feed], wrong] = await definitions.newest()

    assert (feed.name, feed.version, feed.status.value, wrong) == ("shop.a", 2, "paused", [])
    assert definitions.topics == {"orders"}
    assert set(await definitions.all_by_name()) == {"shop.a", "shop.b"}


@pytest.mark.parametrize(("layout", "table"), [(ALONE, "a"), (CLUSTER, "a_local")])
async def test_a_shard_of_a_cluster_has_its_rows_in_a_table_of_another_name(
    layout: ClusterLayout, table: str
) -> None:
    [[feed], _] = await StoredDefinitions({"s": ShardStub(row("shop.a", 1))}, layout).newest()

    assert (feed.name, feed.table) == ("shop.a", table)


async def test_a_shard_that_does_not_answer_is_remembered_as_it_was() -> None:
    one, two = ShardStub(), ShardStub(row("shop.a", 1))
    definitions = stored(one=one, two=two)
    two.away = True
    with pytest.raises(EngineError):
        await definitions.newest()
    two.away = False
    await definitions.newest()
    two.away = True

    assert [feed.name for feed in (await definitions.newest())[0]] == ["shop.a"]
    with pytest.raises(EngineError):
        await definitions.all_by_name()


async def test_reading_definitions_fails_when_no_shard_answers() -> None:
    one, two = ShardStub(row("shop.a", 1)), ShardStub()
    definitions = stored(one=one, two=two)
    await definitions.newest()
    one.away = two.away = True
    with pytest.raises(EngineError):
        await definitions.newest()


async def test_a_definition_is_added_if_one_shard_answers() -> None:
    one, two = ShardStub(row("shop.a", 1)), ShardStub()
    definitions = stored(one=one, two=two)
    feed: Any = (await definitions.all_by_name())["shop.a"]
    one.away = True
    await definitions.add(feed)
    assert len(two.has) == 1
    two.away = True
    with pytest.raises(EngineError):
        await definitions.add(feed)
