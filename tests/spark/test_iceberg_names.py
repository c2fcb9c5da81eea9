"""Names of fields with dots: a column called `a.b` is not the field b of the column a."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.routing import route_from_text
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.evolution import Evolution
from brokerhouse.spark_jobs.iceberg.files import TableWriter
from brokerhouse.spark_jobs.iceberg.settings import SinkTables
from brokerhouse.spark_jobs.iceberg.values import ValueReader, named_table

Write = Callable[..., dict[int, str]]
NAME = "shop.t"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return tables.open_catalog(tables.LOCAL_CATALOG, tables.local_catalog(str(tmp_path)))


@pytest.fixture
def write(catalog: Catalog) -> Write:
    """Add rows to the table in a commit, and return why some are not taken."""

    def commit(*rows: dict[str, Any]) -> dict[int, str]:
        settings = SinkTables({NAME: ""}, "", None, True, True, (), (), {}, False, None)
        writer = TableWriter(catalog, NAME, settings)
        errors = writer.add(rows)
        files = writer.finish()
        if files:
            tables.commit(catalog.load_table(NAME), [files], {})
        return errors

    return commit


def read(catalog: Catalog) -> Sequence[dict[str, Any]]:
    found = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: int(row["id"]))


REFUSED = "'{}': the table cannot tell the column {} from another one of this name"


def test_a_column_with_a_dot_is_made_added_and_filled(catalog: Catalog, write: Write) -> None:
    assert write({"id": 1, "a.b": 5, "o": {"x": 1}}) == {}
    assert write({"id": 2, "c.d": "y", "o": {"x": 2, "e.f": True}}, {"id": 3, "a.b": 6}) == {}
    nothing = {"a.b": None, "c.d": None, "o": None}
    assert read(catalog) == [
        {**nothing, "id": 1, "a.b": 5, "o": {"x": 1, "e.f": None}},
        {**nothing, "id": 2, "c.d": "y", "o": {"x": 2, "e.f": True}},
        {**nothing, "id": 3, "a.b": 6},
    ]


def test_the_field_of_an_object_is_refused_beside_a_column_of_its_name(
    catalog: Catalog, write: Write
) -> None:
    assert write({"id": 1, "a.b": 5}) == {}
    assert write({"id": 2, "a": {"b": 7}}, {"id": 3, "a": {"c": 8}}) == {
        0: REFUSED.format("a", "a.b")
    }
    assert read(catalog) == [{"id": 1, "a.b": 5, "a": None}, {"id": 3, "a.b": None, "a": {"c": 8}}]


def test_a_column_is_refused_beside_the_field_of_an_object_of_its_name(
    catalog: Catalog, write: Write
) -> None:
    assert write({"id": 1, "a": {"b": 5}, "l": [{"x": 1}]}) == {}
    assert write({"id": 2, "a.b": 7}, {"id": 3, "l.x": 1}, {"id": 4, "a.c": 8}) == {
        0: REFUSED.format("a.b", "a.b"),
        1: REFUSED.format("l.x", "l.x"),
    }
    assert [(row["id"], row["a.c"]) for row in read(catalog)] == [(1, None), (4, 8)]


def test_the_first_of_two_new_columns_of_one_name_is_taken(catalog: Catalog, write: Write) -> None:
    assert write({"id": 1, "a.b": 5}, {"id": 2, "a": {"b": 6}}, {"id": 3, "a.b": 7}) == {
        1: REFUSED.format("a", "a.b")
    }
    assert write({"id": 4, "c": {"d": 5}, "c.d": 6}) == {0: REFUSED.format("c.d", "c.d")}
    assert read(catalog) == [{"id": 1, "a.b": 5}, {"id": 3, "a.b": 7}]


def test_lists_of_lists_and_fields_called_as_their_parts_are_columns(
    catalog: Catalog, write: Write
) -> None:
    row = {"id": 1, "l": [[{"element": 1}]], "element": {"key": 1, "value": [2]}}
    assert write(row) == {}
    assert write({"id": 2, "l": [[{"element": 2, "x": 3}]]}) == {}
    assert [one["l"] for one in read(catalog)] == [
        [[{"element": 1, "x": None}]],
        [[{"element": 2, "x": 3}]],
    ]


def test_field_names_that_are_not_text_are_refused(catalog: Catalog, write: Write) -> None:
    assert write({"id": 1}) == {}
    reader = ValueReader(Format.MSGPACK, "")
    sent: list[Any] = [
        {"id": 2, 5: 1},
        {"id": 3, "o": {7: 1}},
        {"id": 4, b"x": 1},
        {"id": 5, "": 1},
    ]
    rows = [row for one in sent for row in reader.rows(msgpack.packb(one), [])]
    assert write(*rows, {"id": 6, "\ud800": 1}, {"id": 7}) == {
        0: "'5': no column can have this name",
        1: "'o': no column can have this name",
        2: "\"b'x'\": no column can have this name",
        3: "'': no column can have this name",
        4: "'\\ud800': no column can have this name",
    }
    assert [row["id"] for row in read(catalog)] == [1, 7]


def test_a_dotted_name_is_refused_beside_a_nested_field_of_the_schema() -> None:
    object_ = StructType(NestedField(2, "b", LongType()))
    schema = Schema(NestedField(1, "a", object_))
    assert Evolution(schema, {}).refusals([{"a.b": None}, {"a.b": 1}, {"a.b.c": 1}]) == {
        1: REFUSED.format("a.b", "a.b")
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.kind", "nested"),
        ("a\\.kind", "dotted"),
        ("$['a.kind']", "dotted"),
        ("$.a.kind", "nested"),
        ("a", None),
        ("a.kind.more", None),
    ],
)
def test_a_route_by_field_is_a_path_as_of_typed_tables(path: str, expected: str | None) -> None:
    row = {"a.kind": "dotted", "a": {"kind": "nested"}}
    found = named_table(None, row, route_from_text(f"field={path}"))  # type: ignore[arg-type]
    assert found == expected, json.dumps(row)
