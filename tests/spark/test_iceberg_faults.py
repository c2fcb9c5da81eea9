"""The job `iceberg` with records and tables that are not as they should be.

One bad record is a dead letter and one bad table leaves the others alone; a change of a table under
way loses and doubles nothing. Workers run in this process, and are started again when they fail.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from brokerhouse.feeds.routing import RouteBy
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.worker import SinkEnds, SinkWorker, is_fenced
from brokerhouse.spark_jobs.sql_client import SqlServers
from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.engine_process import EngineProcess
from tests.support.iceberg_sink import IcebergSink, WorkerProcess, operations, produce, route
from tests.support.iceberg_steps import COMMIT, as_json, changed_rows, dead_letters, failing, put
from tests.support.server_process import free_port
from tests.support.small_disk import MIB, in_a_mount_namespace, small_disk
from tests.support.sql_client import PASSWORD, USER
from tests.support.typed_tables import SETTINGS
from tests.support.waiting import until

Make = Callable[..., IcebergSink]
LIMIT_S = 60.0
GROUPS = {"group_initial_rebalance_delay_ms": "0", "group_min_session_timeout_ms": "500"}
ID = NestedField(1, "id", LongType())
KEY = NestedField(1, "id", LongType(), required=True)


@pytest.fixture
def make(sink_broker: BrokerProcess, tmp_path: Path, topic: str) -> Iterator[Make]:
    made: list[IcebergSink] = []

    def make_sink(*more_topics: str, **more: Any) -> IcebergSink:
        topics = dict.fromkeys([topic, *more_topics], 1)
        for name in topics:
            create_topic(sink_broker.kafka, name, 1)
        made.append(IcebergSink(sink_broker, tmp_path, topics, **more))
        return made[-1]

    yield make_sink
    for sink in made:
        sink.stop()


def run_until(sink: IcebergSink, done: Callable[[], bool], what: str) -> list[str]:
    """Workers that fail are started again, as by Spark. Returns how they failed."""
    failures: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, f"{what}: {failures}"
        try:
            if not sink.workers:
                sink.start()
            sink.step()
        except Exception as error:
            failures.append(str(error))
            sink.stop()
    return failures


def until_ids(sink: IcebergSink, *ids: int, table: str = "db.t") -> list[str]:
    wanted = sorted(ids)
    return run_until(sink, lambda: sink.ids(table) == wanted, f"{wanted} in {table}")


def until_read(sink: IcebergSink, offset: int) -> None:
    """A worker has the records in memory."""
    run_until(sink, lambda: any(offset in one.positions.values() for one in sink.workers), "a read")


def errors(sink: IcebergSink) -> list[str]:
    return [row["error"] for row in dead_letters(sink)]


def with_files_sent(
    sink: IcebergSink, monkeypatch: pytest.MonkeyPatch, offset: int, change: Callable[[], None]
) -> None:
    """Change something while files wait for the coordinator."""
    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, failing(OSError("storage is away")))
        run_until(sink, lambda: sink.source_offsets() == {0: offset}, "files are sent")
        change()


# --- records


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"": 1}, "'': no column can have this name"),
    ({"o": {"\ud800": 1}}, "'o': no column can have this name"),
    ({"o": json.loads('{"a":' * 60 + "1" + "}" * 60)}, "'o': nested more than 50 times"),
    ({"o": json.loads("[" * 60 + "]" * 60)}, "'o': nested more than 50 times"),
]


def test_fields_that_cannot_have_a_column_make_a_dead_letter(make: Make) -> None:
    sink = make(evolve=True)
    for number, (fields, _) in enumerate(BAD_FIELDS):
        put(sink, *as_json(100, **fields), *as_json(2 * number))
        put(sink, *as_json(100, **fields), *as_json(2 * number + 1))
    assert until_ids(sink, *range(2 * len(BAD_FIELDS))) == []
    assert errors(sink) == [error for _, error in BAD_FIELDS for _ in range(2)]


@pytest.mark.test_all
def test_a_thousand_columns_and_strange_field_names_are_added(make: Make) -> None:
    sink = make(evolve=True)
    names = ["a.b", "A", "a", " ", "a\nb", "\0", "x" * 5000, "ü", "a/b", *map(str, range(1000))]
    put(sink, *as_json(1), json.dumps({"id": 2, **dict.fromkeys(names, 7)}))
    assert until_ids(sink, 1, 2) == []
    [row] = [row for row in sink.rows() if row["id"] == 2]
    assert row == {"id": 2, **dict.fromkeys(names, 7)}


def test_text_that_is_not_unicode_makes_a_dead_letter(make: Make) -> None:
    sink = make()
    sink.create("db.t", Schema(ID, NestedField(2, "v", StringType())))
    put(sink, r'{"id": 1, "v": {"a": "\ud800"}}', r'{"id": 2, "v": "\ud800"}', *as_json(3))
    assert until_ids(sink, 3) == []
    assert len(errors(sink)) == 2


def test_records_without_values_cannot_make_a_table(make: Make) -> None:
    sink = make()
    put(sink, "{}", '{"id": null}')
    run_until(sink, lambda: sink.source_offsets() == {0: 2}, "both are read")
    put(sink, '{"id": 1, "l": [], "o": {}}', '{"id": 2, "l": ["a"]}', '{"id": null}', None)
    run_until(sink, lambda: sink.row_count() == 3, "rows")
    assert errors(sink) == ["there is no table db.t yet, and no value to make it by"] * 2


BAD_NAMES = ["", ".", "..", "a.b", "a..b", "a/b", "/etc/a", "\0", "\ud800", "x" * 300]


def test_a_record_routed_to_an_impossible_table_name_is_a_dead_letter(make: Make) -> None:
    sink = make(names={}, database="db", route=route(RouteBy.FIELD, "k"))
    for number, name in enumerate(BAD_NAMES):
        put(sink, *as_json(number, k=name), *as_json(100 + number, k="good-1"))
    assert until_ids(sink, *range(100, 110), table="db.good-1") == []
    assert len(errors(sink)) == len(BAD_NAMES)
    assert all(error.startswith("no table can be called ") for error in errors(sink))
    assert [path.name for path in (sink.warehouse / "db").iterdir()] == ["good-1"]


def test_aborted_records_and_markers_are_skipped(make: Make, sink_broker: BrokerProcess) -> None:
    sink = make()
    [topic, *_] = sink.settings.topics
    producer = Producer({"bootstrap.servers": sink_broker.kafka, "transactional.id": topic})
    producer.init_transactions(LIMIT_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}))
        producer.flush()
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(LIMIT_S)
    assert until_ids(sink, 0, 2) == []
    run_until(sink, lambda: sink.source_offsets() == {0: 8}, "the last marker")


def test_files_with_large_statistics_are_sent_in_several_events(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.spark_jobs.iceberg.worker._EVENT_BYTES", 1000)
    sink = make(partition_by=("id",))
    put(sink, *as_json(*range(40), text="x" * 100))
    assert until_ids(sink, *range(40)) == []


# --- partitions


def test_rows_are_partitioned_by_nulls_and_strange_values(make: Make) -> None:
    sink = make(create=False)
    schema = Schema(
        ID,
        NestedField(2, "s", StringType()),
        NestedField(3, "t", TimestamptzType()),
        NestedField(4, "n", DecimalType(10, 2)),
        NestedField(5, "b", BinaryType()),
        NestedField(6, "d", DoubleType()),
    )
    transforms: list[tuple[int, Transform[Any, Any]]] = [
        (1, BucketTransform(4)),
        (2, IdentityTransform()),
        (3, HourTransform()),
        (4, TruncateTransform(10)),
        (5, BucketTransform(3)),
        (6, IdentityTransform()),
    ]
    fields = [
        PartitionField(source, 1000 + number, transform, f"p{number}")
        for number, (source, transform) in enumerate(transforms)
    ]
    sink.catalog.create_namespace_if_not_exists("db")
    sink.catalog.create_table("db.t", schema, partition_spec=PartitionSpec(*fields))
    values: list[dict[str, Any]] = [
        {},
        {"s": None, "t": None},
        {"s": "../../x/y=z", "t": "2020-01-01T00:00:00Z", "b": "x"},
        {"s": ""},
        {"s": "é%"},
        {"t": 0, "d": 1.5},
        {"n": "-3.14", "d": float("inf")},
        {"s": "x" * 400},
        {"d": float("nan")},
    ]
    put(sink, *(json.dumps({"id": number, **one}) for number, one in enumerate(values)))
    assert until_ids(sink, *range(8)) == []
    assert errors(sink) == ["d: nan does not fit double"]
    table = sink.table()
    assert table is not None
    assert len(table.scan(row_filter=f"s = '{'x' * 400}'").to_arrow()) == 1


@pytest.mark.test_all
def test_files_of_an_old_partition_spec_with_a_dropped_column_are_committed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the old spec wait for the commit, and have a value of the dropped column."""
    sink = make(partition_by=("a",))
    put(sink, *as_json(1, a="x"))
    until_ids(sink, 1)

    def change() -> None:
        table = sink.table()
        assert table is not None
        with table.update_spec() as spec:
            spec.remove_field("a")
            spec.add_field("id", "bucket[2]")
        with table.update_schema() as schema:
            schema.delete_column("a")

    put(sink, *as_json(2, a="y"))
    with_files_sent(sink, monkeypatch, 2, change)
    assert until_ids(sink, 1, 2) == []
    put(sink, *as_json(3, a="z"))
    assert until_ids(sink, 1, 2, 3) == []
    assert sorted(sink.rows()[0]) == ["id"]
    table = sink.table()
    assert table is not None
    assert len(tools.read_iceberg(table.metadata_location).splitlines()) == 3


