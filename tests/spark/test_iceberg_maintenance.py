"""The job `iceberg-maintenance`: rows stay as they are, and the sink finds what it has stored."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.types import LongType

from brokerhouse.spark_jobs.iceberg import expiry, rewriting, tables
from brokerhouse.spark_jobs.iceberg.rewriting import Bin, RewriteTask, Rewritten, rewrite, without
from brokerhouse.spark_jobs.iceberg.table_files import path_of
from tests.support import command_line
from tests.support.iceberg_changes import (
    NAME,
    OFFSETS_PROPERTY,
    ChangingTable,
    add_position_deletes,
    in_turn,
)

TARGET = 128 << 20
HOUR_MS = 3_600_000
DELETES = (DataFileContent.EQUALITY_DELETES, DataFileContent.POSITION_DELETES)


@pytest.fixture
def plain(tmp_path: Path) -> ChangingTable:
    return ChangingTable(tmp_path)


@pytest.fixture
def keyed(tmp_path: Path) -> ChangingTable:
    """Rows of it replace others."""
    return ChangingTable(tmp_path, keyed=True)


def put(number: int, value: str = "") -> dict[str, Any]:
    return {"id": number, "value": value, "op": "u"}


def insert(number: int, value: str = "") -> dict[str, Any]:
    return {"id": number, "value": value, "op": "c"}


def delete(number: int) -> dict[str, Any]:
    return {"id": number, "value": "", "op": "d"}


def values(table: ChangingTable) -> dict[int, str]:
    found = [(row["id"], row["value"]) for row in table.rows()]
    assert len(dict(found)) == len(found)
    return dict(found)


# --- small files


def test_small_files_become_one(plain: ChangingTable) -> None:
    for number in range(5):
        plain.commit({"id": number}, {"id": number + 100})
    before = plain.rows()
    found = rewrite(plain.catalog, NAME, TARGET, in_turn)
    assert (len(found.before), len(found.after)) == (5, 1)
    assert len(plain.live_files()) == 1
    assert plain.rows() == before
    snapshot = plain.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary["total-records"] == "10"
    assert snapshot.summary["total-data-files"] == "1"


def test_a_second_rewrite_changes_nothing(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2})
    rewrite(plain.catalog, NAME, TARGET, in_turn)
    before = plain.table.metadata_location
    assert rewrite(plain.catalog, NAME, TARGET, in_turn) == rewriting.Replaced()
    assert plain.table.metadata_location == before


def test_files_of_the_target_size_stay(plain: ChangingTable) -> None:
    plain.commit(*({"id": number, "text": os.urandom(50).hex()} for number in range(500)))
    [large] = plain.live_files()
    plain.commit({"id": 1001, "text": ""})
    plain.commit({"id": 1002, "text": ""})
    size = len(plain.table.io.new_input(large))
    found = rewrite(plain.catalog, NAME, size * 5 // 4, in_turn)
    assert (len(found.before), len(found.after)) == (2, 1)
    assert large in plain.live_files()


def test_bins_have_at_most_the_target_size(plain: ChangingTable) -> None:
    for number in range(6):
        plain.commit({"id": number})
    size = len(plain.table.io.new_input(plain.live_files()[0]))
    assert len(rewrite(plain.catalog, NAME, 3 * size + 10, in_turn).after) == 2
    assert plain.ids() == list(range(6))


def test_files_of_partitions_stay_apart(tmp_path: Path) -> None:
    changing = ChangingTable(tmp_path, partition_by=["kind"])
    for number in range(4):
        changing.commit({"id": number, "kind": "a"}, {"id": number + 10, "kind": "b"})
    changing.commit({"id": 99, "kind": "c"})
    assert len(rewrite(changing.catalog, NAME, TARGET, in_turn).after) == 2
    assert len(changing.live_files()) == 3
    assert changing.ids() == [0, 1, 2, 3, 10, 11, 12, 13, 99]
    assert changing.table.scan("kind == 'b'").to_arrow().num_rows == 4


def test_columns_that_came_later_are_kept(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    with plain.table.update_schema() as change:
        change.add_column("more", LongType())
    plain.commit({"id": 2, "more": 7})
    rewrite(plain.catalog, NAME, TARGET, in_turn)
    assert plain.rows() == [{"id": 1, "more": None}, {"id": 2, "more": 7}]


# --- deletes


def test_equality_deletes_are_applied_and_pyiceberg_reads_the_table(keyed: ChangingTable) -> None:
    keyed.commit(put(1, "a"), put(2, "b"), put(3, "c"))
    keyed.commit(put(2, "B"), delete(3))
    keyed.commit(put(4, "d"))
    with pytest.raises(ValueError, match="equality deletes"):
        keyed.rows()
    found = rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert len(found.deletes) == 3
    assert not keyed.live_files(DataFileContent.EQUALITY_DELETES)
    assert values(keyed) == {1: "a", 2: "B", 4: "d"}
    assert keyed.stored_offsets() == {0: 3}


def test_a_delete_does_not_apply_to_rows_of_its_own_commit_or_later(keyed: ChangingTable) -> None:
    keyed.commit(insert(1, "a"))
    keyed.commit(put(1, "b"))
    keyed.commit(delete(1))
    keyed.commit(insert(1, "c"))
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert values(keyed) == {1: "c"}


def test_a_file_whose_rows_are_all_deleted_goes(keyed: ChangingTable) -> None:
    keyed.commit(insert(1))
    keyed.commit(delete(1))
    found = rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert (len(found.before), len(found.after)) == (1, 0)
    assert keyed.rows() == []


def test_a_large_file_without_deleted_rows_is_not_written_again(keyed: ChangingTable) -> None:
    keyed.commit(*(insert(number, os.urandom(50).hex()) for number in range(100)))
    [large] = keyed.live_files()
    keyed.commit(delete(5000))
    size = len(keyed.table.io.new_input(large))
    found = rewrite(keyed.catalog, NAME, size, in_turn)
    assert (len(found.before), len(found.deletes)) == (0, 1)
    assert keyed.live_files() == [large]
    assert len(keyed.rows()) == 100


def test_deletes_without_a_partition_apply_everywhere(tmp_path: Path) -> None:
    """The partition does not follow from the key, so the row may be in any."""
    changing = ChangingTable(tmp_path, keyed=True, partition_by=["value"])
    changing.commit(insert(1, "a"), insert(2, "b"))
    changing.commit(insert(1, "b"))
    changing.commit({"id": 1, "value": "a", "op": "d"})
    rewrite(changing.catalog, NAME, TARGET, in_turn)
    assert [(row["id"], row["value"]) for row in changing.rows()] == [(2, "b")]


def test_a_delete_by_a_column_that_was_dropped_applies(keyed: ChangingTable) -> None:
    nested = {"n": {"x": 1}}
    keyed.commit({**insert(1, "a"), **nested}, {**insert(2, "b"), **nested})
    keyed.commit(delete(1))
    with keyed.table.update_schema(allow_incompatible_changes=True) as change:
        change.set_identifier_fields()
        change.update_column("id", required=False)
    with keyed.table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("id")
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert keyed.table.scan().to_arrow().to_pylist() == [{"value": "b", "op": "c", **nested}]


def test_position_deletes_are_applied(keyed: ChangingTable) -> None:
    keyed.commit(*map(insert, range(10)))
    add_position_deletes(keyed, keyed.live_files()[0], [3, 4])
    assert len(keyed.rows()) == 8
    found = rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert (len(found.before), len(found.after), len(found.deletes)) == (1, 1, 1)
    assert not any(map(keyed.live_files, DELETES))
    assert len(keyed.rows()) == 8


@pytest.mark.parametrize(
    ("kind", "found", "deleted"),
    [
        (pa.int64(), [1, None, 2, 1], [1, None]),
        (pa.string(), ["x", "", None, "y"], ["", None]),
        (pa.binary(16), [b"a" * 16, b"b" * 16], [b"a" * 16]),
        (pa.float64(), [1.5, float("nan"), -0.5], [float("nan")]),
        (pa.timestamp("us", "UTC"), [1, 2, None], [2]),
    ],
)
def test_rows_with_a_deleted_key_are_left_out(kind: pa.DataType, found: Any, deleted: Any) -> None:
    rows = pa.table({"k": pa.array(found, kind), "n": range(len(found))})
    keys = pa.table({"k": pa.array(deleted, kind)})
    same = {str(one) for one in deleted}
    wanted = [number for number, value in enumerate(found) if str(value) not in same]
    assert without(rows, ["k"], keys)["n"].to_pylist() == wanted


def test_keys_of_two_columns_are_compared_as_a_whole() -> None:
    rows = pa.table({"a": [1, 1, 2, None], "b": ["x", "y", "x", "y"], "n": range(4)})
    keys = pa.table({"a": [1, None], "b": ["y", "y"]})
    assert without(rows, ["a", "b"], keys)["n"].to_pylist() == [0, 2]


# --- others commit meanwhile


def test_an_append_during_a_rewrite_is_neither_lost_nor_doubled(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2})

    def beside(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
        done = in_turn(task, bins)
        plain.commit({"id": 3})
        return done

    rewrite(plain.catalog, NAME, TARGET, beside)
    assert plain.ids() == [1, 2, 3]
    assert plain.stored_offsets() == {0: 3}


def test_an_append_during_the_commit_of_a_rewrite_is_neither_lost_nor_doubled(
    plain: ChangingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2})
    waiting = [{"id": 3}, {"id": 4}]
    original = Table._do_commit

    def slow(self: Table, *arguments: Any, **named: Any) -> None:
        if waiting:
            row = waiting.pop()
            with monkeypatch.context() as undone:
                undone.setattr(Table, "_do_commit", original)
                plain.commit(row)
        original(self, *arguments, **named)

    monkeypatch.setattr(Table, "_do_commit", slow)
    found = rewrite(plain.catalog, NAME, TARGET, in_turn)
    assert not waiting
    assert len(found.after) == 1
    assert plain.ids() == [1, 2, 3, 4]
    assert len(plain.live_files()) == 3
    assert plain.stored_offsets() == {0: 4}


def test_a_commit_of_the_sink_that_began_before_a_rewrite_is_made_after_it(
    plain: ChangingTable,
) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2})
    late, files = plain.table, plain.written({"id": 3})
    rewrite(plain.catalog, NAME, TARGET, in_turn)
    with pytest.raises(CommitFailedException):
        tables.commit(late, [files], {})
    tables.commit(plain.table, [files], {})
    assert plain.ids() == [1, 2, 3]


def test_a_row_deleted_during_a_rewrite_does_not_come_back(keyed: ChangingTable) -> None:
    keyed.commit(insert(1, "a"), insert(2, "b"))
    keyed.commit(insert(3, "c"))

    def beside(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
        done = in_turn(task, bins)
        keyed.commit(delete(1), put(3, "C"))
        return done

    rewrite(keyed.catalog, NAME, TARGET, beside)
    assert len(keyed.live_files(DataFileContent.EQUALITY_DELETES)) == 1
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert values(keyed) == {2: "b", 3: "C"}


def test_a_rewrite_begins_again_when_its_files_were_rewritten(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2})
    runs: list[list[Rewritten]] = []

    def beside(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
        done = list(in_turn(task, bins))
        if not runs:
            rewrite(plain.catalog, NAME, TARGET, in_turn)
            plain.commit({"id": 3})
        runs.append(done)
        return done

    rewrite(plain.catalog, NAME, TARGET, beside)
    assert len(runs) == 2
    assert plain.ids() == [1, 2, 3]
    assert len(plain.live_files()) == 1
    [first] = runs[0]
    assert not Path(path_of(first.added[0].file_path)).exists()


def test_a_rewrite_begins_again_when_position_deletes_came(plain: ChangingTable) -> None:
    plain.commit({"id": 1}, {"id": 2})
    plain.commit({"id": 3})
    [target] = [path for path in plain.live_files() if rows_in(plain, path) == 2]
    runs: list[list[Rewritten]] = []

    def beside(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
        runs.append(list(in_turn(task, bins)))
        if len(runs) == 1:
            add_position_deletes(plain, target, [0])
        return runs[-1]

    rewrite(plain.catalog, NAME, TARGET, beside)
    assert len(runs) == 2
    assert plain.ids() == [2, 3]


# --- snapshots


def test_old_snapshots_expire_with_the_files_that_only_they_used(keyed: ChangingTable) -> None:
    keyed.commit(insert(1))
    keyed.commit(delete(1), insert(2))
    old = {Path(path_of(path)) for path in keyed.live_files()}
    old |= {Path(path_of(path)) for path in keyed.live_files(DataFileContent.EQUALITY_DELETES)}
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    before = keyed.stored_files()
    found = expiry.expire(keyed.catalog, NAME, future(), 1)
    assert found.snapshots == 2
    assert before - keyed.stored_files() == {Path(path_of(path)) for path in found.files}
    assert not any(path.exists() for path in old)
    assert keyed.ids() == [2]
    assert keyed.stored_offsets() == {0: 2}


def test_snapshots_that_are_young_or_among_the_last_stay(plain: ChangingTable) -> None:
    ids = [plain.commit({"id": number}) for number in range(4)]
    assert expiry.expire(plain.catalog, NAME, 0, 1) == expiry.Expired()
    assert expiry.expire(plain.catalog, NAME, future(), 3).snapshots == 1
    assert [one.snapshot_id for one in plain.table.snapshots()] == ids[1:]
    assert plain.ids() == [0, 1, 2, 3]


def test_tags_and_branches_stay(plain: ChangingTable) -> None:
    ids = [plain.commit({"id": number}) for number in range(4)]
    plain.table.manage_snapshots().create_tag(ids[0], "kept").create_branch(ids[1], "b").commit()
    assert expiry.expire(plain.catalog, NAME, future(), 1).snapshots == 1
    assert {one.snapshot_id for one in plain.table.snapshots()} == {ids[0], ids[1], ids[3]}
    assert len(plain.table.scan(snapshot_id=ids[0]).to_arrow()) == 1


def test_the_sink_finds_its_offsets_after_its_snapshot_has_expired(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2}, properties={"other": "1"})
    plain.commit({"id": 3}, properties={"other": "2"})
    expiry.expire(plain.catalog, NAME, future(), 1)
    assert plain.stored_offsets() == {0: 1}
    assert plain.ids() == [1, 2, 3]
    plain.commit({"id": 4}, properties={"other": "3"})
    expiry.expire(plain.catalog, NAME, future(), 1)
    assert plain.stored_offsets() == {0: 1}


def test_offsets_are_not_carried_over_newer_ones(plain: ChangingTable) -> None:
    for number in range(3):
        plain.commit({"id": number})
    expiry.expire(plain.catalog, NAME, future(), 1)
    assert plain.stored_offsets() == {0: 3}
    assert len(plain.table.snapshots()) == 1


def test_snapshots_expire_beside_a_commit(
    plain: ChangingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.commit({"id": 1})
    plain.commit({"id": 2}, properties={"other": "1"})
    original, waiting = Table._do_commit, [{"id": 3}]

    def slow(self: Table, *arguments: Any, **named: Any) -> None:
        if waiting:
            plain.commit(waiting.pop())
        original(self, *arguments, **named)

    monkeypatch.setattr(Table, "_do_commit", slow)
    expiry.expire(plain.catalog, NAME, future(), 1)
    assert plain.ids() == [1, 2, 3]
    assert plain.stored_offsets() == {0: 3}


# --- orphans


def test_orphans_are_deleted_when_they_are_old(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    plain.written({"id": 2})
    plain.commit({"id": 3})
    before = plain.stored_files()
    set_age(before, 0)  # files have the times of the machine's clock, which may be another one
    later = time.time_ns() // 1_000_000 + 10
    assert expiry.orphans(plain.catalog, NAME, later, HOUR_MS) == {}
    set_age(before, 2)
    [(orphan, size)] = expiry.orphans(plain.catalog, NAME, later, HOUR_MS).items()
    assert size > 0
    expiry.delete_files(plain.catalog, NAME, [orphan])
    assert before - plain.stored_files() == {Path(path_of(orphan))}
    assert plain.ids() == [1, 3]


def test_no_file_of_any_snapshot_is_an_orphan(keyed: ChangingTable) -> None:
    keyed.commit(insert(1))
    first = keyed.commit(delete(1), insert(2))
    keyed.table.manage_snapshots().create_tag(first, "kept").commit()
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    set_age(keyed.stored_files(), 100)
    later = time.time_ns() // 1_000_000 + 10
    assert expiry.orphans(keyed.catalog, NAME, later, HOUR_MS) == {}


def test_the_time_in_which_the_sink_was_stopped_does_not_count(plain: ChangingTable) -> None:
    """Its last files are named on the control topic, and it commits them when it goes on."""
    plain.commit({"id": 1})
    waiting = plain.written({"id": 2})
    plain.commit({"id": 3}, properties={"other": "1"})
    set_age(plain.stored_files(), 0)
    later = time.time_ns() // 1_000_000 + 100 * HOUR_MS
    assert expiry.orphans(plain.catalog, NAME, later, HOUR_MS) == {}
    committed = expiry.sink_properties(plain.table.metadata)[OFFSETS_PROPERTY].time_ms
    expiry.expire(plain.catalog, NAME, future(), 1)
    carried = expiry.sink_properties(plain.table.metadata)[OFFSETS_PROPERTY]
    assert carried.time_ms == committed
    assert not expiry.orphans(plain.catalog, NAME, later, HOUR_MS)
    tables.commit(plain.table, [waiting], {})
    assert plain.ids() == [1, 2, 3]


def test_a_table_without_snapshots_keeps_its_files(plain: ChangingTable) -> None:
    plain.written({"id": 1})
    set_age(plain.stored_files(), 100)
    assert expiry.orphans(plain.catalog, NAME, time.time_ns() // 1_000_000, HOUR_MS) == {}


def test_files_of_a_table_in_a_subdirectory_are_not_orphans(plain: ChangingTable) -> None:
    plain.commit({"id": 1})
    other = plain.location / "t2" / "data" / "x.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    set_age([other], 100)
    later = time.time_ns() // 1_000_000 + 10
    assert expiry.orphans(plain.catalog, NAME, later, HOUR_MS) == {}


# --- the command


@pytest.mark.usefixtures("spark")
def test_the_command_rewrites_files_expires_snapshots_and_deletes_orphans(
    keyed: ChangingTable,
) -> None:
    keyed.commit(insert(1, "a"), insert(2, "b"))
    keyed.commit(put(2, "B"))
    keyed.written(insert(7))
    set_age(keyed.stored_files(), 100)
    before = keyed.stored_files()
    arguments = (
        *shlex.split(
            f"jobs run iceberg-maintenance --catalog {keyed.directory} --table {NAME}"
            " --retain 0 --orphans-older-than 2h --json"
        ),
    )
    preview = command_line.run(*arguments, "--dry-run")
    assert preview.returncode == 0, preview.stderr
    assert keyed.stored_files() == before

    ended = command_line.run(*arguments)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert {row["what"]: row["files"] for row in found["rows"]} == {
        "data files replaced": 2,
        "data files written": 1,
        "delete files applied": 1,
        "2 snapshots expired": 8,
        "orphans deleted": 1,
    }
    assert values(keyed) == {1: "a", 2: "B"}
    assert keyed.stored_offsets() == {0: 2}


def test_a_table_that_does_not_exist_is_named(plain: ChangingTable) -> None:
    arguments = ("--catalog", str(plain.directory), "--table", "db.missing")
    ended = command_line.run("jobs", "run", "iceberg-maintenance", *arguments)
    assert ended.returncode == 1
    assert "there is no table db.missing" in ended.stderr


# --- parts of tests


def future() -> int:
    return time.time_ns() // 1_000_000 + HOUR_MS


def set_age(files: Iterable[Path], hours: float) -> None:
    then = time.time() - hours * 3600
    for file in files:
        os.utime(file, (then, then))


def rows_in(table: ChangingTable, location: str) -> int:
    found = [task.file for task in table.table.scan().plan_files()]
    return sum(file.record_count for file in found if file.file_path == location)
