"""The job `iceberg` through zombies and every failure that its design lists: each record once.

Workers run in this process and take turns, so that a test says who fails when.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from pyiceberg.exceptions import CommitFailedException

from brokerhouse.spark_jobs.iceberg import tables
from tests.support.iceberg_sink import IcebergSink
from tests.support.iceberg_steps import (
    COMMIT,
    Died,
    as_json,
    failing,
    put,
)

Make = Callable[..., IcebergSink]
NEVER_MS = 3_600_000


def has_id(sink: IcebergSink, number: int) -> bool:
    return number in sink.ids()


# --- delivery semantics


@pytest.mark.test_all
def test_zombie_worker_is_fenced(make: Make) -> None:
    """The design leaves this open; the generation of the group closes it."""
    sink = make(interval_ms=NEVER_MS)
    zombie = sink.start(0)
    put(sink, *as_json(1, 2))
    sink.run_until(lambda: 2 in zombie.positions.values(), "the zombie has rows in memory")
    sink.workers.remove(zombie)
    sink.expel(zombie)

    sink.change(interval_ms=200)
    sink.start(1)
    sink.run_until_rows(2)
    with pytest.raises(KafkaException):
        zombie.answer("late")
    zombie.close()
    put(sink, *as_json(3))
    sink.run_until_rows(3)
    assert sink.ids() == [1, 2, 3]


def test_zombie_coordinator_adds_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the table, and another one commits the same files before it does."""
    sink = make()
    put(sink, *as_json(1))
    sink.start()
    real = tables.commit
    others: list[int] = []

    def commit(table: Any, *more: Any) -> int:
        if not others:
            others.append(1)
            real(sink.catalog.load_table("db.t"), *more)
        return real(table, *more)

    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, commit)
        sink.run_until_rows(1)
        sink.run_until(lambda: sink.control_offsets() != {}, "the commit is complete")
    put(sink, *as_json(2))
    sink.run_until_rows(2)
    assert sink.ids() == [1, 2]


# --- recovery


def test_worker_fails_during_processing(make: Make) -> None:
    sink = make(interval_ms=NEVER_MS)
    worker = sink.start()
    put(sink, *as_json(1, 2))
    sink.run_until(lambda: 2 in worker.positions.values(), "rows are in memory")
    sink.stop(worker)
    sink.change(interval_ms=200)
    sink.start()
    sink.run_until_rows(2)
    assert sink.ids() == [1, 2]


def test_worker_fails_to_receive_begin_commit_and_its_files_are_in_the_next(make: Make) -> None:
    sink = make(2, timeout_ms=1000)
    first, second = sink.start(0), sink.start(1)
    sink.run_until(lambda: len(first.positions) == len(second.positions) == 1, "both have one")
    other = second if first.leads else first
    for partition in (0, 1):
        put(sink, *as_json(partition), partition=partition)
    sink.workers.remove(other)
    sink.run_until_rows(1)
    assert sink.ids() == [0]
    sink.workers.append(other)
    sink.run_until_rows(2)
    assert sink.ids() == [0, 1]


def test_coordinator_fails_while_it_waits_for_workers(make: Make) -> None:
    sink = make(2)
    first, second = sink.start(0), sink.start(1)
    sink.run_until(lambda: len(first.positions) == len(second.positions) == 1, "both have one")
    leader, other = (first, second) if first.leads else (second, first)
    put(sink, *as_json(1), partition=1)
    # A step may read it and answer at once; then its position is none again.
    sink.run_until(
        lambda: 1 in (*other.positions.values(), sink.source_offsets().get(1)), "a row is read"
    )
    leader.step()
    other.step()  # it may have answered; its leader has not read that
    sink.stop(leader)
    sink.expel(leader)
    sink.run_until_rows(1)
    assert sink.ids() == [1]


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.test_all), "after"])
def test_coordinator_fails_around_the_iceberg_commit(
    make: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    sink = make()
    put(sink, *as_json(1))
    worker = sink.start()
    real = tables.commit

    def commit(*more: Any) -> int:
        if moment == "after":
            real(*more)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, commit)
        with pytest.raises(Died):
            sink.run_until(lambda: False, "the coordinator dies")
    assert len(sink.ids()) == (moment == "after")
    sink.stop(worker)
    put(sink, *as_json(2))
    sink.start()
    sink.run_until_rows(2)
    assert sink.ids() == [1, 2]


@pytest.mark.parametrize(
    "error",
    [
        OSError("storage is away"),
        pytest.param(CommitFailedException("again"), marks=pytest.mark.test_all),
    ],
)
def test_coordinator_fails_to_commit_to_iceberg_and_the_next_commit_has_all(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sink = make()
    put(sink, *as_json(1))
    sink.start()
    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, failing(error))
        sink.run_until(lambda: sink.source_offsets() == {0: 1}, "files are sent")
        for _ in range(10):
            sink.step()
    assert sink.ids() == []
    put(sink, *as_json(2))
    sink.run_until_rows(2)
    assert sink.ids() == [1, 2]


def test_table_rolled_back_to_an_older_snapshot(make: Make) -> None:
    """What was committed since is not committed again by itself; what comes is."""
    sink = make()
    sink.start()
    for number in (1, 2):
        put(sink, *as_json(number))
        sink.run_until_rows(number)
    sink.run_until(lambda: sink.control_offsets()[0] >= 6 * number, "the offsets are stored")
    table = sink.table()
    assert table is not None
    first = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    put(sink, *as_json(3))
    sink.run_until(lambda: 3 in sink.ids(), "the next record")
    assert sink.ids() == [1, 3]


def test_table_that_others_write_to_as_well(make: Make) -> None:
    sink = make()
    sink.start()
    for number in range(3):
        put(sink, *as_json(number))
        sink.run_until(partial(has_id, sink, number), "a record")
        table = sink.table()
        assert table is not None
        table.append(pa.table({"id": [100 + number]}))
    assert sink.ids() == [0, 1, 2, 100, 101, 102]


def test_control_topic_that_was_made_again(make: Make) -> None:
    """Its offsets begin again with 0; nothing is taken for what the table has."""
    sink = make()
    put(sink, *as_json(1))
    worker = sink.start()
    sink.run_until_rows(1)
    sink.stop(worker)
    sink.make_control_topic_again()
    put(sink, *as_json(2))
    sink.start()
    sink.run_until_rows(2)
    assert sink.ids() == [1, 2]
