"""States and blocks of the job `feed`, without Spark: who wins, and batches that come again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from brokerhouse.feeds.blocks import BlockCounts, Offsets, Phase
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.progress import Fenced
from brokerhouse.spark_jobs.feed import FeedTarget
from brokerhouse.spark_jobs.feed_replay import DeadLetters, ReplayTask
from brokerhouse.spark_jobs.feed_state import (
    FeedRegistry,
    SparkFeedProgress,
    TokenFeedRegistry,
    feed_id_of,
    open_registry,
)
from brokerhouse.spark_jobs.feed_task import FeedTask, PartitionBlocks
from brokerhouse.spark_jobs.feed_values import ValueScan
from brokerhouse.spark_jobs.feed_writer import SparkBlockWriter
from brokerhouse.spark_jobs.sql_client import SqlFailure, SqlServers, SqlUnavailable
from brokerhouse.storage.registry import Versioned
from tests.support.engine_process import EngineProcess
from tests.support.zookeeper import Keeper

TOPIC, TOPIC_ID = "events", "7f4f6a1e-0000-4000-8000-000000000001"
CHANGES = 15
ITEMS = {11: 300, 13: -1, 14: 301, 16: 302}
"""Offsets of records whose item does not fit."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("clickhouse") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def engine_with_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    directory = tmp_path_factory.mktemp("keeper")
    with (
        Keeper(directory / "keeper") as keeper,
        EngineProcess(directory / "data", keepers=[keeper.address]) as started,
    ):
        yield started


@pytest.fixture(params=["engine", pytest.param("engine_with_keeper", marks=pytest.mark.test_all)])
def registry(request: pytest.FixtureRequest) -> FeedRegistry:
    engine = request.getfixturevalue(request.param)
    _, made = open_registry(SqlServers.parse(engine.http))
    assert isinstance(made, TokenFeedRegistry) == (request.param == "engine")
    return made


def test_one_of_two_racing_writers_changes_a_version(registry: FeedRegistry) -> None:
    key = "race"
    assert registry.compare_and_set(key, None, "0")
    assert not registry.compare_and_set(key, None, "other")

    def writes(name: str) -> dict[int, bool]:
        """Versions, and whether it is known that this writer has made them."""
        made = {}
        for _ in range(CHANGES):
            found = registry.get(key)
            assert found is not None
            try:
                if registry.compare_and_set(key, found, f"{name}{found.version}"):
                    made[found.version + 1] = True
            except SqlFailure:  # too many others have changed it since
                made[found.version + 1] = False
        return made

    with ThreadPoolExecutor() as threads:
        one, two = threads.map(writes, ["a", "b"])
    last = registry.get(key)
    assert last is not None
    won = [version for made in (one, two) for version, known in made.items() if known]
    assert len(won) == len(set(won))
    assert {*one, *two} == set(range(2, last.version + 1))
    with suppress(SqlFailure):
        assert not registry.compare_and_set(key, Versioned("0", 1), "of a zombie")
    assert registry.get(key) == last


def test_a_version_whose_row_was_lost_is_written_with_another_token(engine: EngineProcess) -> None:
    servers, registry = open_registry(SqlServers.parse(engine.http))
    assert registry.compare_and_set("lost", None, "one")
    first = registry.get("lost")
    row = pa.table({"key": ["other"], "version": [1], "writer": ["w"], "value": ["v"]})
    servers.insert("registry", row, "lost/2/0")  # as a server that forgot the row, not the token
    assert registry.compare_and_set("lost", first, "two")
    assert registry.get("lost") == Versioned("two", 2)


@pytest.fixture
def task(engine: EngineProcess, request: pytest.FixtureRequest) -> FeedTask:
    name = "fed." + re.sub(r"\W+", "_", request.node.name)
    servers, registry = open_registry(SqlServers.parse(engine.http))
    target = FeedTarget(servers, name, feed_id_of(registry, name), Format.JSON, {}, {}, "")
    target.make("id UInt8, _offset Int64, item UInt8", "id", None, "id % 2")
    return FeedTask(servers, registry, target.read(), "one", {TOPIC: TOPIC_ID}, 4)