def test_files_are_committed_after_their_partition_column_becomes_optional(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(create=False)
    sink.catalog.create_namespace_if_not_exists("db")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = sink.catalog.create_table("db.t", Schema(KEY), partition_spec=spec)

    def change() -> None:
        with table.update_schema() as schema:
            schema.make_column_optional("id")

    put(sink, *as_json(2))
    with_files_sent(sink, monkeypatch, 1, change)
    until_ids(sink, 2)
    found = sink.catalog.load_table("db.t").inspect.partitions()["partition"].to_pylist()
    assert found == [{"p": 2}]


# --- changes of rows


def test_a_bad_key_makes_a_dead_letter(make: Make) -> None:
    sink = make(operations=operations("op"))
    sink.create("db.t", Schema(KEY, NestedField(2, "v", StringType()), identifier_field_ids=[1]))
    for value in ({"id": "abc"}, {"id": None}, {}, {"id": [1]}):
        put(sink, json.dumps({"op": "d", **value}), json.dumps({"op": "u", **value}))
    put(sink, '{"op": "u", "id": 1, "v": "a"}')
    wanted = [{"id": 1, "v": "a"}]
    assert run_until(sink, lambda: sink.row_count() == 1, "the row") == []
    assert changed_rows(sink) == wanted
    assert len(errors(sink)) == 8
    assert errors(sink)[:2] == ["id: abc does not fit long"] * 2


def test_keys_that_are_written_differently_are_one_key(make: Make) -> None:
    sink = make(operations=operations())
    sink.create("db.t", Schema(KEY, NestedField(2, "v", StringType()), identifier_field_ids=[1]))
    put(sink, '{"id": 1, "v": "a"}', '{"id": "1", "v": "b"}', '{"id": 1.0, "v": "c"}')
    run_until(sink, lambda: sink.row_count() == 1, "the row")
    assert changed_rows(sink) == [{"id": 1, "v": "c"}]


def test_a_key_can_have_another_name_in_records(make: Make) -> None:
    sink = make(operations=operations())
    schema = Schema(KEY, NestedField(2, "v", StringType()), identifier_field_ids=[1])
    mapping = '[{"field-id": 1, "names": ["key"]}, {"field-id": 2, "names": ["v"]}]'
    sink.create("db.t", schema, {"schema.name-mapping.default": mapping})
    put(sink, '{"key": 1, "v": "a"}', '{"key": 1, "v": "b"}')
    run_until(sink, lambda: sink.row_count() == 1, "the row")
    assert changed_rows(sink) == [{"id": 1, "v": "b"}]


@pytest.mark.test_all
def test_changes_of_one_key_inside_a_commit_apply_in_order(make: Make) -> None:
    sink = make(id_columns=("id",), operations=operations("op"), interval_ms=1000)
    sink.start()
    put(sink, '{"op": "c", "id": 1, "v": "a"}', '{"op": "c", "id": 2, "v": "a"}')
    run_until(sink, lambda: sink.row_count() == 2, "rows")
    put(sink, '{"op": "d", "id": 1}', '{"op": "c", "id": 3, "v": "a"}')
    put(sink, '{"op": "d", "id": 3}', '{"op": "c", "id": 1, "v": "b"}', '{"op": "d", "id": 2}')
    run_until(sink, lambda: sink.source_offsets() == {0: 7}, "all are read")
    run_until(sink, lambda: changed_rows(sink) == [{"id": 1, "v": "b"}], "the changes")


def rows_in_java(sink: IcebergSink) -> list[tuple[int, str]]:
    """By Iceberg's own reader."""
    table = sink.table()
    assert table is not None
    lines = tools.read_iceberg(table.metadata_location).splitlines()
    return sorted((row["id"], row["v"]) for row in map(json.loads, lines))


def put_upserts(sink: IcebergSink, *rows: Mapping[str, Any]) -> None:
    """In a commit each."""
    for row in rows:
        before = sink.row_count()
        put(sink, json.dumps(row))
        run_until(sink, lambda before=before: sink.row_count() > before, "a row")  # type: ignore[misc]


@pytest.mark.test_all
def test_an_upsert_that_moves_to_another_partition_replaces_the_old_row(make: Make) -> None:
    sink = make(id_columns=("id",), operations=operations(), partition_by=("p",))
    rows = [{"id": 1, "p": "a", "v": "1"}, {"id": 2, "p": "a", "v": "2"}]
    put_upserts(sink, *rows, {"id": 1, "p": "b", "v": "3"}, {"id": 2, "p": "a", "v": "4"})
    assert rows_in_java(sink) == [(1, "3"), (2, "4")]


@pytest.mark.test_all
def test_rows_in_partitions_with_strange_values_are_changed(make: Make) -> None:
    sink = make(operations=operations("op"))
    fields = [KEY, NestedField(2, "v", StringType()), NestedField(3, "d", DoubleType())]
    sources = [PartitionField(one, 1000 + one, IdentityTransform(), f"p{one}") for one in (2, 3)]
    sink.catalog.create_namespace_if_not_exists("db")
    schema = Schema(*fields, identifier_field_ids=[1])
    sink.catalog.create_table("db.t", schema, partition_spec=PartitionSpec(*sources))
    put_upserts(sink, {"op": "u", "id": 1, "v": "x" * 400}, {"op": "u", "id": 2, "v": "a"})
    for row in ({"id": 1, "v": "x" * 400}, {"id": 2, "d": float("nan")}, {"id": 3, "d": "x"}):
        put(sink, json.dumps({"op": "d", **row}))
    put_upserts(sink, {"op": "u", "id": 4, "v": "b"})
    run_until(sink, lambda: sink.source_offsets() == {0: 6}, "all are read")
    assert rows_in_java(sink) == [(4, "b")]
    specs = sink.catalog.load_table("db.t").metadata.partition_specs
    assert [len(one.fields) for one in specs] == [2, 0]


def test_workers_add_the_spec_without_partitions_once(make: Make) -> None:
    sink = make()
    sink.catalog.create_namespace_if_not_exists("db")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    one = sink.catalog.create_table("db.t", Schema(KEY), partition_spec=spec)
    two = sink.catalog.load_table("db.t")
    assert tables.unpartitioned_spec(one) == tables.unpartitioned_spec(two) == 1
    assert len(sink.catalog.load_table("db.t").metadata.partition_specs) == 2


def test_upserts_of_rows_that_stay_in_their_partition_are_read_by_clickhouse(make: Make) -> None:
    """It knows no equality deletes without partition."""
    sink = make(id_columns=("id",), operations=operations(), partition_by=("p",))
    put_upserts(sink, {"id": 1, "p": "a", "v": "1"}, {"id": 1, "p": "a", "v": "2"})
    assert changed_rows(sink) == [{"id": 1, "v": "2"}]


@pytest.mark.test_all
def test_an_upsert_after_a_change_of_the_partition_spec_replaces_the_old_row(make: Make) -> None:
    sink = make(id_columns=("id",), operations=operations(), partition_by=("bucket(id, 2)",))
    put_upserts(sink, {"id": 1, "v": "a"})
    table = sink.table()
    assert table is not None
    with table.update_spec() as spec:
        spec.remove_field(table.spec().fields[0].name)
        spec.add_field("id", BucketTransform(4))
    put_upserts(sink, {"id": 1, "v": "b"}, {"id": 1, "v": "c"})
    assert rows_in_java(sink) == [(1, "c")]


# --- tables


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"id_columns": ("key",)}, "its records have no field key"),
        ({"partition_by": ("day",)}, "its records have no field day"),
        ({"partition_by": ("day(id)",)}, "day cannot transform long values from id"),
    ],
)
def test_a_table_that_cannot_be_made_makes_dead_letters(
    make: Make, more: Mapping[str, Any], error: str
) -> None:
    sink = make(**more)
    put(sink, *as_json(1))
    assert run_until(sink, lambda: sink.source_offsets() == {0: 1}, "it is read") == []
    assert errors(sink) == [f"db.t cannot be made: {error}"]


