"""Fences on a real engine: late inserts of a session that has ended change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest

from brokerhouse.broker.log.fence import SESSION_DAYS, block_token, burn, fence
from brokerhouse.common.clock import DAY_MS
from brokerhouse.protocol._decode_batches import BlockBuilder
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, InsertOutcomeUnknown, Parameter
from brokerhouse.storage.engine import Row as EngineRow
from tests.support.log_parts import ScriptedEngine, header_of, plain

SESSION = 41
DAY = 20_000
"""2024-10-04: all that a session does in these tests is of this day, or of the next one."""
LIMIT_S = 30.0


def topic_id_of(session: int) -> UUID:
    """Each session has a topic, and each of its lanes a partition of it."""
    return UUID(int=(1 << 100) + session)


async def send(
    engine: EmbeddedEngine | ScriptedEngine,
    number: int,
    *,
    lane: int = 0,
    day: int = DAY,
    session: int = SESSION,
) -> None:
    """A block of the session, as its lane sends it: one row, whose offset is the number."""
    batch = plain(f"{lane}/{number}".encode())
    builder = BlockBuilder(day * DAY_MS + DAY_MS // 2)
    topic_id = topic_id_of(session).bytes
    builder.append("t", topic_id, lane, number, 0, header_of(batch.data), batch.data[61:], None)
    token = block_token(session, lane, number)
    await engine.insert_block(lane, "messages", COLUMN_LIST, builder.finish(), token)


async def stored(engine: EmbeddedEngine, lane: int = 0, session: int = SESSION) -> list[int]:
    """The numbers of the lane's blocks that are in the table."""
    rows = await engine.rows(
        "SELECT offset FROM messages WHERE topic = 't' AND topic_id = {id:UUID}"
        " AND partition = {lane:Int32} ORDER BY offset",
        {"id": str(topic_id_of(session)), "lane": lane},
    )
    return [offset for (offset,) in rows]


async def fence_rows(engine: EmbeddedEngine) -> int:
    rows = await engine.rows("SELECT count() FROM messages WHERE topic = ''")
    number: int = rows[0][0]
    return number


async def fence_rows_are_gone(engine: EmbeddedEngine) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await fence_rows(engine):  # noqa: ASYNC110  # the engine has no event
            await asyncio.sleep(0.01)


# --- What a fence does ---


@pytest.mark.parametrize("behind", [0, 1, 10, pytest.param(300, marks=pytest.mark.test_all)])
async def test_a_fence_with_an_old_count_keeps_all_stored_blocks_and_refuses_the_next_one(
    engine: EmbeddedEngine, behind: int
) -> None:
    counted = 4
    for number in range(1, counted + behind + 1):
        await send(engine, number)
    await fence(engine, SESSION, [counted], DAY)
    found = await stored(engine)
    assert found == list(range(1, counted + behind + 1))
    await send(engine, counted + behind + 1)
    assert await stored(engine) == found


async def test_a_late_block_is_not_stored_after_the_rows_of_the_fence_were_deleted(
    engine: EmbeddedEngine,
) -> None:
    await send(engine, 1)
    await fence(engine, SESSION, [1], DAY)
    await fence_rows_are_gone(engine)
    await engine.execute("OPTIMIZE TABLE messages FINAL")
    await send(engine, 2)
    await send(engine, 2)
    assert await stored(engine) == [1]


async def test_a_session_that_never_wrote_is_fenced_at_its_first_block(
    engine: EmbeddedEngine,
) -> None:
    await fence(engine, SESSION, [0], DAY)
    await send(engine, 1)
    assert await stored(engine) == []


