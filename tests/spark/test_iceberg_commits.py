"""The coordinator's state machine, without Kafka and without tables."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from brokerhouse.spark_jobs.iceberg.commit_buffer import CommitBuffer, Place
from brokerhouse.spark_jobs.iceberg.events import (
    Assignment,
    CommitComplete,
    DataComplete,
    DataFiles,
    MalformedEvent,
    WrittenFile,
    decoded,
    encoded,
)

A, B = ("orders", 0), ("orders", 1)
UUID = "of the table"


class Log:
    """The control topic as the coordinator reads it."""

    def __init__(self, partitions: int = 2) -> None:
        self.buffer = CommitBuffer(partitions, 10.0, 5.0)
        self.buffer.begin_at(0.0)
        self._offset = 0

    def files(self, commit: str, worker: str, *names: str, table: str = "t") -> None:
        found = tuple(WrittenFile(0, name.encode(), 0) for name in names)
        self._add(DataFiles(commit, worker, table, found, UUID))

    def complete(self, commit: str, worker: str, **latest: int | None) -> None:
        """`latest`: of partitions A and B."""
        places = {"A": A, "B": B}
        assigned = tuple(Assignment(*places[name], one) for name, one in latest.items())
        self._add(DataComplete(commit, worker, assigned))

    def skip(self, offsets: int) -> None:
        self._offset += offsets

    def _add(self, event: DataFiles | DataComplete) -> None:
        self.buffer.add(Place(0, self._offset), event)
        self._offset += 1

    def snapshots(
        self, table: str = "t", stored: int = 0, table_uuid: str = UUID
    ) -> list[list[bytes]]:
        found = self.buffer.snapshots(table, {0: stored}, table_uuid)
        return [[file.data_file for file in files] for files in found]


def test_a_commit_is_due_after_its_interval() -> None:
    buffer = CommitBuffer(1, 10.0, 5.0)
    buffer.begin_at(100.0)
    assert [buffer.is_due(now) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    buffer.begin("c", 110.0)
    assert not buffer.is_due(200.0)
    buffer.end(200.0)
    assert [buffer.is_due(now) for now in (209.0, 210.0)] == [False, True]


def test_a_commit_waits_until_the_answers_cover_all_partitions() -> None:
    log = Log()
    log.buffer.begin("c", 10.0)
    log.files("c", "one", "x")
    log.complete("c", "one", A=5)
    assert not log.buffer.is_ready(11.0)
    log.complete("c", "two", B=7)
    assert log.buffer.is_ready(11.0)
    assert log.snapshots() == [[b"x"]]


def test_a_commit_that_times_out_takes_the_files_that_are_there() -> None:
    log = Log()
    log.buffer.begin("c", 10.0)
    log.files("c", "one", "x")
    log.complete("c", "one", A=5)
    assert not log.buffer.is_ready(14.9)
    assert log.buffer.is_ready(15.0)
    assert log.snapshots() == [[b"x"]]
    assert log.buffer.valid_through() is None


def test_files_that_come_late_are_in_the_next_commit() -> None:
    log = Log()
    log.buffer.begin("c", 10.0)
    log.complete("c", "one", A=5)
    log.buffer.end(15.0)
    log.files("c", "two", "late")
    log.complete("c", "two", B=7)
    log.buffer.begin("d", 25.0)
    log.files("d", "one", "new")
    log.complete("d", "one", A=9)
    assert not log.buffer.is_ready(25.0)
    log.complete("d", "two", B=9)
    assert log.buffer.is_ready(25.0)
    assert sorted(chain(*log.snapshots())) == [b"late", b"new"]


def test_a_commit_waits_while_a_transaction_is_read_in_part() -> None:
    log = Log()
    log.buffer.begin("c", 10.0)
    log.complete("c", "one", A=5)
    log.files("c", "two", "half")
    assert not log.buffer.is_ready(100.0)
    log.complete("c", "two", B=5)
    assert log.buffer.is_ready(100.0)


def test_files_that_a_table_has_are_left_out() -> None:
    log = Log()
    log.files("c", "one", "x")
    log.files("c", "one", "y", table="other")
    log.complete("c", "one", A=5, B=6)
    log.files("d", "one", "z")
    log.complete("d", "one", A=7, B=8)
    assert log.buffer.tables() == ["other", "t"]
    assert log.snapshots(stored=3) == [[b"z"]]
    assert log.snapshots("other", stored=3) == []
    assert log.snapshots(stored=5) == []
    assert log.buffer.next_offsets == {0: 5}


def test_files_of_a_table_that_was_made_again_are_left_out() -> None:
    log = Log()
    log.files("c", "one", "x")
    log.complete("c", "one", A=5, B=6)
    assert log.snapshots(table_uuid="of the next table") == []
    assert log.snapshots() == [[b"x"]]


def test_files_of_the_same_partition_are_in_snapshots_in_their_order() -> None:
    log = Log()
    log.files("c", "one", "x")
    log.complete("c", "one", A=5)
    log.files("c", "two", "y")
    log.complete("c", "two", B=5)
    log.files("c", "three", "z")
    log.complete("c", "three", A=6)
    assert log.snapshots() == [[b"x", b"y"], [b"z"]]


def test_a_commit_that_failed_leaves_its_files_for_the_next() -> None:
    log = Log(1)
    log.buffer.begin("c", 10.0)
    log.files("c", "one", "x")
    log.complete("c", "one", A=5)
    log.buffer.give_up(11.0)
    assert not log.buffer.is_due(20.9)
    assert log.buffer.is_due(21.0)
    log.buffer.begin("d", 21.0)
    log.files("d", "one", "y")
    log.complete("d", "one", A=6)
    assert list(chain(*log.snapshots())) == [b"x", b"y"]


def test_valid_through_is_the_earliest_of_the_partitions_latest() -> None:
    log = Log()
    log.buffer.begin("c", 10.0)
    log.complete("c", "one", A=5)
    log.complete("c", "two", B=None)
    assert log.buffer.valid_through() is None
    log.complete("c", "three", B=9)
    assert log.buffer.valid_through() == 5


@pytest.mark.parametrize("seed", range(30))
def test_each_file_is_committed_once_wherever_coordinators_end(seed: int) -> None:
    """Transactions of workers are interleaved. A table has its offsets; the group has older ones if
    the coordinator ended before it stored them."""
    chance = random.Random(seed)
    events, wanted = interleaved_transactions(chance)
    table: list[bytes] = []
    stored: dict[int, int] = {}
    of_group = 0
    while of_group < len(events):
        buffer = CommitBuffer(3, 1.0, 1.0, next_offsets={0: of_group})
        for offset in range(of_group, len(events)):
            if chance.random() < 0.05:
                break
            buffer.add(Place(0, offset), events[offset])
            if buffer.commit_id is None:
                buffer.begin("c", 0.0)
            is_last = offset == len(events) - 1
            if (is_last or chance.random() < 0.4) and buffer.is_ready(9.0):
                if snapshots := buffer.snapshots("t", stored, UUID):
                    table += [file.data_file for files in snapshots for file in files]
                    stored = dict(buffer.next_offsets)
                if chance.random() < 0.3:
                    break
                of_group = buffer.next_offsets[0]
                buffer.end(0.0)
    assert sorted(table) == sorted(wanted)


def interleaved_transactions(
    chance: random.Random,
) -> tuple[list[DataFiles | DataComplete], list[bytes]]:
    events: list[DataFiles | DataComplete] = []
    wanted = []
    busy: set[str] = set()
    for number in range(60):
        worker = chance.choice("abc")
        if worker in busy and chance.random() < 0.5:
            busy.remove(worker)
            events.append(DataComplete("c", worker, (Assignment("orders", ord(worker), 1),)))
        else:
            busy.add(worker)
            wanted.append(str(number).encode())
            events.append(DataFiles("c", worker, "t", (WrittenFile(0, wanted[-1], 0),), UUID))
    events += [DataComplete("c", worker, ()) for worker in sorted(busy)]
    return events, wanted


def test_events_are_avro_and_bring_their_schema() -> None:
    event = DataFiles(
        "c", "w", "db.t", (WrittenFile(3, b"\0\xff", 0), WrittenFile(0, b"", 1)), UUID
    )
    assert decoded(encoded("group", event)) == ("group", event)
    complete = DataComplete("c", "w", (Assignment("o", 1, None), Assignment("o", 2, 7)))
    assert decoded(encoded("group", complete)) == ("group", complete)
    done = CommitComplete("c", None)
    assert decoded(encoded("g", done)) == ("g", done)
    assert encoded("g", done).startswith(b"Obj\x01")


@pytest.mark.parametrize(
    "value", [b"", b"Obj\x01", b"text", encoded("g", CommitComplete("c", 1))[:-3]]
)
def test_bytes_that_are_not_an_event_are_malformed(value: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decoded(value)