def test_a_table_without_a_key_leaves_the_others_alone(make: Make) -> None:
    by = route(RouteBy.FIELD, "k")
    sink = make(names={}, database="db", route=by, operations=operations("op"), create=False)
    sink.create("db.bad", Schema(ID))
    sink.create("db.good", Schema(KEY, identifier_field_ids=[1]))
    put(sink, *as_json(1, k="bad", op="c"), *as_json(2, k="good", op="c"))
    assert until_ids(sink, 2, table="db.good") == []
    assert errors(sink) == ["db.bad has no identifier fields: give --id-column"]


def test_a_commit_that_fails_leaves_the_other_tables_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(names={"db.a": "", "db.b": ""})
    real = tables.commit

    def commit(table: Any, *more: Any) -> int:
        if table.name()[-1] == "a":
            raise OSError("denied")
        return real(table, *more)

    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, commit)
        for number in (1, 2):
            put(sink, *as_json(number))
            assert until_ids(sink, *range(1, number + 1), table="db.b") == []
    assert until_ids(sink, 1, 2, table="db.a") == []
    assert sink.ids("db.b") == [1, 2]


@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.test_all)])
def test_a_table_that_is_dropped_while_rows_wait_gets_them_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    sink = make(interval_ms=1000)
    put(sink, *as_json(1, a="x"))
    until_ids(sink, 1)
    with monkeypatch.context() as patch:  # else the row may be committed before the table goes
        patch.setattr(
            "brokerhouse.spark_jobs.iceberg.commit_buffer.CommitBuffer.is_due", lambda *_: False
        )
        put(sink, *as_json(2, a="y"))
        until_read(sink, 2)
        sink.catalog.drop_table("db.t")
    if again:
        schema = Schema(NestedField(1, "a", StringType()), NestedField(2, "id", LongType()))
        sink.create("db.t", schema)
    failures = until_ids(sink, 2) if again else run_until(sink, lambda: has(sink, 2), "the row")
    assert failures == ["db.t was dropped: its records are read again"]
    put(sink, *as_json(3, a="z"))
    run_until(sink, lambda: has(sink, 3), "the next row")
    assert sorted((row["id"], row["a"]) for row in sink.rows()) == [(2, "y"), (3, "z")]


