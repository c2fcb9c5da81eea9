"""What the job `iceberg` does, feature by feature of the design that it is built to.

Workers run in this process and take turns, so that a test says who does what when. Those that are
killed are in test_iceberg_kills.py, failures and zombies in test_iceberg_recovery.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.routing import RouteBy
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.coordinator import COMMIT_ID, VALID_THROUGH, offsets_property
from brokerhouse.spark_jobs.iceberg.events import (
    BeginCommit,
    CommitComplete,
    DataComplete,
    decoded,
    encoded,
)
from tests.support import tools
from tests.support.iceberg_sink import LIMIT_S, IcebergSink, operations, produce, route
from tests.support.iceberg_steps import (
    COMMIT,
    Died,
    as_json,
    changed_rows,
    dead_letters,
    failing,
    put,
)
from tests.support.schemas import Schemas

Make = Callable[..., IcebergSink]


def control_events(sink: IcebergSink) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": sink.broker.kafka,
            "group.id": "looking",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(sink.settings.control_topic, 0, 0)])
    found: list[Any] = []
    while (message := consumer.poll(LIMIT_S)) is not None and message.error() is None:
        found.append(decoded(message.value() or b"")[1])
    consumer.close()
    assert message is not None, "the control topic has no end"
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF, error
    return found


# --- commit coordinator


def test_leader_is_the_worker_with_partition_0_of_the_first_topic_and_another_takes_over(
    make: Make,
) -> None:
    sink = make(2)
    first, second = sink.start(0), sink.start(1)
    sink.run_until(lambda: len(first.positions) == len(second.positions) == 1, "both have one")
    assert sorted([first.leads, second.leads]) == [False, True]
    leader, other = (first, second) if first.leads else (second, first)
    for partition in (0, 1):
        put(sink, *as_json(partition), partition=partition)
    sink.run_until_rows(2)

    sink.stop(leader)
    sink.expel(leader)
    put(sink, *as_json(2), partition=0)
    sink.run_until(lambda: other.leads, "the other one leads")
    sink.run_until_rows(3)
    assert sink.ids() == [0, 1, 2]


def test_control_topic_has_avro_events_of_each_commit(make: Make) -> None:
    sink = make()
    put(sink, *as_json(1))
    sink.start()
    sink.run_until_rows(1)
    sink.run_until(lambda: sink.control_offsets() != {}, "the coordinator's offsets")
    sink.stop()
    events = control_events(sink)
    kinds = [type(one).__name__ for one in events]
    assert "DataFiles" in kinds
    assert "TableCommitted" in kinds
    assert isinstance(events[0], BeginCommit)
    [answer, *_] = [one for one in events if isinstance(one, DataComplete)]
    assert answer.commit_id == events[0].commit_id
    assert any(isinstance(one, CommitComplete) for one in events)


@pytest.mark.test_all
def test_events_that_were_sent_before_the_coordinator_started_are_received(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(2)
    first, second = sink.start(0), sink.start(1)
    sink.run_until(lambda: len(first.positions) == len(second.positions) == 1, "both have one")
    put(sink, *as_json(1), partition=1 if first.leads else 0)
    leader, other = (first, second) if first.leads else (second, first)
    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, failing(Died()))
        put(sink, *as_json(2), partition=1)
        with pytest.raises(Died):
            sink.run_until(lambda: False, "the coordinator dies")
    assert sink.ids() == []
    sink.stop(leader)
    sink.expel(leader)
    sink.run_until(lambda: other.leads, "the other one leads")
    sink.run_until(lambda: 2 in sink.ids(), "what was sent to the one before it")


def test_workers_ignore_events_from_before_their_start(make: Make) -> None:
    sink = make()
    old = encoded(sink.settings.group, BeginCommit("old"))
    produce(sink.broker, sink.settings.control_topic, [old])
    worker = sink.start()
    put(sink, *as_json(1))
    sink.run_until_rows(1)
    sink.stop(worker)
    answers = [one.commit_id for one in control_events(sink) if isinstance(one, DataComplete)]
    assert answers
    assert "old" not in answers


# --- message processing


def test_data_files_follow_the_tables_properties(make: Make) -> None:
    sink = make(properties={"write.parquet.compression-codec": "gzip"})
    put(sink, *as_json(1, 2))
    sink.start()
    sink.run_until_rows(2)
    [path] = sink.warehouse.glob("db/t/data/*.parquet")
    assert pq.read_metadata(path).row_group(0).column(0).compression == "GZIP"


def test_rows_are_written_to_partitions_by_their_transforms(make: Make) -> None:
    sink = make(partition_by=("truncate(word, 1)", "bucket(id, 4)"))
    put(
        sink, *(json.dumps({"id": n, "word": word}) for n, word in enumerate(["ab", "ac", "b"] * 8))
    )
    sink.start()
    sink.run_until_rows(24)
    table = sink.table()
    assert table is not None
    assert [str(field.transform) for field in table.spec().fields] == ["truncate[1]", "bucket[4]"]
    found = table.scan(row_filter="word = 'b'").to_arrow().column("id").to_pylist()
    assert sorted(found) == list(range(2, 24, 3))
    assert len({path.parent for path in sink.warehouse.glob("db/t/data/**/*.parquet")}) > 4


def test_values_are_fitted_to_the_schema_of_an_existing_table(make: Make) -> None:
    sink = make(create=False)
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "text", StringType()),
        NestedField(3, "nested", StructType(NestedField(4, "n", IntegerType()))),
    )
    sink.create("db.t", schema)
    put(sink, '{"id": "7", "text": 8, "nested": {"n": 9.0, "other": 1}, "unknown": 1}')
    sink.start()
    sink.run_until_rows(1)
    assert sink.rows() == [{"id": 7, "text": "8", "nested": {"n": 9}}]


def test_fields_are_stored_by_the_tables_name_mapping(make: Make) -> None:
    sink = make(create=False)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "total", LongType()))
    mapping = '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["amount", "total"]}]'
    sink.create("db.t", schema, {"schema.name-mapping.default": mapping})
    put(sink, '{"id": 1, "amount": 5}', '{"id": 2, "total": 6}')
    sink.start()
    sink.run_until_rows(2)
    assert sorted(row["total"] for row in sink.rows()) == [5, 6]


def test_commits_are_completed_while_no_records_come(make: Make) -> None:
    sink = make()
    sink.start()
    sink.run_until(lambda: sink.control_offsets() != {}, "a commit of nothing")
    assert sink.table() is None


# --- commits


def test_a_snapshot_has_its_commit_id_offsets_and_valid_through(make: Make) -> None:
    sink = make(2)
    for partition, timestamp in ((0, 5_000), (0, 9_000), (1, 7_000)):
        put(sink, *as_json(timestamp), partition=partition, timestamp=timestamp)
    sink.start()
    sink.run_until_rows(3)
    summary = sink.summaries()[-1]
    assert len(summary[COMMIT_ID]) == 32
    [[partition, offset]] = json.loads(summary[offsets_property(sink.settings)]).items()
    assert partition == "0"
    assert offset > 0
    if len(sink.summaries()) == 1:
        assert summary[VALID_THROUGH] == "7000"


def test_valid_through_is_not_set_if_a_partition_had_no_records(make: Make) -> None:
    sink = make(2)
    put(sink, *as_json(1), partition=0, timestamp=5_000)
    sink.start()
    sink.run_until_rows(1)
    assert VALID_THROUGH not in sink.summaries()[-1]


def test_source_offsets_and_data_files_are_in_one_transaction(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    put(sink, *as_json(1))
    worker = sink.start()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "commit_transaction", failing(Died()))
        with pytest.raises(Died):
            sink.run_until(lambda: False, "the worker dies")
    sink.stop(worker)
    assert sink.source_offsets() == {}
    assert not any(type(one).__name__ == "DataFiles" for one in control_events(sink))
    sink.start()
    sink.run_until_rows(1)
    assert sink.ids() == [1]
    assert sink.source_offsets() == {0: 1}


# --- multi-table fan-out


@pytest.mark.parametrize("by", RouteBy)
def test_records_are_routed_to_tables_by_header_field_or_key(make: Make, by: RouteBy) -> None:
    name = {RouteBy.HEADER: "kind", RouteBy.FIELD: "a.kind", RouteBy.KEY: ":"}[by]
    sink = make(names={}, database="db", route=route(by, name))
    for number, kind in enumerate(["one", "two", "one"]):
        value = json.dumps({"id": number, "a": {"kind": kind}})
        put(sink, value, key=f"{kind}:7", headers=[("kind", kind.encode())])
    put(sink, '{"id": 9}')
    sink.start()
    sink.run_until_rows(2, "db.one")
    sink.run_until_rows(1, "db.two")
    assert (sink.ids("db.one"), sink.ids("db.two")) == ([0, 2], [1])


def test_without_a_route_all_records_go_to_all_tables(make: Make) -> None:
    sink = make(names={"db.one": "", "db.two": ""})
    put(sink, *as_json(1, 2))
    sink.start()
    sink.run_until_rows(2, "db.one")
    sink.run_until_rows(2, "db.two")
    assert sink.ids("db.one") == sink.ids("db.two") == [1, 2]


def test_a_partial_commit_over_several_tables_is_completed_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(names={"db.one": "", "db.two": ""})
    put(sink, *as_json(1, 2))
    worker = sink.start()
    real = tables.commit

    def commit(table: Any, *more: Any) -> int:
        if table.name()[-1] == "two":
            raise Died
        return real(table, *more)

    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, commit)
        with pytest.raises(Died):
            sink.run_until(lambda: False, "the coordinator dies between the tables")
    assert (sink.ids("db.one"), sink.ids("db.two")) == ([1, 2], [])
    sink.stop(worker)
    put(sink, *as_json(3))
    sink.start()
    sink.run_until_rows(3, "db.one")
    sink.run_until_rows(3, "db.two")
    assert sink.ids("db.one") == sink.ids("db.two") == [1, 2, 3]


# --- row mutations


def test_insert_update_and_delete_by_an_operation_field(make: Make) -> None:
    sink = make(id_columns=("id",), operations=operations("op"))
    sink.start()
    put(sink, *(json.dumps({"op": "c", "id": n, "v": "new"}) for n in range(4)))
    sink.run_until_rows(4)
    put(sink, '{"op": "u", "id": 1, "v": "changed"}', '{"op": "DELETE", "id": 2}')
    put(sink, '{"op": "c", "id": 5, "v": "a"}', '{"op": "u", "id": 5, "v": "b"}')
    put(sink, '{"op": "c", "id": 6, "v": "a"}', '{"op": "d", "id": 6}')
    put(sink, '{"op": "what", "id": 3}')
    sink.run_until(lambda: sink.source_offsets() == {0: 11}, "all are read")
    wanted = [
        {"id": 0, "v": "new"},
        {"id": 1, "v": "changed"},
        {"id": 3, "v": "new"},
        {"id": 5, "v": "b"},
    ]
    sink.run_until(lambda: changed_rows(sink) == wanted, "changes")
    assert [row["error"] for row in dead_letters(sink)] == ["op: what is no operation"]


def test_upserts_replace_the_rows_of_their_keys(make: Make) -> None:
    sink = make(id_columns=("id",), operations=operations(), partition_by=("bucket(id, 2)",))
    sink.start()
    for value in "abc":
        put(sink, *(json.dumps({"id": n, "v": value}) for n in range(6)))

        def is_there(wanted: str = value) -> bool:
            found = changed_rows(sink) if sink.table() is not None else []
            return [row["v"] for row in found] == [wanted] * 6

        sink.run_until(is_there, f"all rows are {value}")


def test_a_row_changed_by_two_workers_in_one_commit_is_stored_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two workers with the same partition wait for the same commit."""
    sink = make(id_columns=("id",), operations=operations())
    worker = sink.start()
    put(sink, '{"id": 1, "v": "a"}')
    with monkeypatch.context() as patch:
        patch.setattr(COMMIT, failing(OSError("storage is away")))
        sink.run_until(lambda: sink.source_offsets() == {0: 1}, "files are sent")
        sink.stop(worker)
        put(sink, '{"id": 1, "v": "b"}')
        sink.start()
        sink.run_until(lambda: sink.source_offsets() == {0: 2}, "files are sent")
    sink.run_until(lambda: len(sink.summaries()) >= 2, "snapshots")
    assert changed_rows(sink) == [{"id": 1, "v": "b"}]