def batch(*offsets: int) -> pa.RecordBatch:
    """Records as Spark's Kafka source has them."""
    values = [
        json.dumps({"id": offset if offset != 3 else "none", "item": ITEMS.get(offset, 1)}).encode()
        for offset in offsets
    ]
    rows = [
        {"topic": TOPIC, "partition": 0, "offset": offset, "value": value}
        for offset, value in zip(offsets, values, strict=True)
    ]
    kinds: dict[str, Any] = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "value": pa.binary(),
    }
    return pa.RecordBatch.from_pylist(rows, pa.schema(kinds))


def scanned(task: FeedTask, *batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """As `parsed` has Spark do it, for the columns that the task knows."""
    for one in ValueScan(task.feed, "")(iter(batches)):
        names = ["rows" if name == "value" else name for name in one.schema.names]
        yield one.rename_columns(names)


def fed(task: FeedTask, *batches: pa.RecordBatch) -> dict[str, Any]:
    [result] = [row for one in task(scanned(task, *batches)) for row in one.to_pylist()]
    return {name: result[name] for name in ("rows", "dead_letters", "fenced")}


def stored(task: FeedTask) -> list[int]:
    rows = task.servers.rows(f"SELECT _offset FROM {task.feed.target} ORDER BY id")
    return [offset for (offset,) in rows]


def blocks(task: FeedTask) -> list[list[int]]:
    return task.servers.rows(
        "SELECT first_offset, end_offset FROM table_feed_blocks FINAL WHERE phase = 'after'"
        " AND first_offset >= 0 AND feed = {feed:String} GROUP BY ALL ORDER BY ALL",
        {"feed": task.feed.name},
    )


def test_batches_that_come_again_are_stored_once(task: FeedTask) -> None:
    assert fed(task, batch(0, 1, 2), batch(3, 4, 7)) == {"rows": 5, "dead_letters": 1, "fenced": ""}
    assert blocks(task) == [[0, 4], [4, 8]]
    nothing = {"rows": 0, "dead_letters": 0, "fenced": ""}
    for again in ([0, 1, 2, 3, 4, 7], [4, 7], [1, 2], [7]):
        assert fed(task, batch(*again)) == nothing
    assert fed(task, batch(2, 3, 4, 7, 9, 10)) == {**nothing, "rows": 2}
    assert blocks(task) == [[0, 4], [4, 8], [8, 11]]
    assert stored(task) == [0, 1, 2, 4, 7, 9, 10]


@pytest.mark.parametrize("when", ["before its insert", "after its insert"])
def test_a_block_that_a_failed_run_began_is_repeated(
    task: FeedTask, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SparkBlockWriter.write

    def fails(self: SparkBlockWriter, *arguments: Any, **more: Any) -> Any:
        if when == "after its insert":
            write(self, *arguments, **more)
        raise SqlUnavailable("the worker is gone")

    with monkeypatch.context() as patched:
        patched.setattr(SparkBlockWriter, "write", fails)
        patched.setattr("brokerhouse.spark_jobs.sql_client.ROUNDS", 1)
        with pytest.raises(SqlUnavailable):
            fed(task, batch(0, 1, 2, 3, 4))
    assert fed(replace(task, block_records=2), batch(0, 1, 2, 3, 4, 5, 6))["rows"] == 6
    assert blocks(task) == [[0, 4], [4, 6], [6, 7]]
    assert stored(task) == [0, 1, 2, 4, 5, 6]


def test_rows_that_a_killed_server_has_lost_are_stored_with_another_token(task: FeedTask) -> None:
    source = task.source(TOPIC, 0)
    progress = task.progress(source)
    progress.take_over(0)
    one = PartitionBlocks(task, source)
    one.add(pa.table(next(scanned(task, batch(0, 1)))))
    one.finish()
    # As if the server had noted the tokens, and kept the rows of one of two parts.
    state = f"{TOPIC_ID}/0/2-3"
    rows = pa.table({"id": pa.array([9], pa.uint8()), "_offset": [2]})
    progress.exists()
    feed_id = task.feed.feed_id
    insert = SqlServers.parse(task.servers.urls[0])
    insert._insert_at(insert.urls[0], task.feed.target, rows, f"{feed_id}/{state}")
    progress.begin(Offsets(2, 4))
    assert fed(task, batch(2, 4, 5)) == {"rows": 3, "dead_letters": 0, "fenced": ""}
    assert stored(task) == [0, 1, 2, 4, 5]


def test_a_run_that_was_taken_over_stores_nothing_more(task: FeedTask) -> None:
    source = task.source(TOPIC, 0)
    task.progress(source).take_over(0)
    assert fed(task, batch(0, 1))["rows"] == 2
    other = replace(task, feeder="two")
    other.progress(source).take_over(0)
    result = fed(task, batch(0, 1, 2, 4))
    assert result["rows"] == 0
    assert "has taken over partition 0 of topic events" in result["fenced"]
    assert fed(other, batch(0, 1, 2, 4))["rows"] == 2
    assert stored(task) == [0, 1, 2, 4]


def test_a_run_takes_over_while_the_one_before_is_changing_the_state(
    task: FeedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = task.source(TOPIC, 0)
    task.progress(source).take_over(0)
    one, two = task.progress(source), replace(task, feeder="two").progress(source)
    one.open()
    note = SparkFeedProgress._note

    def noted(self: SparkFeedProgress) -> None:
        note(self)
        if self is two and one.state.phase is Phase.AFTER:
            one.begin(Offsets(0, 2))  # between two's look at the state and its change

    with monkeypatch.context() as patched:
        patched.setattr(SparkFeedProgress, "_note", noted)
        two.take_over(0)
    assert (two.state.feeder, two.state.phase, two.state.epoch) == ("two", Phase.BEFORE, 2)
    with pytest.raises(Fenced):
        one.complete(BlockCounts())


def test_a_block_without_any_record_left_is_completed(task: FeedTask) -> None:
    source = task.source(TOPIC, 0)
    progress = task.progress(source)
    progress.take_over(5)
    progress.begin(Offsets(5, 9))
    PartitionBlocks(task, source).repeat_without_records()
    progress.exists()
    assert (progress.state.phase, progress.state.next_offset) == (Phase.AFTER, 9)


DEAD_LETTERS = range(11, 17)
FIXED, ANOTHER = "UInt16", "Int8"


class Killed(Exception):
    """The worker was."""


@contextmanager
def dying(patch: pytest.MonkeyPatch, where: type, name: str, when: str) -> Iterator[None]:
    """The worker is killed before or after it calls this."""
    done = getattr(where, name)

    def dies(*arguments: Any, **more: Any) -> None:
        if when == "after":
            done(*arguments, **more)
        raise Killed

    with patch.context() as patched:
        patched.setattr(where, name, dies)
        yield


def change(task: FeedTask, item: str) -> None:
    """The column `item` gets another type."""
    task.servers.execute(f"ALTER TABLE {task.feed.target} MODIFY COLUMN item {item}")


def taken_over(task: FeedTask, feeder: str) -> FeedTask:
    """Another run, with the columns that the table has now."""
    feed = task.feed
    target = FeedTarget(task.servers, feed.name, feed.feed_id, feed.format, {}, {}, "")
    made = replace(task, feed=target.read(), feeder=feeder)
    made.progress(made.source(TOPIC, 0)).take_over(0)
    return made


def replay_task(task: FeedTask, feeder: str, asked_ms: int = 2_000_000_000_000) -> ReplayTask:
    """Of another run."""
    made = taken_over(task, feeder)
    return ReplayTask(
        made.servers,
        made.registry,
        made.feed,
        made.feeder,
        made.topics,
        made.block_records,
        asked_ms,
    )


def replayed(task: ReplayTask, *batches: pa.RecordBatch) -> tuple[int, int]:
    """Rows, and records that are still dead letters."""
    dead = DeadLetters(task)(scanned(task, *batches))
    results = [row for one in task(dead) for row in one.to_pylist()]
    task.blocks(task.source(TOPIC, 0)).repeat_without_records()
    assert not any(row["fenced"] for row in results), results
    return sum(row["rows"] for row in results), sum(row["dead_letters"] for row in results)


def dead(task: FeedTask) -> list[list[Any]]:
    return task.servers.rows(
        "SELECT offset, error FROM dead_letters WHERE feed = {feed:String} ORDER BY offset",
        {"feed": task.feed.name},
    )


def items(task: FeedTask) -> list[list[int]]:
    return task.servers.rows(f"SELECT _offset, item FROM {task.feed.target} ORDER BY ALL")


def all_fed(task: FeedTask) -> pa.RecordBatch:
    records = batch(*DEAD_LETTERS)
    assert fed(task, records) == {"rows": 2, "dead_letters": 4, "fenced": ""}
    assert [offset for offset, _ in dead(task)] == list(ITEMS)
    return records


def check_replayed(task: FeedTask) -> None:
    assert items(task) == [[11, 300], [12, 1], [14, 301], [15, 1], [16, 302]]
    assert dead(task) == [[13, "item: -1 does not fit UInt16"]]


def test_a_table_without_the_newest_column_takes_dead_letters(task: FeedTask) -> None:
    """As an earlier version has made it."""
    execute = task.servers.execute
    execute("ALTER TABLE dead_letter_versions DROP COLUMN rows")
    try:
        records = all_fed(task)
        change(task, FIXED)
        assert replayed(replay_task(task, "two"), records) == (3, 1)
        check_replayed(task)
    finally:
        execute(
            "ALTER TABLE dead_letter_versions ADD COLUMN rows UInt32 DEFAULT toUInt32(replayed)"
        )


def test_dead_letters_that_fit_now_become_rows_once(task: FeedTask) -> None:
    records = all_fed(task)
    change(task, FIXED)
    # In blocks of two, so that the two batches are three blocks.
    small = replace(task, block_records=2)
    assert replayed(replay_task(small, "two"), records, records.slice(0, 0)) == (3, 1)
    check_replayed(task)
    assert replayed(replay_task(task, "three"), records) == (0, 0)
    assert replayed(replay_task(task, "four", 2_000_000_000_001), records) == (0, 1)
    assert replayed(replay_task(task, "five", 1), records) == (0, 0)
    check_replayed(task)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.test_all), "after"])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (SparkFeedProgress, "begin_replay"),
        (SparkBlockWriter, "_insert_rows"),
        pytest.param(SparkBlockWriter, "_dead_letters", marks=pytest.mark.test_all),
        pytest.param(SparkFeedProgress, "complete_replay", marks=pytest.mark.test_all),
    ],
)
def test_a_replay_that_was_killed_is_repeated_once(
    task: FeedTask, where: type, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = all_fed(task)
    change(task, FIXED)
    with pytest.raises(Killed), dying(monkeypatch, where, name, when):
        replayed(replay_task(task, "two"), records)
    with suppress(Killed), dying(monkeypatch, where, name, when):
        replayed(replay_task(task, "three"), records)
    replayed(replay_task(task, "four"), records)
    check_replayed(task)


def test_after_a_killed_replay_a_changed_table_gets_the_dead_letters_that_fit_it(
    task: FeedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = all_fed(task).slice(0, 3)  # 300 and -1, of which either type takes one
    change(task, FIXED)
    with pytest.raises(Killed), dying(monkeypatch, SparkBlockWriter, "_insert_rows", "after"):
        replayed(replay_task(task, "two"), records)
    assert [11, 300] in items(task)
    task.servers.execute(f"ALTER TABLE {task.feed.target} DROP COLUMN item")
    task.servers.execute(f"ALTER TABLE {task.feed.target} ADD COLUMN item {ANOTHER}")
    assert replayed(replay_task(task, "three"), records) == (1, 1)
    assert items(task) == [[12, 0], [13, -1], [15, 0]]
    assert [offset for offset, _ in dead(task)] == [11, 14, 16]


def test_dead_letters_whose_records_kafka_has_deleted_stay(
    task: FeedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = all_fed(task)
    change(task, FIXED)
    with pytest.raises(Killed), dying(monkeypatch, SparkBlockWriter, "_insert_rows", "after"):
        replayed(replay_task(task, "two"), records)
    assert replayed(replay_task(task, "three"), records.slice(0, 0)) == (0, 0)
    assert [offset for offset, _ in items(task)] == [12, 15]
    assert [offset for offset, _ in dead(task)] == list(ITEMS)
    fed(replace(task, feeder="three"), batch(17))
    assert items(task)[-1] == [17, 1]


@pytest.mark.parametrize(
    "name", ["_insert_rows", pytest.param("_dead_letters", marks=pytest.mark.test_all)]
)
def test_a_block_repeated_after_a_fix_leaves_no_old_dead_letter(
    task: FeedTask, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = batch(*DEAD_LETTERS)
    with pytest.raises(Killed), dying(monkeypatch, SparkBlockWriter, name, "after"):
        fed(replace(task, block_records=10), records)
    change(task, FIXED)
    fed(taken_over(task, "one"), records)
    check_replayed(task)
    assert replayed(replay_task(task, "two"), records) == (0, 1)
    check_replayed(task)


def test_a_run_that_was_taken_over_writes_no_dead_letter(
    task: FeedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = batch(*DEAD_LETTERS)
    task.progress(task.source(TOPIC, 0)).take_over(0)
    write = SparkBlockWriter._dead_letters

    def sleeps(*arguments: Any) -> None:
        """Until another run has done all there is."""
        with monkeypatch.context() as patched:
            patched.setattr(SparkBlockWriter, "_dead_letters", write)
            assert fed(taken_over(task, "two"), records)["dead_letters"] == 4
            change(task, FIXED)
            assert replayed(replay_task(task, "three"), records) == (3, 1)
        write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SparkBlockWriter, "_dead_letters", sleeps)
        assert "has taken over" in fed(replace(task, block_records=10), records)["fenced"]
    check_replayed(task)


def test_csv_fills_columns_of_any_type(task: FeedTask) -> None:
    name = "fed.csv"
    columns = "id UInt8, v Variant(UInt64, String), m Map(UInt8, String), _key Nullable(String)"
    feed_id = feed_id_of(task.registry, name)
    FeedTarget(task.servers, name, feed_id, Format.CSV, {}, {}, "").make(columns, "id", None, None)
    target = FeedTarget(task.servers, name, feed_id, Format.CSV, {}, {}, "")
    csv = replace(task, feed=target.read())
    values = [b'1,7,"{""1"":""a""}"', b'2,x,"{}"', b'3,"open', None, b"4,,{}"]
    records = pa.table(
        {
            "topic": [TOPIC] * 5,
            "partition": pa.array([0] * 5, pa.int32()),
            "offset": range(5),
            "key": ["k"] * 5,
            "value": pa.array(values, pa.binary()),
        }
    )
    assert fed(csv, *records.to_batches()) == {"rows": 3, "dead_letters": 1, "fenced": ""}
    shown = "id, variantType(v)::String, toString(v), mapValues(m), _key"
    assert task.servers.rows(f"SELECT {shown} FROM {name} ORDER BY id") == [
        [1, "UInt64", "7", ["a"], "k"],
        [2, "String", "x", [], "k"],
        [4, "None", "", [], "k"],
    ]
    assert dead(csv) == [[2, "not one line of CSV with the columns id, v, m"]]