def has(sink: IcebergSink, number: int) -> bool:
    return sink.table() is not None and number in sink.ids()


@pytest.mark.test_all
def test_files_of_a_dropped_table_are_left_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(names={"db.t": "", "db.u": ""})
    put(sink, *as_json(1))
    until_ids(sink, 1, table="db.u")
    put(sink, *as_json(2))
    with_files_sent(sink, monkeypatch, 2, lambda: sink.catalog.drop_table("db.t"))
    put(sink, *as_json(3))
    run_until(sink, lambda: has(sink, 3), "the next row")
    assert sink.ids() == [3]
    assert until_ids(sink, 1, 2, 3, table="db.u") == []


def test_columns_renamed_or_added_by_others_are_filled(make: Make) -> None:
    sink = make(create=False)
    table = sink.create("db.t", Schema(ID, NestedField(2, "a", StringType())))
    put(sink, *as_json(1, a="x"))
    until_ids(sink, 1)
    with table.update_schema() as schema:
        schema.rename_column("a", "b")
    run_until(sink, lambda: "b" in columns(sink), "the workers see it")
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.add_column("r", LongType(), required=True, default_value=5)
    run_until(sink, lambda: "r" in columns(sink), "the workers see it")
    put(sink, *as_json(2, b="y"), *as_json(3, b="z", r=1))
    assert until_ids(sink, 1, 3) == []
    assert sorted((row["id"], row["b"], row["r"]) for row in sink.rows()) == [
        (1, "x", 5),
        (3, "z", 1),
    ]
    assert errors(sink) == ["r: nothing does not fit long"]


