"""Group commit of small tables: rounds, the order of tables, and which calls a refusal fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from brokerhouse.storage import row_lane
from brokerhouse.storage.blocks import INT32, Table
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, StorageFault
from brokerhouse.storage.row_lane import PartlyStored, RowLane, TableRows
from tests.support.log_parts import ScriptedEngine
from tests.support.small_tables import make_lane, settled

ENDLESS_S = 86_400.0
A, B, C = (Table(f"small_{name}", (("n", INT32),)) for name in "abc")


@pytest.fixture(autouse=True)
async def small_tables(engine: EmbeddedEngine) -> None:
    for table in (A, B, C):
        await engine.execute(
            f"CREATE TABLE {table.name} (n Int32) ENGINE = MergeTree ORDER BY n"
            " SETTINGS non_replicated_deduplication_window = 100"
        )


@pytest.fixture
async def lane(scripted: ScriptedEngine) -> AsyncIterator[RowLane]:
    made = make_lane(scripted)
    yield made
    scripted.gate.set()
    await made.close()


def rows(table: Table, *numbers: object) -> TableRows:
    return TableRows(table, [(number,) for number in numbers])


async def stored(engine: ScriptedEngine, table: Table) -> list[object]:
    return [n for (n,) in await engine.rows(f"SELECT n FROM {table.name} ORDER BY n")]


async def held(lane: RowLane, engine: ScriptedEngine) -> asyncio.Future[None]:
    """A call whose insert waits for the gate; what is put after it makes up the next round."""
    engine.gate.clear()
    first = lane.put(rows(C, 0))
    await engine.next_insert()
    engine.inserts.clear()
    return first


async def outcomes(calls: Sequence[asyncio.Future[None]]) -> list[type[BaseException] | None]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    return [type(result) if isinstance(result, BaseException) else None for result in results]


# --- Rounds ---


async def test_rows_are_in_the_table_when_the_call_returns(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    await lane.store(rows(A, 1, 2))
    assert await stored(scripted, A) == [1, 2]
    await lane.store(rows(A, 3), rows(B, 4))
    assert await stored(scripted, A) == [1, 2, 3]
    assert await stored(scripted, B) == [4]


async def test_calls_that_wait_for_an_insert_become_one_block_per_table(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, n), rows(B, -n)) for n in range(50)]
    calls += [lane.put(rows(B, 100 + n)) for n in range(50)]
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None] * 101
    assert scripted.tables == [A.name, B.name]
    assert await stored(scripted, A) == list(range(50))
    assert len(await stored(scripted, B)) == 100


async def test_a_round_is_limited_in_rows(
    scripted: ScriptedEngine, lane: RowLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_lane, "_ROWS_MAX", 10)
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, *range(4))) for _ in range(6)] + [lane.put(rows(A, *range(30)))]
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None] * 7 + [None]
    assert scripted.tables == [A.name] * 3
    assert len(await stored(scripted, A)) == 54


async def test_a_single_caller_does_not_wait_for_others(
    scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_lane, "_GATHER_PER_CALL_S", ENDLESS_S)
    lane = make_lane(scripted, gather_max_s=ENDLESS_S)
    for n in range(3):
        await lane.store(rows(A, n))
    await lane.close()


async def test_a_round_after_one_of_several_calls_waits_for_more_calls(
    scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_lane, "_GATHER_PER_CALL_S", ENDLESS_S)
    lane = make_lane(scripted, gather_max_s=ENDLESS_S)
    await asyncio.gather(lane.store(rows(A, 1)), lane.store(rows(A, 2)))
    third = lane.put(rows(A, 3))
    await settled()
    fourth = lane.put(rows(A, 4))
    await settled()
    assert not third.done()
    await lane.close()
    assert await outcomes([third, fourth]) == [None, None]
    assert scripted.tables == [A.name] * 2


async def test_calls_end_in_the_order_in_which_they_were_made(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    ended: list[int] = []
    calls = [lane.put(rows((A, B)[n % 2], n)) for n in range(20)]
    calls += [lane.put(rows(B, n), rows(A, n)) for n in range(20, 40)]
    for call in calls:
        call.add_done_callback(lambda done: ended.append(calls.index(done)))
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None] * 41
    assert ended == list(range(40))


async def test_a_call_without_rows_ends_after_those_before_it(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    nothing = lane.put(rows(A), rows(B))
    await settled()
    assert not nothing.done()
    scripted.gate.set()
    assert await outcomes([first, nothing]) == [None, None]
    assert scripted.tables == []


async def test_rows_of_a_cancelled_caller_are_stored(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    await held(lane, scripted)
    caller = asyncio.create_task(lane.store(rows(A, 1)))
    await settled()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    scripted.gate.set()
    await lane.store(rows(A, 2))
    assert await stored(scripted, A) == [1, 2]


# --- Order of tables ---


async def test_tables_of_a_call_are_inserted_in_the_order_given(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    await lane.store(rows(B, 1), rows(A, 1), rows(C, 1))
    assert scripted.tables == [B.name, A.name, C.name]


async def test_calls_with_conflicting_orders_of_tables_go_into_different_rounds(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [
        lane.put(rows(A, 1), rows(B, 1)),
        lane.put(rows(B, 2), rows(C, 2)),
        lane.put(rows(B, 3), rows(A, 3)),
        lane.put(rows(A, 4)),
    ]
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None] * 5
    assert scripted.tables == [A.name, B.name, C.name, B.name, A.name]


# --- Faults ---


async def test_a_refusal_fails_every_call_that_has_rows_in_the_block_and_no_other(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, 1)), lane.put(rows(A, 2)), lane.put(rows(B, 3))]
    scripted.faults.extend([None, "refused"])
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None, EngineError, EngineError, None]
    assert await stored(scripted, A) == []
    assert await stored(scripted, B) == [3]
    await lane.store(rows(A, 4))
    assert await stored(scripted, A) == [4]


async def test_after_a_refusal_rows_of_the_call_for_later_tables_are_not_inserted(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, 1), rows(B, 1)), lane.put(rows(B, 2))]
    scripted.faults.extend([None, "refused"])
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None, EngineError, None]
    assert await stored(scripted, B) == [2]


async def test_a_call_raises_partly_stored_when_its_second_table_is_refused(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    scripted.faults.extend([None, "refused"])
    with pytest.raises(PartlyStored):
        await lane.store(rows(A, 1), rows(B, 1), rows(C, 1))
    assert [await stored(scripted, table) for table in (A, B, C)] == [[1], [], []]


@pytest.mark.parametrize("fault", ["unknown", "unknown though stored"])
async def test_an_insert_of_unknown_outcome_is_repeated_with_its_token_until_it_is_known(
    scripted: ScriptedEngine, lane: RowLane, fault: str
) -> None:
    scripted.faults.extend([fault, fault, "unknown"])
    await lane.store(rows(A, 1, 2), rows(B, 3))
    tokens = [insert.token for insert in scripted.inserts]
    assert scripted.tables == [A.name] * 4 + [B.name]
    assert len(set(tokens[:4])) == 1
    assert tokens[4] != tokens[0]
    assert await stored(scripted, A) == [1, 2]


@pytest.mark.parametrize(
    "faults",
    [
        ["token used"],
        ["unknown", "token used", "refused", "unknown", "token used"],
        ["token used", "token used", "refused"],
    ],
    ids=", ".join,
)
async def test_rows_whose_token_is_used_are_inserted_with_another_token(
    scripted: ScriptedEngine, lane: RowLane, faults: list[str]
) -> None:
    scripted.faults.extend(faults)
    await lane.store(rows(A, 1, 2), rows(B, 3))
    assert scripted.tables == [A.name] * (len(faults) + 1) + [B.name]
    assert len({insert.token for insert in scripted.inserts}) == faults.count("token used") + 2
    assert await stored(scripted, A) == [1, 2]


async def test_tokens_of_blocks_are_unique_also_after_a_restart(scripted: ScriptedEngine) -> None:
    """Also over a restart: the engine would take the second for a repetition of the first."""
    for _ in range(3):
        lane = make_lane(scripted)
        await lane.store(rows(A, 1), rows(B, 1))
        await lane.store(rows(A, 1))
        await lane.close()
    assert len({insert.token for insert in scripted.inserts}) == 9
    assert await stored(scripted, A) == [1] * 6


async def test_a_row_that_its_column_cannot_hold_fails_its_block_and_no_other(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, "text")), lane.put(rows(B, 1))]
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None, EngineError, None]
    await lane.store(rows(A, 2))
    assert await stored(scripted, A) == [2]


async def test_after_a_storage_fault_the_lane_refuses_further_rows(
    scripted: ScriptedEngine, lane: RowLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_block = scripted.insert_block
    faults = [StorageFault("a write was lost")]

    async def damaged(*insert: Any) -> None:
        await scripted.gate.wait()
        if faults:
            raise faults.pop()
        await insert_block(*insert)

    first = await held(lane, scripted)
    calls = [lane.put(rows(A, 1)), lane.put(rows(B, 2)), lane.put(rows(B, 3), rows(A, 3))]
    monkeypatch.setattr(scripted, "insert_block", damaged)
    scripted.gate.set()
    assert await outcomes([first, *calls]) == [None, EngineError, EngineError, EngineError]
    with pytest.raises(EngineError, match="a write was lost"):
        await lane.store(rows(A, 4))
    assert await stored(scripted, A) == []
    assert await stored(scripted, B) == []


# --- Stopping ---


async def test_queued_rows_are_stored_before_the_lane_stops(
    scripted: ScriptedEngine, lane: RowLane
) -> None:
    first = await held(lane, scripted)
    calls = [lane.put(rows(A, 1), rows(B, 1)), lane.put(rows(B, 2), rows(A, 2))]
    closing = asyncio.create_task(lane.close())
    await settled()
    with pytest.raises(EngineError, match="shutting down"):
        await lane.store(rows(A, 3))
    scripted.gate.set()
    await closing
    assert await outcomes([first, *calls]) == [None] * 3
    assert await stored(scripted, A) == [1, 2]