# --- automatic table creation and schema evolution


def test_a_missing_table_is_made_by_the_first_records(make: Make) -> None:
    sink = make(metadata_columns=True)
    value = '{"i": 1, "f": 1.5, "s": "x", "b": true, "l": [1, 2], "o": {"a": {"b": 1}}, "n": null}'
    put(sink, value, key=b"k", headers=[("h", b"v")], timestamp=5000)
    sink.start()
    sink.run_until_rows(1)
    table = sink.table()
    assert table is not None
    types = {field.name: str(field.field_type) for field in table.schema().fields}
    assert [types[name] for name in "ifsbl"] == [
        "long",
        "double",
        "string",
        "boolean",
        "list<long>",
    ]
    assert "n" not in types
    [row] = sink.rows()
    assert row["o"] == {"a": {"b": 1}}
    assert (row["_partition"], row["_offset"], row["_key"]) == (0, 0, b"k")
    assert row["_timestamp"].timestamp() == 5
    assert row["_headers"] == [("h", b"v")]


@pytest.mark.test_all
def test_metadata_of_a_new_table_is_bounded(make: Make) -> None:
    few = {"commit.manifest.min-count-to-merge": "3", "write.metadata.previous-versions-max": "2"}
    sink = make(properties=few)
    sink.start()
    for count in range(1, 7):
        put(sink, *as_json(count))
        sink.run_until_rows(count)
    table = sink.table()
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 3
    assert len(list(sink.warehouse.rglob("*.metadata.json"))) == 3
    assert sink.ids() == list(range(1, 7))