def columns(sink: IcebergSink) -> list[str]:
    """As the worker sees them."""
    [worker] = sink.workers
    return worker._writers["db.t"].columns or []


# --- jobs and topics


@pytest.mark.test_all
def test_two_jobs_write_into_one_table(
    make: Make, sink_broker: BrokerProcess, tmp_path: Path, topic: str
) -> None:
    one, two = make(), IcebergSink(sink_broker, tmp_path, {topic: 1})
    two.change(catalog_options=one.settings.catalog_options)
    put(one, *as_json(*range(10)))
    one.start(0)
    two.start(0)
    deadline = time.monotonic() + LIMIT_S
    while one.row_count() < 20:
        assert time.monotonic() < deadline
        one.step()
        two.step()
    two.stop()
    assert one.ids() == sorted([*range(10), *range(10)])


def test_a_second_run_with_the_same_name_fences_the_first(make: Make) -> None:
    sink = make()
    first = sink.start(0)
    put(sink, *as_json(1))
    sink.run_until_rows(1)
    sink.workers.remove(first)
    sink.start(0)

    def both() -> None:
        while True:
            first.step()
            sink.step()

    with pytest.raises(KafkaException) as raised:
        both()
    assert is_fenced(raised.value)
    first.close()
    put(sink, *as_json(2))
    until_ids(sink, 1, 2)


