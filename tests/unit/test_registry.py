"""Compare-and-set: of those who change a key at once one wins, and a version only grows."""

import asyncio
from pathlib import Path

import pytest

from broker.producer_ids import ProducerIds
from storage.embedded import EmbeddedEngine
from storage.registry import TableRegistry, Versioned
from storage.schema import migrate


@pytest.fixture
def registry(engine: EmbeddedEngine) -> TableRegistry:
    return TableRegistry(engine)


async def test_a_key_that_was_never_set_is_none(registry: TableRegistry) -> None:
    assert await registry.get("key") is None


async def test_a_value_is_kept_with_a_version_that_grows(registry: TableRegistry) -> None:
    assert await registry.compare_and_set("key", None, "first")
    first = await registry.get("key")
    assert first == Versioned("first", 1)
    assert await registry.compare_and_set("key", first, "second")
    assert await registry.get("key") == Versioned("second", 2)


async def test_keys_do_not_touch_each_other(registry: TableRegistry) -> None:
    keys = ["a", "A", "a'", "a\\", "", "é"]
    for key in keys:
        assert await registry.compare_and_set(key, None, f"value of {key}")
    assert [await registry.get(key) for key in keys] == [
        Versioned(f"value of {key}", 1) for key in keys
    ]


@pytest.mark.parametrize(
    "expected",
    [None, Versioned("old", 1), Versioned("new", 1), Versioned("old", 2), Versioned("new", 3)],
)
async def test_with_another_expectation_nothing_is_set(
    registry: TableRegistry, expected: Versioned | None
) -> None:
    await registry.compare_and_set("key", None, "old")
    await registry.compare_and_set("key", Versioned("old", 1), "new")
    assert not await registry.compare_and_set("key", expected, "mine")
    assert await registry.get("key") == Versioned("new", 2)


async def test_a_key_that_is_not_there_cannot_be_expected(registry: TableRegistry) -> None:
    assert not await registry.compare_and_set("key", Versioned("old", 1), "mine")
    assert await registry.get("key") is None


async def test_of_many_at_once_one_wins(registry: TableRegistry) -> None:
    for turn in range(5):
        before = await registry.get("key")
        won = await asyncio.gather(
            *(registry.compare_and_set("key", before, f"{turn}/{n}") for n in range(10))
        )
        assert won.count(True) == 1
        assert await registry.get("key") == Versioned(f"{turn}/{won.index(True)}", turn + 1)


async def test_a_value_survives_a_restart_and_merges(tmp_path: Path) -> None:
    for turn in range(4):
        engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
        await migrate(engine)
        registry = TableRegistry(engine)
        before = await registry.get("key")
        assert before == (Versioned(str(turn - 1), turn) if turn else None)
        assert await registry.compare_and_set("key", before, str(turn))
        if turn == 2:
            await engine.execute("OPTIMIZE TABLE cluster_state FINAL")
        await engine.close()


async def test_producer_ids_are_given_once_whoever_asks(registry: TableRegistry) -> None:
    """Two that share a registry, as brokers of a cluster will, and restarts between."""
    given: list[int] = []
    for _ in range(3):
        one, other = ProducerIds(registry), ProducerIds(registry)
        fresh_from = await one.load()
        now = await asyncio.gather(*((one, other)[n % 2].next() for n in range(50)))
        assert min(now) >= fresh_from
        given += now
    assert len(set(given)) == len(given)


async def test_producer_ids_go_on_over_the_end_of_a_block(registry: TableRegistry) -> None:
    ids = ProducerIds(registry)
    assert [await ids.next() for _ in range(1001)] == list(range(1001))
    assert await ids.load() == 2000
