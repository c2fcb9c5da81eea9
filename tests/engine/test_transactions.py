"""Transactions of a partition: what its lane accepts, what is stable, what a start reads back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend, PendingMarker
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_transactions import (
    ABORTED_KEPT,
    AbortedTransaction,
    OpenTransaction,
)
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.transaction_recovery import recover_transactions
from brokerhouse.broker.log.transaction_tables import ended_rows
from brokerhouse.broker.transactions.transaction_markers import Marker, MarkerWriter
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.control_batches import control_batch
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    TransactionCoordinatorFenced,
)
from brokerhouse.storage.blocks import block
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.row_lane import RowLane, TableRows
from tests.support.alone import OneLane, OneShard
from tests.support.log_parts import (
    LANES,
    NOTHING_FRESH,
    ScriptedEngine,
    header_of,
    make_appender,
    make_log,
    plain,
    stored_values,
)
from tests.support.record_batches import Record, batch_of

PRODUCER = 7
TRANSACTIONAL = 0x10


@pytest.fixture
def scripted(engine: EmbeddedEngine) -> ScriptedEngine:
    return ScriptedEngine(engine)


@pytest.fixture
async def appender(scripted: ScriptedEngine) -> AsyncIterator[Appender]:
    made = make_appender(scripted)
    yield made
    await made.close()


@pytest.fixture
async def markers(appender: Appender, engine: EmbeddedEngine) -> AsyncIterator[MarkerWriter]:
    rows = RowLane(engine, LANES - 1, uuid4())
    rows.start()
    yield MarkerWriter(appender, OneLane(rows))
    await rows.close()


async def add(
    appender: Appender,
    log: PartitionLog,
    data: bytes,
    *,
    may_begin: bool = True,
) -> Appended:
    """Append a batch; `may_begin`: the coordinator has said that it may begin a transaction."""
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    pending = PendingAppend(log, data, header_of(data), done.set_result)
    if may_begin:
        pending.verified = log.verifying.setdefault(pending.header.producer_id, object())
    appender.append(pending)
    outcome = await done
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def batch(
    sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, transactional: bool = True
) -> bytes:
    return batch_of(
        Record(value=f"{producer_id}/{epoch}/{sequence}".encode()),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
    ).data


async def test_a_batch_begins_a_transaction_only_after_the_coordinator_has_confirmed_it(
    appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    with pytest.raises(InvalidTxnState):
        await add(appender, log, batch(0), may_begin=False)
    await add(appender, log, batch(0))
    await add(appender, log, batch(1), may_begin=False)
    with pytest.raises(InvalidTxnState):
        await add(appender, log, batch(2, transactional=False), may_begin=False)
    assert (log.high_watermark, log.last_stable_offset) == (2, 0)
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=True))
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)


async def test_a_marker_revokes_the_confirmation_even_if_no_transaction_was_open(
    appender: Appender, markers: MarkerWriter
) -> None:
    """In the older flow: a partition was added, its first batch is late, the transaction ends."""
    log = make_log()
    await add(appender, log, batch(0))
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=True))
    late = PendingAppend(log, batch(1), header_of(batch(1)), lambda _: None)
    word = late.verified = log.verifying.setdefault(PRODUCER, object())
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=False))
    assert log.high_watermark == 2, "the second marker had nothing to end"
    assert not late.is_verified
    assert log.verifying.get(PRODUCER) is not word
    with pytest.raises(InvalidTxnState):
        await add(appender, log, batch(1), may_begin=False)


async def test_a_marker_that_raises_the_epoch_is_written_once_and_fences_the_earlier_epoch(
    appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    await add(appender, log, batch(0))
    for _ in range(2):
        await markers.write(log, Marker(Producer(PRODUCER, 1), commit=True, raises_epoch=True))
    assert log.high_watermark == 2
    with pytest.raises(InvalidProducerEpoch):
        await add(appender, log, batch(1))
    with pytest.raises(InvalidProducerEpoch):
        await markers.write(log, Marker(Producer(PRODUCER, 0), commit=False))
    await add(appender, log, batch(0, epoch=1))
    await markers.write(log, Marker(Producer(PRODUCER, 1), commit=True, raises_epoch=True))
    assert log.transactions.has_open(PRODUCER, 1), "a marker of the one before ends nothing"


async def test_a_marker_of_an_earlier_coordinator_is_refused(
    engine: EmbeddedEngine, appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log(first_fresh=NOTHING_FRESH)
    await add(appender, log, batch(0))
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=True, coordinator_epoch=300))
    assert log.producers[PRODUCER].coordinator_epoch == 300
    await add(appender, log, batch(1))
    anew = make_log(log.topic, end=log.high_watermark, first_fresh=NOTHING_FRESH)
    await recover_transactions([engine], [anew])
    for seen in (log, anew):
        zombie = Marker(Producer(PRODUCER, 0), commit=True, coordinator_epoch=299)
        with pytest.raises(TransactionCoordinatorFenced):
            await markers.write(seen, zombie)
    successor = Marker(Producer(PRODUCER, 0), commit=False, coordinator_epoch=301)
    await markers.write(anew, successor)
    assert anew.transactions.aborted_between(0, 9) == [AbortedTransaction(PRODUCER, 2, 3)]


async def test_a_coordinator_that_repeats_a_marker_fences_its_predecessor(
    appender: Appender, markers: MarkerWriter
) -> None:
    """In the older flow the next transaction has the same epoch: a late marker could end it."""
    log = make_log()
    await add(appender, log, batch(0))
    for coordinator_epoch in (1, 1, 2):
        marker = Marker(Producer(PRODUCER, 0), True, coordinator_epoch)
        await markers.write(log, marker)
    assert log.high_watermark == 3, "the marker of the successor is written again"
    await add(appender, log, batch(1))
    with pytest.raises(TransactionCoordinatorFenced):
        await markers.write(log, Marker(Producer(PRODUCER, 0), True, coordinator_epoch=1))
    assert log.transactions.has_open(PRODUCER, 0)


class Gone:
    has_left = True


async def test_a_marker_whose_sender_disconnected_is_not_written(
    appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    await add(appender, log, batch(0))
    marker = Marker(Producer(PRODUCER, 0), commit=True)
    with pytest.raises(RequestTimedOut):
        await markers.write(log, marker, Gone())
    assert log.transactions.has_open(PRODUCER, 0)
    await markers.write(log, marker)
    assert not log.transactions.has_open(PRODUCER, 0)


async def test_the_next_transaction_is_refused_until_the_earlier_one_has_its_marker(
    appender: Appender,
) -> None:
    log = make_log()
    await add(appender, log, batch(0))
    with pytest.raises(InvalidTxnState):
        await add(appender, log, batch(0, epoch=1))


async def test_a_refused_block_changes_no_transaction(
    appender: Appender, markers: MarkerWriter, scripted: ScriptedEngine
) -> None:
    log = make_log()
    scripted.faults.append("refused")
    with pytest.raises(KafkaStorageError):
        await add(appender, log, batch(0))
    assert (log.transactions.open, log.last_stable_offset) == ({}, 0)
    await add(appender, log, batch(0))
    scripted.faults.append("refused")
    with pytest.raises(KafkaStorageError):
        await markers.write(log, Marker(Producer(PRODUCER, 0), commit=False))
    assert log.transactions.open == {PRODUCER: OpenTransaction(0, 0)}
    assert (log.last_stable_offset, log.transactions.aborted_between(0, 9)) == (0, [])
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=False))
    assert log.transactions.aborted_between(0, 9) == [AbortedTransaction(PRODUCER, 0, 1)]


async def test_raising_the_log_start_does_not_move_the_last_stable_offset_past_a_marker_in_flight(
    appender: Appender, markers: MarkerWriter, scripted: ScriptedEngine
) -> None:
    log = make_log()
    await add(appender, log, plain(b"a", b"b").data, may_begin=False)
    await add(appender, log, batch(0))
    scripted.gate.clear()
    scripted.insert_came.clear()
    ending = asyncio.create_task(markers.write(log, Marker(Producer(PRODUCER, 0), commit=True)))
    await scripted.insert_came.wait()
    log.begin_at(1)
    assert (log.last_stable_offset, log.high_watermark) == (2, 3)
    log.begin_at(3)
    assert log.last_stable_offset == 3, "never below the log start"
    scripted.gate.set()
    await ending
    assert log.last_stable_offset == 4


async def test_a_start_reads_back_open_and_aborted_transactions(
    engine: EmbeddedEngine, appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    await add(appender, log, batch(0, producer_id=1))
    await markers.write(log, Marker(Producer(1, 0), commit=False))
    await add(appender, log, batch(0, producer_id=2))
    await markers.write(log, Marker(Producer(2, 0), commit=True))
    await add(appender, log, batch(0, producer_id=3, epoch=4))
    await add(appender, log, batch(1, producer_id=3, epoch=4))
    assert len(await stored_values(engine, log)) == log.high_watermark == 6

    for log_start in (0, 5):  # with it, the first record of the open one is gone
        anew = make_log(log.topic, end=log.high_watermark)
        anew.begin_at(log_start)
        assert await recover_transactions([engine], [anew]) == []
        assert anew.transactions.open == {3: OpenTransaction(4, 4)}
        assert anew.last_stable_offset == max(4, log_start)
        aborted = [] if log_start else [AbortedTransaction(1, 0, 1)]
        assert anew.transactions.aborted_between(0, 9) == aborted

    past = make_log(log.topic, end=log.high_watermark)
    past.begin_at(6)
    repairs = await recover_transactions([engine], [past])
    assert (past.transactions.open, past.last_stable_offset) == ({}, 6)
    assert await shown_as_open(engine) == [[3, 4]]
    await store(engine, repairs)
    assert await shown_as_open(engine) == []


async def test_aborted_transactions_that_are_not_in_memory_are_read_from_the_table(
    engine: EmbeddedEngine,
) -> None:
    log, other = make_log(end=10**6), make_log(make_log().topic, end=10**6)
    known = [AbortedTransaction(n % 7, 10 * n, 10 * n + 5) for n in range(3 * ABORTED_KEPT)]
    for one in (log, other):
        await store(engine, [ended_rows(one, PRODUCER, 0, known)])
    anew = make_log(log.topic, end=10**6)

    await recover_transactions([engine], [anew])

    listed = known[-ABORTED_KEPT:]
    assert anew.transactions.aborted_between(0, 10**6) == listed
    assert anew.transactions.listed_from == listed[0].last_offset
    for first, end in ((0, 10**6), (1000, 1011), (995, 996), (996, 1000), (19_000, 21_000)):
        expected = [one for one in known if one.first_offset < end and one.last_offset >= first]
        stored = partial(ColdReader(OneShard(engine), 1 << 20).stored_aborted, anew)
        assert await anew.transactions.aborted_in_fetch(first, end, stored) == expected


async def shown_as_open(engine: EmbeddedEngine) -> list[list[Any]]:
    """The producer and the first offset of each."""
    return await engine.rows("SELECT producer_id, transaction_start FROM open_transactions")


async def store(engine: EmbeddedEngine, repairs: Iterable[tuple[TableRows, TableRows]]) -> None:
    for rows in (rows for repair in repairs for rows in repair if rows.rows):
        table = rows.table
        data = block(table, rows.rows)
        await engine.insert_block(0, table.name, table.column_list, data, str(uuid4()))


async def test_a_transaction_is_shown_as_open_from_its_first_record_to_its_marker(
    engine: EmbeddedEngine, appender: Appender, markers: MarkerWriter, scripted: ScriptedEngine
) -> None:
    log = make_log()
    scripted.faults += ["refused"]
    with pytest.raises(KafkaStorageError):
        await add(appender, log, batch(0))
    assert await shown_as_open(engine) == []
    scripted.faults += ["unknown though stored", "refused"]
    with pytest.raises(KafkaStorageError):
        await add(appender, log, batch(0))
    assert await shown_as_open(engine) == [[PRODUCER, 0]], "stored before the block"
    await add(appender, log, plain(b"a").data, may_begin=False)
    await add(appender, log, batch(0))
    assert await shown_as_open(engine) == [[PRODUCER, 1]]
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=False))
    assert await shown_as_open(engine) == []
    await add(appender, log, batch(1))
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=True))
    assert await shown_as_open(engine) == []
    aborted = "SELECT producer_id, transaction_start, last_offset FROM aborted_transactions"
    assert await engine.rows(aborted) == [[PRODUCER, 1, 2]]


async def only_marker(appender: Appender, log: PartitionLog, *, commit: bool) -> None:
    """A marker, after which the broker ends: the rows that follow it are missing."""
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    data = control_batch(PRODUCER, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0)
    appender.append(PendingMarker(log, data, header_of(data), told.set_result, commit=commit))
    assert isinstance(await told, Appended)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_start_ends_transactions_that_have_a_marker_and_stores_their_missing_rows(
    engine: EmbeddedEngine, appender: Appender, commit: bool
) -> None:
    log = make_log()
    await add(appender, log, batch(0))
    await only_marker(appender, log, commit=commit)
    assert await shown_as_open(engine) == [[PRODUCER, 0]]

    anew = make_log(log.topic, end=2)
    await store(engine, await recover_transactions([engine], [anew]))
    aborted = [] if commit else [AbortedTransaction(PRODUCER, 0, 1)]
    assert (anew.transactions.open, anew.last_stable_offset) == ({}, 2)
    assert anew.transactions.aborted_between(0, 9) == aborted
    assert await shown_as_open(engine) == []
    again = make_log(log.topic, end=2)
    assert await recover_transactions([engine], [again]) == []
    assert again.transactions.aborted_between(0, 9) == aborted


async def test_a_start_ends_transactions_without_records(
    engine: EmbeddedEngine, appender: Appender, scripted: ScriptedEngine
) -> None:
    log = make_log()
    scripted.faults += ["unknown though stored", "refused"]
    with pytest.raises(KafkaStorageError):
        await add(appender, log, batch(0))
    anew = make_log(log.topic)
    await store(engine, await recover_transactions([engine], [anew]))
    assert (anew.transactions.open, await shown_as_open(engine)) == ({}, [])
    assert anew.transactions.next_version(0, 0) > log.transactions.next_version(0, 0)


async def test_a_recent_record_is_shown_as_committed_only_when_its_marker_is_stored(
    engine: EmbeddedEngine, appender: Appender, markers: MarkerWriter
) -> None:
    """Of a transaction that began after it was read what is open."""
    log = make_log()
    await add(appender, log, batch(0))
    await engine.execute("TRUNCATE TABLE open_transaction_versions")
    shown = "SELECT count() FROM messages_committed"
    assert await engine.rows(shown) == [[0]]
    await markers.write(log, Marker(Producer(PRODUCER, 0), commit=True))
    assert await engine.rows(shown) == [[1]]