def test_given_properties_replace_the_defaults_of_new_tables(make: Make) -> None:
    given = dict.fromkeys(tables.OF_NEW_TABLES, "false")
    sink = make(properties=given)
    sink.start()
    put(sink, *as_json(1))
    sink.run_until_rows(1)
    table = sink.table()
    assert table is not None
    assert given.items() <= table.properties.items()


def test_the_catalog_is_not_asked_for_each_record(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    put(sink, *as_json(*range(1000)))
    asked: list[str] = []
    found = tables.existing

    def existing(catalog: Catalog, name: str) -> Table | None:
        asked.append(name)
        return found(catalog, name)

    monkeypatch.setattr(tables, "existing", existing)
    sink.start()
    # Not by the rows: to look for them asks the catalog, too.
    sink.run_until(lambda: sink.source_offsets() == {0: 1000}, "all are read")
    assert 0 < len(asked) < 500
    sink.run_until_rows(1000)


def test_schema_evolution_adds_columns_and_widens(make: Make) -> None:
    sink = make(evolve=True)
    sink.create("db.t", Schema(NestedField(1, "id", IntegerType())))
    sink.start()
    put(sink, *as_json(1))
    sink.run_until_rows(1)
    put(sink, *as_json(2, more={"a": 1}), *as_json(2**40))
    sink.run_until_rows(3)
    assert sorted(sink.rows(), key=lambda row: row["id"]) == [
        {"id": 1, "more": None},
        {"id": 2, "more": {"a": 1}},
        {"id": 2**40, "more": None},
    ]


@pytest.mark.test_all
def test_schema_evolution_inside_of_objects_and_lists(make: Make) -> None:
    sink = make(evolve=True)
    line = StructType(NestedField(4, "n", IntegerType()))
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "o", StructType(NestedField(3, "n", IntegerType())), required=True),
        NestedField(5, "l", ListType(6, line, element_required=False)),
    )
    sink.create("db.t", schema)
    sink.start()
    put(sink, *as_json(1, o={"n": 1}, l=[{"n": 1}]))
    sink.run_until_rows(1)
    put(sink, *as_json(2, o={"n": 2**40, "more": {"x": True}}, l=[{"n": 2**40, "more": "y"}]))
    put(sink, *as_json(3, o={}, l=[]))
    sink.run_until_rows(3)
    assert sorted(sink.rows(), key=lambda row: row["id"]) == [
        {"id": 1, "o": {"n": 1, "more": None}, "l": [{"n": 1, "more": None}]},
        {"id": 2, "o": {"n": 2**40, "more": {"x": True}}, "l": [{"n": 2**40, "more": "y"}]},
        {"id": 3, "o": {"n": None, "more": None}, "l": []},
    ]
    table = sink.table()
    assert table is not None
    assert table.schema().find_field("o").required
    assert len(tools.read_iceberg(table.metadata_location).splitlines()) == 3