def test_new_partitions_of_a_topic_are_read(
    make: Make, sink_broker: BrokerProcess, topic: str
) -> None:
    sink = make()
    sink.change(kafka={**sink.settings.kafka, "topic.metadata.refresh.interval.ms": "500"})
    put(sink, *as_json(1))
    until_ids(sink, 1)
    admin = AdminClient({"bootstrap.servers": sink_broker.kafka})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_S)
    for partition in range(3):
        put(sink, *as_json(10 + partition), partition=partition)
    assert until_ids(sink, 1, 10, 11, 12) == []


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.test_all)])
def test_deleting_one_topic_does_not_stop_reading_the_other_one(
    make: Make, sink_broker: BrokerProcess, topic: str, place: int
) -> None:
    names = [topic, f"{topic}-b"]
    sink = make(names[1])
    sink.change(kafka={**sink.settings.kafka, "topic.metadata.refresh.interval.ms": "500"})
    for number, name in enumerate(names):
        produce(sink_broker, name, as_json(number))
    until_ids(sink, 0, 1)
    gone = names.pop(place)
    admin = AdminClient({"bootstrap.servers": sink_broker.kafka})
    admin.delete_topics([gone])[gone].result(LIMIT_S)
    produce(sink_broker, names[0], as_json(2))
    until_ids(sink, 0, 1, 2)
    produce(sink_broker, names[0], as_json(3))
    until_ids(sink, 0, 1, 2, 3)


# --- catalog, storage, broker


