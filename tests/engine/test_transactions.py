"""Transactions of a partition: what its lane accepts, what is stable, what a start reads back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from broker.log.appender import Appender
from broker.log.block import Appended, Outcome, PendingAppend
from broker.log.partition import PartitionLog
from broker.log.transaction_recovery import recover_transactions
from broker.log.transactions import AbortedTransaction, OpenTransaction
from broker.transaction_markers import MarkerWriter
from coordinator.transaction_states import Producer
from protocol.errors import InvalidProducerEpoch, InvalidTxnState, KafkaError, KafkaStorageError
from storage.embedded import EmbeddedEngine
from storage.row_lane import RowLane
from tests.support.log_parts import (
    LANES,
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
    yield MarkerWriter(appender, rows)
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


async def test_a_batch_begins_a_transaction_only_on_the_coordinators_word(
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
    await markers.write(log, Producer(PRODUCER, 0), commit=True)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)


async def test_a_marker_makes_the_coordinators_word_void_even_if_nothing_was_written(
    appender: Appender, markers: MarkerWriter
) -> None:
    """In the older flow: a partition was added, its first batch is late, the transaction ends."""
    log = make_log()
    await add(appender, log, batch(0))
    await markers.write(log, Producer(PRODUCER, 0), commit=True)
    late = PendingAppend(log, batch(1), header_of(batch(1)), lambda _: None)
    word = late.verified = log.verifying.setdefault(PRODUCER, object())
    await markers.write(log, Producer(PRODUCER, 0), commit=False)
    assert log.high_watermark == 2, "the second marker had nothing to end"
    assert not late.is_verified
    assert log.verifying.get(PRODUCER) is not word
    with pytest.raises(InvalidTxnState):
        await add(appender, log, batch(1), may_begin=False)


async def test_a_marker_that_raises_the_epoch_is_written_once_and_fences_what_was_before(
    appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    await add(appender, log, batch(0))
    for _ in range(2):
        await markers.write(log, Producer(PRODUCER, 1), commit=True, raises_epoch=True)
    assert log.high_watermark == 2
    with pytest.raises(InvalidProducerEpoch):
        await add(appender, log, batch(1))
    with pytest.raises(InvalidProducerEpoch):
        await markers.write(log, Producer(PRODUCER, 0), commit=False)
    await add(appender, log, batch(0, epoch=1))
    await markers.write(log, Producer(PRODUCER, 1), commit=True, raises_epoch=True)
    assert log.transactions.has_open(PRODUCER, 1), "a marker of the one before ends nothing"


async def test_the_next_transaction_waits_for_the_marker_of_the_one_before(
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
        await markers.write(log, Producer(PRODUCER, 0), commit=False)
    assert log.transactions.open == {PRODUCER: OpenTransaction(0, 0)}
    assert (log.last_stable_offset, log.transactions.aborted_between(0, 9)) == (0, [])
    await markers.write(log, Producer(PRODUCER, 0), commit=False)
    assert log.transactions.aborted_between(0, 9) == [AbortedTransaction(PRODUCER, 0, 1)]


async def test_a_log_start_that_is_raised_shows_nothing_of_a_block_on_its_way(
    appender: Appender, markers: MarkerWriter, scripted: ScriptedEngine
) -> None:
    log = make_log()
    await add(appender, log, plain(b"a", b"b").data, may_begin=False)
    await add(appender, log, batch(0))
    scripted.gate.clear()
    scripted.insert_came.clear()
    ending = asyncio.create_task(markers.write(log, Producer(PRODUCER, 0), commit=True))
    await scripted.insert_came.wait()
    log.begin_at(1)
    assert (log.last_stable_offset, log.high_watermark) == (2, 3)
    log.begin_at(3)
    assert log.last_stable_offset == 3, "never below the log start"
    scripted.gate.set()
    await ending
    assert log.last_stable_offset == 4


async def test_a_start_reads_back_what_is_open_and_what_was_aborted(
    engine: EmbeddedEngine, appender: Appender, markers: MarkerWriter
) -> None:
    log = make_log()
    await add(appender, log, batch(0, producer_id=1))
    await markers.write(log, Producer(1, 0), commit=False)
    await add(appender, log, batch(0, producer_id=2))
    await markers.write(log, Producer(2, 0), commit=True)
    await add(appender, log, batch(0, producer_id=3, epoch=4))
    await add(appender, log, batch(1, producer_id=3, epoch=4))
    assert len(await stored_values(engine, log)) == log.high_watermark == 6

    for log_start in (0, 5):  # with it, the first record of the open one is gone
        anew = make_log(log.topic, end=log.high_watermark)
        anew.begin_at(log_start)
        await recover_transactions(engine, [anew])
        assert anew.transactions.open == {3: OpenTransaction(4, 4)}
        assert anew.last_stable_offset == max(4, log_start)
        aborted = [] if log_start else [AbortedTransaction(1, 0, 1)]
        assert anew.transactions.aborted_between(0, 9) == aborted

    past = make_log(log.topic, end=log.high_watermark)
    past.begin_at(6)
    await recover_transactions(engine, [past])
    assert (past.transactions.open, past.last_stable_offset) == ({}, 6)