def test_without_evolution_unknown_fields_are_left_out(make: Make) -> None:
    sink = make()
    sink.create("db.t", Schema(NestedField(1, "id", IntegerType())))
    put(sink, *as_json(2, more=1), *as_json(2**40))
    sink.start()
    sink.run_until_rows(1)
    assert sink.rows() == [{"id": 2}]
    assert [row["error"] for row in dead_letters(sink)] == [f"id: {2**40} does not fit int"]


# --- error handling, formats


def test_records_that_cannot_become_rows_are_dead_letters(make: Make) -> None:
    sink = make()
    sink.create("db.t", Schema(NestedField(1, "id", LongType())))
    put(sink, *as_json(0), "no json", "[1]", None, *as_json(4), '{"id": "x"}', b"\xff")
    sink.start()
    sink.run_until_rows(2)
    assert sink.ids() == [0, 4]
    found = dead_letters(sink)
    assert [row["offset"] for row in found] == [1, 2, 5, 6]
    assert found[1]["error"] == "neither an object nor an array of objects"
    assert found[2]["error"] == "id: x does not fit long"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Format.CSV, b'1,"a, b"\n2,\\N\n'),
        (Format.MSGPACK, msgpack.packb([{"id": 1, "v": "a, b"}, {"id": 2}])),
        (Format.MSGPACK, msgpack.packb([1, "a, b"])),
        (Format.JSON, b'[{"id": 1, "v": "a, b"}, {"id": 2}]'),
        (Format.CSV, b'1,"a, b"'),
    ],
)
def test_csv_msgpack_and_json_become_rows(make: Make, kind: Format, value: bytes) -> None:
    sink = make(format=kind)
    sink.create("db.t", Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType())))
    put(sink, value)
    sink.start()
    sink.run_until_rows(1)
    assert sink.rows() == [{"id": 1, "v": "a, b"}, {"id": 2, "v": None}][: len(sink.rows())]


def test_avro_records_become_rows_by_schemas_of_a_registry(make: Make) -> None:
    schemas = Schemas()
    schemas.add(3, {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]})
    sink = make(format=Format.AVRO, schema_registry=schemas.url)
    put(sink, b"\0\0\0\0\x03\x0e", b"\0\0\0\0\x09\x0e")
    sink.start()
    sink.run_until_rows(1)
    schemas.close()
    assert sink.ids() == [7]
    assert [row["error"] for row in dead_letters(sink)] == ["the schema registry has no schema 9"]
