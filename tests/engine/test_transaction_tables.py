"""Rows of aborted transactions go when the log has no record of them any more."""

from __future__ import annotations

import asyncio

import pytest

from brokerhouse.broker.log import transaction_tables
from brokerhouse.broker.log.mutations import is_changing
from brokerhouse.broker.log.transaction_tables import TransactionSweep
from brokerhouse.common.clock import DAY_MS
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.waiting import until_async

TOPIC_ID = "00000000-0000-0000-0000-000000000001"
ABORTED = (
    f"INSERT INTO aborted_transactions VALUES ('events', '{TOPIC_ID}', 0, 1, {{0}}, {{0}} + 5)"
)


async def test_rows_of_aborted_transactions_without_records_are_removed_and_others_kept(
    engine: EmbeddedEngine,
) -> None:
    for start in (0, 10):
        await engine.execute(ABORTED.format(start))
    await engine.execute(
        "INSERT INTO messages (topic, topic_id, partition, offset, timestamp_type, transactional,"
        " control, transaction_start, append_time) VALUES"
        f" ('events', '{TOPIC_ID}', 0, 10, 'CreateTime', true, false, 10, now64(3)),"
        f" ('events', '{TOPIC_ID}', 0, 5, 'CreateTime', true, true, 0, now64(3))"
    )
    now_ms = 0
    sweep = TransactionSweep(engine, lambda: now_ms)
    starts = "SELECT transaction_start FROM aborted_transactions ORDER BY transaction_start"

    async def one_is_left() -> bool:
        """And the removal is over: its rows are gone a moment earlier, and a round waits for it."""
        rows, table = await engine.rows(starts), "aborted_transactions"
        return rows == [[10]] and not await is_changing(engine, table)

    await sweep.round()
    await until_async(one_is_left)
    await engine.execute(ABORTED.format(20))
    await sweep.round()
    assert await engine.rows(starts) == [[10], [20]], "not before a day is over"
    now_ms = DAY_MS
    await sweep.round()
    await until_async(one_is_left)


async def test_many_rows_of_aborted_transactions_are_removed_in_portions(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_tables, "_IN_A_STATEMENT", 3)
    for start in range(8):
        await engine.execute(ABORTED.format(start))

    async def none_is_left() -> bool:
        return await engine.rows("SELECT count() FROM aborted_transactions") == [[0]]

    await TransactionSweep(engine, lambda: 0).round()
    await until_async(none_is_left)


async def test_a_removal_does_not_start_while_an_earlier_one_waits(
    engine: EmbeddedEngine,
) -> None:
    """For space on the disk, or here until it is told to go on."""
    await engine.execute(ABORTED.format(0))
    await engine.execute("SYSTEM STOP MERGES aborted_transactions")
    sweep = TransactionSweep(engine, lambda: 0)
    for _ in range(3):
        await asyncio.wait_for(sweep.round(), 60)
        sweep._swept_ms = None
    waiting = "SELECT count() FROM system.mutations WHERE table = 'aborted_transactions'"
    assert await engine.rows(waiting) == [[1]]
    await engine.execute("SYSTEM START MERGES aborted_transactions")