def test_a_login_that_is_refused_for_a_dead_letter_ends_the_worker_with_a_sentence(
    make: Make, sink_broker: BrokerProcess
) -> None:
    sink = make(servers=SqlServers.parse(sink_broker.http_url, USER, "changed meanwhile"))
    put(sink, *as_json(1), "bad")
    sink.start()
    with pytest.raises(SinkEnds, match=f"refuses user {USER}: give the right user and password"):
        sink.run_until(lambda: False, "the login is refused")
    sink.stop()

    # The next run has the right one, and goes on before the record.
    sink.change(servers=SqlServers.parse(sink_broker.http_url, USER, PASSWORD))
    put(sink, *as_json(3))
    until_ids(sink, 1, 3)
    assert [row["offset"] for row in dead_letters(sink)] == [1]


def test_dead_letters_wait_for_a_server_that_is_away_and_say_so_once(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EngineProcess(tmp_path / "clickhouse")
    sink = make(servers=SqlServers.parse(engine.http))
    put(sink, "bad", *as_json(2))
    worker = sink.start()
    tries = count_calls(worker)
    sink.run_until(lambda: len(tries) >= 3, "the worker tries again and again")
    assert sink.ids() == []
    with engine:
        sink.run_until_rows(1)
        [row] = engine.sql("SELECT offset FROM brokerhouse_feeds.dead_letters")
    assert row == {"offset": 0}
    waiting, again = capsys.readouterr().err.splitlines()
    assert waiting.startswith("1 dead letters wait for a server: ")
    assert again == "dead letters are stored again"


def count_calls(worker: SinkWorker) -> list[None]:
    """Grows with each attempt to store dead letters."""
    tries: list[None] = []
    store = worker.storing.store

    def counting(dead_letters: Sequence[Mapping[str, Any]]) -> bool:
        tries.append(None)
        return store(dead_letters)

    worker.storing.store = counting  # type: ignore[method-assign]
    return tries


@pytest.mark.test_all
def test_with_a_limit_a_server_that_is_away_ends_the_worker(make: Make) -> None:
    away = SqlServers.parse(f"127.0.0.1:{free_port()}")
    sink = make(servers=away, dead_letters_timeout_ms=1)
    put(sink, "bad")
    sink.start()
    with pytest.raises(SinkEnds, match=r"could not be stored for 0\.001 s: .* Start the server"):
        sink.run_until(lambda: False, "the limit")


@pytest.mark.test_all
def test_a_locked_catalog_is_waited_for(make: Make) -> None:
    sink = make()
    put(sink, *as_json(1))
    until_ids(sink, 1)
    lock = sqlite3.connect(sink.warehouse / "catalog.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    put(sink, *as_json(2))
    with pytest.raises(Exception, match="database is locked"):
        sink.run_until(lambda: False, "the lock")
    lock.execute("ROLLBACK")
    lock.close()
    sink.stop()
    until_ids(sink, 1, 2)


@in_a_mount_namespace
def test_a_full_disk_is_waited_for(
    sink_broker: BrokerProcess, tmp_path: Path, topic: str, request: pytest.FixtureRequest
) -> None:
    create_topic(sink_broker.kafka, topic, 1)
    with small_disk(tmp_path, 8 * MIB) as disk:
        sink = IcebergSink(sink_broker, disk.path, {topic: 1})
        put(sink, *as_json(1))
        until_ids(sink, 1)
        disk.fill()
        put(sink, *as_json(*range(2, 100), text="x" * 1000))
        with pytest.raises(OSError, match="No space left"):
            sink.run_until(lambda: False, "the disk is full")
        sink.stop()
        disk.free()
        until_ids(sink, *range(1, 100))
        sink.stop()


@pytest.mark.test_all
def test_each_record_is_in_the_table_once_while_the_broker_is_killed(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = own_broker(**SETTINGS, **GROUPS)
    create_topic(broker.kafka, "events", 2)
    sink = IcebergSink(broker, tmp_path, {"events": 2}, session_timeout_ms=2000)
    worker = WorkerProcess(sink.settings, 0, tmp_path / "worker.log")
    try:
        for number in range(2):
            produce(broker, "events", as_json(2 * number, 2 * number + 1))
            wanted = 2 * number + 2
            until(lambda wanted=wanted: sink.row_count() >= wanted, "rows", LIMIT_S)  # type: ignore[misc]
            broker.kill()
            broker.start()
    finally:
        worker.kill()
    assert sink.ids() == list(range(4))
