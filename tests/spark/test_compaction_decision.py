"""Spark decides about hundreds of random histories at once, as the model does."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.spark_jobs.compaction import PRODUCERS, RECORDS, TARGETS, decide
from brokerhouse.spark_jobs.compaction_batches import RemovalWriter, ranges_of
from brokerhouse.spark_jobs.compaction_targets import CompactionTarget
from tests.support.compaction_model import History, Row, Rules, decided, random_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES = 300
NOW_MS = 1_000_000
TIMES = [NOW_MS - ago for ago in (900_000, 500_000, 50_000, 5_000, 500)]


def random_history(seed: int) -> tuple[History, Rules]:
    chance = random.Random(seed)
    rows = random_rows(chance, chance.randint(1, 40), 0, TIMES, transactions=seed % 3 == 0)
    kept = [row for row in rows[:-1] if chance.random() > 0.2]  # earlier runs left holes
    marks = [(NOW_MS - chance.choice([10, 10_000, 100_000]), chance.randint(0, 40))]
    return History([*kept, rows[-1]], marks), Rules(
        NOW_MS,
        min_lag_ms=chance.choice([0, 0, 1_000, 100_000]),
        retention_ms=chance.choice([0, 1_000, 50_000]),
        retry_ms=chance.choice([0, 1_000, 100_000]),
        known_ms=chance.choice([0, 10_000, 10**6]),
    )


def records_of(number: int, history: History, rules: Rules) -> list[tuple[object, ...]]:
    """As the job reads them, with whether each stays for its age."""
    return [
        (
            number,
            row.offset,
            row.key,
            row.value is None,
            len(row.key or b"") + len(row.value or b""),
            row == history.rows[-1]
            or (row.producer >= 0 and row.at_ms > rules.now_ms - rules.retry_ms),
            row.producer,
            row.transactional,
            row.marker,
        )
        for row in history.rows
    ]


def producers_of(number: int, history: History, rules: Rules) -> list[tuple[int, int]]:
    last: dict[int, Row] = {}
    newest: dict[int, int] = {}
    for row in history.rows:
        if row.producer >= 0 and row.marker is None:
            last[row.producer] = row
            newest[row.producer] = max(newest.get(row.producer, 0), row.at_ms)
    return [
        (number, last[one].offset) for one in last if newest[one] > rules.now_ms - rules.known_ms
    ]


def test_spark_decides_as_the_model_does(spark: SparkSession) -> None:
    records: list[tuple[object, ...]] = []
    producers: list[tuple[int, int]] = []
    targets = []
    expected = {}
    for number in range(HISTORIES):
        history, rules = random_history(number)
        expected[number] = decided(history, rules)
        records += records_of(number, history, rules)
        producers += producers_of(number, history, rules)
        due = [end for at_ms, end in history.marks if at_ms <= rules.now_ms - rules.retention_ms]
        targets.append((number, expected[number].bound, max(due, default=0), 10))
    all_records = spark.createDataFrame(records, RECORDS)
    rows = decide(
        all_records,
        all_records,
        spark.createDataFrame(producers, PRODUCERS),
        spark.createDataFrame(targets, TARGETS),
    ).collect()

    goes: dict[int, set[int]] = {number: set() for number in expected}
    blocked: dict[int, list[int]] = {number: [] for number in expected}
    for row in rows:
        if row["blocked"]:
            blocked[row["target"]].append(row["offset"])
        else:
            goes[row["target"]].add(row["offset"])
    assert goes == {number: set(one.goes) for number, one in expected.items()}
    assert {
        number: min(found, default=expected[number].bound) for number, found in blocked.items()
    } == {number: one.tombstones_end for number, one in expected.items()}
    # The histories are not trivial.
    assert sum(map(len, goes.values())) > 1000
    assert sum(map(len, blocked.values())) > 20


class Writings:
    """Stands in for the servers: keeps what is inserted."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, object]] = {}

    def insert(self, table: str, rows: pa.Table, token: str) -> int:
        assert table == "compaction_removals"
        (row,) = rows.to_pylist()
        assert self.rows.setdefault(token, row) == row, "a token stands for one batch"
        return 1


ROWS = pa.schema(
    [
        ("target", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("tombstone", pa.bool_()),
        ("superseded", pa.bool_()),
        ("blocked", pa.bool_()),
        ("region", pa.int64()),
    ]
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.booleans()), max_size=60),
    st.integers(1, 7),
)
def test_batches_have_every_row_once_and_a_repeated_task_writes_the_same(
    rows: list[tuple[int, int, bool]], chunk_rows: int
) -> None:
    unique = {(target, offset): blocked for target, offset, blocked in rows}
    ordered = [(target, offset, blocked) for (target, offset), blocked in sorted(unique.items())]
    targets = tuple(CompactionTarget(f"t{n}", str(uuid.uuid4()), n, 0, 300, 300) for n in range(3))
    writings = Writings()
    write = RemovalWriter(str(uuid.uuid4()), targets, writings)  # type: ignore[arg-type]  # only insert
    columns = zip(
        *[
            (target, offset, 3, offset % 2 == 0, offset % 3 == 0, blocked, offset // 50)
            for target, offset, blocked in ordered
        ],
        strict=True,
    )
    arrays = [list(column) for column in columns] or [[] for _ in ROWS]
    table = pa.table(arrays, schema=ROWS)
    told = [
        row
        for one in write(iter(table.to_batches(max_chunksize=chunk_rows)))
        for row in one.to_pylist()
    ]
    list(write(iter(table.to_batches(max_chunksize=13))))  # again, cut otherwise

    found = [
        (row["partition"], offset)
        for row in writings.rows.values()
        for one in row["ranges"]  # type: ignore[attr-defined]
        for offset in range(one["first"], one["last"] + 1)
    ]
    goes = [(target, offset) for target, offset, blocked in ordered if not blocked]
    assert sorted(found) == goes
    assert sum(one["superseded"] for one in told) == sum(offset % 3 == 0 for _, offset in goes)
    assert sum(one["tombstones"] for one in told) == sum(offset % 3 != 0 for _, offset in goes)
    assert sum(one["bytes"] for one in told) == 3 * len(goes)
    for number in range(3):
        first = [
            one["first_blocked"]
            for one in told
            if one["target"] == number and one["first_blocked"] is not None
        ]
        blocked = [offset for target, offset, blocked in ordered if blocked and target == number]
        assert min(first, default=None) == min(blocked, default=None)


@given(st.sets(st.integers(0, 50)))
def test_ranges_are_runs_without_a_gap(offsets: set[int]) -> None:
    ranges = ranges_of(np.array(sorted(offsets), np.int64)).tolist()
    assert [o for first, last in ranges for o in range(first, last + 1)] == sorted(offsets)
    assert all(b[0] > a[1] + 1 for a, b in pairwise(ranges))