async def test_a_block_stored_just_before_the_fence_stays_and_the_next_one_is_not_stored(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    await send(engine, 1)
    scripted.gate.clear()
    fencing = asyncio.create_task(fence(scripted, SESSION, [1], DAY))
    await scripted.next_insert()
    await send(engine, 2)
    scripted.gate.set()
    await fencing
    await send(engine, 3)
    assert await stored(engine) == [1, 2]


async def test_every_lane_is_fenced_at_its_own_last_block(engine: EmbeddedEngine) -> None:
    last = (3, 0, 7)
    for lane, numbers in enumerate(last):
        for number in range(1, numbers + 1):
            await send(engine, number, lane=lane)
    await fence(engine, SESSION, [2, 0, 1], DAY)
    for lane, numbers in enumerate(last):
        await send(engine, numbers + 1, lane=lane)
        assert await stored(engine, lane) == list(range(1, numbers + 1))


async def test_a_fence_does_not_affect_other_sessions(engine: EmbeddedEngine) -> None:
    other = SESSION + 1
    await send(engine, 1, session=other)
    await fence(engine, SESSION, [0, 0], DAY)
    await send(engine, 2, session=other)
    assert await stored(engine, session=other) == [1, 2]


# --- Midnight ---


async def test_a_fence_holds_on_both_days_that_a_session_may_write(engine: EmbeddedEngine) -> None:
    """A block that is late may have been made before midnight or after it."""
    cases = [(last, late) for last in (DAY, DAY + 1) for late in (DAY, DAY + 1)]
    for session, (last, late) in enumerate(cases):
        for number in range(1, 4):
            await send(engine, number, day=DAY if number < 3 else last, session=session)
        await fence(engine, session, [2], DAY)
        await send(engine, 4, day=late, session=session)
        assert await stored(engine, session=session) == [1, 2, 3], (last, late)
    await fence_rows_are_gone(engine)


# --- Again, and by several ---


async def test_repeating_a_fence_before_and_after_its_rows_are_deleted_changes_no_block(
    engine: EmbeddedEngine,
) -> None:
    for number in range(1, 5):
        await send(engine, number)
    for _ in range(2):
        await fence(engine, SESSION, [2], DAY)
    await fence_rows_are_gone(engine)
    await fence(engine, SESSION, [2], DAY)
    await send(engine, 5)
    assert await stored(engine) == [1, 2, 3, 4]
    await fence_rows_are_gone(engine)


async def test_a_fence_that_failed_at_any_step_is_completed_by_the_next(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    probes = 5  # of 2, 4, 8, 6 and 5
    for session in range(probes):
        day = DAY + session * SESSION_DAYS  # of its own, as a deletion rewrites each part of a day
        for number in range(1, 6):
            await send(engine, number, day=day, session=session)
        scripted.faults += [*[None] * session, "unknown though stored"]
        with pytest.raises(InsertOutcomeUnknown):
            await fence(scripted, session, [1], day)
        await fence(scripted, session, [1], day)
        await send(engine, 6, day=day, session=session)
        assert await stored(engine, session=session) == list(range(1, 6))


class LaggingReplica(ScriptedEngine):
    """Reads do not see any fence rows until it has caught up."""

    caught_up = False

    def catch_up(self) -> None:
        self.caught_up = True

    async def rows(
        self, sql: str, params: Mapping[str, Parameter] | None = None
    ) -> list[EngineRow]:
        if not self.caught_up:
            return [[0]]
        self.caught_up = False
        return await super().rows(sql, params)


async def test_a_fence_lets_a_lagging_replica_catch_up_before_it_looks_for_rows_of_an_earlier_fence(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    """A number that seems used, and is not, would hide the end of the log below it."""
    for number in range(1, 6):
        await send(engine, number)
    scripted.faults += [None, None, None, "unknown though stored"]  # 1, 2 and 4 are used, 8 not
    with pytest.raises(InsertOutcomeUnknown):
        await fence(scripted, SESSION, [0], DAY)
    lagging = LaggingReplica(engine)
    await fence(lagging, SESSION, [0], DAY, lagging.catch_up)
    await send(engine, 6)
    assert await stored(engine) == [1, 2, 3, 4, 5]


async def test_a_fence_that_cannot_look_for_its_row_fails(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    scripted.failing_rows.append("FROM messages")
    with pytest.raises(EngineError):
        await fence(scripted, SESSION, [0], DAY)


@pytest.mark.parametrize("last", [1, 2, 6, pytest.param(40, marks=pytest.mark.test_all)])
async def test_two_fences_at_the_same_time_find_the_same_end(
    engine: EmbeddedEngine, last: int
) -> None:
    for number in range(1, last + 1):
        await send(engine, number)
    await asyncio.gather(*(fence(engine, SESSION, [1], DAY) for _ in range(2)))
    await send(engine, last + 1)
    assert await stored(engine) == list(range(1, last + 1))


async def test_a_fence_cuts_off_a_lane_at_full_speed_at_one_block_number(
    engine: EmbeddedEngine,
) -> None:
    """The lane is stopped by what it sees: a block that returns and is not there."""

    at_speed = asyncio.Event()

    async def lane() -> int:
        number = 0
        while True:
            number += 1
            if number == 20:
                at_speed.set()
            await send(engine, number, lane=1)
            if (await stored(engine, 1))[-1:] != [number]:
                return number

    writing = asyncio.create_task(lane())
    await at_speed.wait()
    async with asyncio.timeout(LIMIT_S):
        await fence(engine, SESSION, [0, 3], DAY)
        cut_off = await writing
    assert await stored(engine, 1) == list(range(1, cut_off))


# --- Rows ---


async def test_a_fence_holds_although_its_rows_cannot_be_deleted(
    engine: EmbeddedEngine, scripted: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await send(engine, 1)
    scripted.failing_rows += ["DELETE FROM", "DELETE FROM"]
    await fence(scripted, SESSION, [0], DAY)
    assert await fence_rows(engine) > 0
    assert "cannot delete the fence rows of session" in caplog.text
    await send(engine, 2)
    assert await stored(engine) == [1]


async def test_a_fence_deletes_only_its_own_rows(engine: EmbeddedEngine) -> None:
    await send(engine, 1)
    await send(engine, 1, day=DAY + 1, session=SESSION + 1)
    await fence(engine, SESSION, [0], DAY)
    await fence_rows_are_gone(engine)
    assert await stored(engine) == await stored(engine, session=SESSION + 1) == [1]


# --- Burning a number ---


async def burn_number(
    engine: EmbeddedEngine | ScriptedEngine, number: int, session: int = SESSION
) -> bool:
    return await burn(engine, session, 0, number, DAY * DAY_MS + DAY_MS // 2)


async def test_a_block_with_a_burnt_number_is_not_stored(engine: EmbeddedEngine) -> None:
    await send(engine, 1)
    assert await burn_number(engine, 2)
    await send(engine, 2)
    await send(engine, 3)
    assert await stored(engine) == [1, 3]
    await fence_rows_are_gone(engine)


async def test_the_number_of_a_stored_block_cannot_be_burnt(engine: EmbeddedEngine) -> None:
    await send(engine, 1)
    assert not await burn_number(engine, 1)
    assert await stored(engine) == [1]


async def test_a_burn_of_unknown_outcome_is_repeated(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    scripted.faults.append("unknown though stored")
    with pytest.raises(InsertOutcomeUnknown):
        await burn_number(scripted, 1)
    assert await burn_number(scripted, 1)


async def test_a_late_burn_does_not_delete_the_rows_of_an_incomplete_fence(
    engine: EmbeddedEngine, scripted: ScriptedEngine
) -> None:
    await send(engine, 1, lane=1)
    scripted.faults.append("unknown though stored")
    with pytest.raises(InsertOutcomeUnknown):
        await fence(scripted, SESSION, [7, 1], DAY)
    before = await fence_rows(engine)
    assert await burn(engine, SESSION, 1, 2, DAY * DAY_MS)
    running = "SELECT 1 FROM system.mutations WHERE NOT is_done LIMIT 1"
    async with asyncio.timeout(LIMIT_S):
        while await engine.rows(running):  # noqa: ASYNC110  # the engine has no event
            await asyncio.sleep(0.01)
    assert await fence_rows(engine) == before > 0


BURNT = [
    {3},
    {5},
    {1, 2, 3, 4, 5},
    pytest.param({2, 3}, marks=pytest.mark.test_all),
    pytest.param({2, 3, 4, 5}, marks=pytest.mark.test_all),
]


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "not deleted"])
@pytest.mark.parametrize("burnt", BURNT, ids=str)
async def test_a_fence_goes_past_burnt_numbers_whether_or_not_their_rows_are_still_there(
    engine: EmbeddedEngine, scripted: ScriptedEngine, deleted: bool, burnt: set[int]
) -> None:
    for number in range(1, 6):
        if number in burnt:
            if not deleted:
                scripted.failing_rows.append("DELETE FROM")
            assert await burn_number(scripted, number)
        else:
            await send(engine, number)
    await fence(scripted, SESSION, [0], DAY)
    await send(engine, 6)
    assert await stored(engine) == sorted({1, 2, 3, 4, 5} - burnt)
