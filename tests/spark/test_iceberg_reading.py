"""Spark, ClickHouse and PyIceberg read the same rows of the tables that the job `iceberg` fills.

The test with Spark is one, because its JVM takes seconds to start.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from brokerhouse.spark_jobs.iceberg.rewriting import rewrite
from tests.support.iceberg_changes import NAME, ChangingTable, in_turn
from tests.support.iceberg_readers import Rows, clickhouse_rows, spark_rows

TARGET = 128 << 20
UUID_TEXT = "01234567-89ab-cdef-0123-456789abcdef"
SIMPLE = {
    "id": LongType(),
    "bool": BooleanType(),
    "int": IntegerType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal": DecimalType(20, 4),
    "string": StringType(),
    "binary": BinaryType(),
    "fixed": FixedType(4),
    "uuid": UUIDType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
}
NESTED = {
    "list": ListType(100, LongType(), element_required=False),
    "map": MapType(110, StringType(), 111, LongType(), value_required=False),
    "struct": StructType(
        NestedField(120, "a", LongType()), NestedField(121, "b", ListType(122, StringType(), False))
    ),
}
ALL_TYPES = {**SIMPLE, **NESTED}
FULL_ROW = {
    "id": 1,
    "bool": True,
    "int": -7,
    "float": 0.5,
    "double": 1e300,
    "decimal": "12345.6789",
    "string": "Grüße ☃",
    "binary": "\udcff\0b",
    "fixed": "abcd",
    "uuid": UUID_TEXT,
    "date": "2026-11-25",
    "timestamp": "2026-11-25T04:05:06.789012",
    "timestamptz": "2026-11-25T04:05:06+01:00",
    "list": [1, None, 3],
    "map": {"x": 1, "y": None},
    "struct": {"a": 5, "b": ["p", None]},
}
FULL = {
    "id": 1,
    "bool": True,
    "int": -7,
    "float": 0.5,
    "double": 1e300,
    "decimal": Decimal("12345.6789"),
    "string": "Grüße ☃",
    "binary": b"\xff\0b",
    "fixed": b"abcd",
    "uuid": uuid.UUID(UUID_TEXT),
    "date": date(2026, 11, 25),
    "timestamp": datetime(2026, 11, 25, 4, 5, 6, 789012),
    "timestamptz": datetime(2026, 11, 25, 3, 5, 6, tzinfo=UTC),
    "list": [1, None, 3],
    "map": {"x": 1, "y": None},
    "struct": {"a": 5, "b": ["p", None]},
}


@pytest.fixture
def changing(tmp_path: Path) -> ChangingTable:
    return ChangingTable(tmp_path)


@pytest.fixture
def plain(changing: ChangingTable) -> ChangingTable:
    """A table with a column of each type that all three read."""
    make_table(changing, ALL_TYPES)
    changing.commit(FULL_ROW, {"id": 2})
    changing.commit({"id": 3, "string": ""})
    return changing


@pytest.fixture
def partitioned(tmp_path: Path) -> ChangingTable:
    directory = tmp_path / "partitioned"
    directory.mkdir()
    found = ChangingTable(directory, partition_by=["kind", "bucket(id, 4)"])
    for first in (0, 10):
        found.commit(*({"id": first + n, "kind": f"k {n % 3}"} for n in range(10)))
    return found


@pytest.fixture
def keyed(tmp_path: Path) -> ChangingTable:
    directory = tmp_path / "keyed"
    directory.mkdir()
    found = ChangingTable(directory, keyed=True)
    found.commit(*({"id": number, "value": "old", "op": "c"} for number in range(6)))
    found.commit({"id": 1, "value": "new", "op": "u"}, {"id": 2, "value": "", "op": "d"})
    found.commit({"id": 2, "value": "again", "op": "c"}, {"id": 3, "value": "", "op": "d"})
    return found


KEYED_ROWS = [
    {"id": 0, "value": "old"},
    {"id": 1, "value": "new"},
    {"id": 2, "value": "again"},
    {"id": 4, "value": "old"},
    {"id": 5, "value": "old"},
]


def test_pyiceberg_and_clickhouse_read_all_types(plain: ChangingTable) -> None:
    assert plain.rows()[0] == {**FULL, "map": [("x", 1), ("y", None)]}
    shown = "* REPLACE (lower(hex(binary)) AS binary, lower(hex(fixed)) AS fixed)"
    [found] = clickhouse_rows(f"SELECT {shown} FROM {source(plain)} ORDER BY id")
    rows = wanted(plain)
    for row in rows[1:]:  # ClickHouse knows no null in the place of these
        row |= {"list": [], "map": {}, "struct": {"a": None, "b": []}}
    assert with_seconds(found) == rows


@pytest.mark.test_all
def test_clickhouse_reads_a_time_as_whole_seconds(changing: ChangingTable) -> None:
    """Spark has no such type."""
    make_table(changing, {"id": LongType(), "time": TimeType()})
    changing.commit({"id": 1, "time": "01:02:03.000004"})
    assert str(changing.rows()[0]["time"]) == "01:02:03.000004"
    [[row]] = clickhouse_rows(f"SELECT time FROM {source(changing)}")
    assert row == {"time": 3723}


@pytest.mark.test_all
def test_clickhouse_and_pyiceberg_read_partitions(partitioned: ChangingTable) -> None:
    [found] = clickhouse_rows(f"SELECT * FROM {source(partitioned)} ORDER BY id")
    assert found == partitioned.rows()
    assert len(found) == 20


@pytest.mark.test_all
def test_clickhouse_applies_equality_deletes(keyed: ChangingTable) -> None:
    query = f"SELECT id, value FROM {source(keyed)} ORDER BY id"
    assert clickhouse_rows(query) == [KEYED_ROWS]
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    assert clickhouse_rows(query) == [KEYED_ROWS]
    assert [{"id": row["id"], "value": row["value"]} for row in keyed.rows()] == KEYED_ROWS


def test_deletes_of_a_commit_beside_a_rewrite_apply_for_clickhouse(keyed: ChangingTable) -> None:
    """The rewritten file has an older sequence number than its snapshot."""

    def beside(task: Any, bins: Any) -> Any:
        done = in_turn(task, bins)
        keyed.commit({"id": 5, "value": "", "op": "d"})
        return done

    rewrite(keyed.catalog, NAME, TARGET, beside)
    [found] = clickhouse_rows(f"SELECT id, value FROM {source(keyed)} ORDER BY id")
    assert found == KEYED_ROWS[:-1]


@pytest.mark.test_all
def test_spark_reads_what_the_others_read(
    plain: ChangingTable, partitioned: ChangingTable, keyed: ChangingTable, tmp_path: Path
) -> None:
    catalog = plain.catalog
    for number, changing in enumerate((partitioned, keyed), 1):
        catalog.register_table(f"db.t{number}", changing.table.metadata_location)

    def beside(task: Any, bins: Any) -> Any:
        done = in_turn(task, bins)
        keyed.commit({"id": 5, "value": "", "op": "d"})
        return done

    rewrite(keyed.catalog, NAME, TARGET, beside)
    catalog.register_table("db.t3", keyed.table.metadata_location)
    rewrite(keyed.catalog, NAME, TARGET, in_turn)
    catalog.register_table("db.t4", keyed.table.metadata_location)
    rows, parts, before, between, after, files = spark_rows(
        tmp_path,
        "SELECT * EXCEPT (binary, fixed, timestamp, timestamptz), lower(hex(binary)) AS binary,"
        " lower(hex(fixed)) AS fixed, CAST(timestamp AS STRING), CAST(timestamptz AS STRING)"
        " FROM local.db.t ORDER BY id",
        "SELECT * FROM local.db.t1 ORDER BY id",
        "SELECT id, value FROM local.db.t2 ORDER BY id",
        "SELECT id, value FROM local.db.t3 ORDER BY id",
        "SELECT id, value FROM local.db.t4 ORDER BY id",
        "SELECT content, count(*) AS files FROM local.db.t2.files GROUP BY content ORDER BY 1",
    )
    assert with_seconds(rows) == wanted(plain)
    assert parts == partitioned.rows()
    assert before == KEYED_ROWS
    assert between == after == KEYED_ROWS[:-1]
    assert files == [{"content": 0, "files": 3}, {"content": 2, "files": 2}]


# --- parts of tests


def make_table(changing: ChangingTable, columns: dict[str, Any]) -> None:
    fields = [NestedField(n, *column) for n, column in enumerate(columns.items(), 1)]
    changing.catalog.create_namespace_if_not_exists("db")
    changing.catalog.create_table(NAME, Schema(*fields), properties={"format-version": "2"})


def source(changing: ChangingTable) -> str:
    return f"icebergLocal('{changing.location}')"


def wanted(changing: ChangingTable) -> Rows:
    """PyIceberg's rows, as JSON has them."""
    found = changing.rows()
    for row in found:
        row["decimal"] = row["decimal"] and float(row["decimal"])
        row["map"] = row["map"] and dict(row["map"])
        for name in ("binary", "fixed"):
            row[name] = row[name] and row[name].hex()
        for name in ("uuid", "date"):
            row[name] = row[name] and str(row[name])
        for name in ("timestamp", "timestamptz"):
            row[name] = row[name] and row[name].replace(tzinfo=UTC).timestamp()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def with_seconds(rows: Rows) -> Rows:
    """Rows with times since 1970 in the place of times in UTC."""
    for row in rows:
        for name in ("timestamp", "timestamptz"):
            row[name] = row[name] and seconds(row[name])
    return rows


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
