"""Typed tables from changes that Debezium has captured from PostgreSQL, in a real engine.

The records are real ones (tests/support/debezium_samples.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.decoding.debezium_columns import columns_of_change
from brokerhouse.feeds.definition import FeedOptions, Format
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import TokenUsed
from tests.support.debezium_samples import CONNECTORS, FULL, KINDS, PLAIN, TOASTED, samples
from tests.support.feed_tables import FEED, FeedTables

DEBEZIUM = replace(FEED, format=Format.DEBEZIUM)
LATEST = "ReplacingMergeTree(_offset, _deleted)"
ROWS = "id Int64, name String, paid Nullable(Decimal(18, 2)), born Date32, colour Nullable(String)"
VERSIONS = f"{ROWS}, _offset Int64, _deleted UInt8"
WITH_SCHEMA = ("default", "unwrap")


@pytest.fixture
async def fed(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


async def produce(fed: FeedTables, connector: str, table: str) -> Offsets:
    found = samples(connector, table)
    return await fed.produce_with_keys(*((one.key, one.value) for one in found))


async def latest(fed: FeedTables, what: str) -> list[list[Any]]:
    return await fed.engine.rows(f"SELECT {what} FROM shop.orders FINAL ORDER BY id")


async def of_latest(fed: FeedTables, connector: str, columns: str = VERSIONS) -> None:
    await fed.make(columns, order_by="id", engine=LATEST)
    offsets = await produce(fed, connector, PLAIN)
    counted = await fed.write(offsets, feed=DEBEZIUM)
    assert counted.dead_letters == 0, await fed.errors()


THE_END = [
    [0, "zero", "0.01", "1999-12-31"],
    [2, "again", "4", "1999-12-31"],
    [3, "the last", "0", "1999-12-31"],
]
"""The rows that PostgreSQL had, with one that TRUNCATE removed."""


@pytest.mark.parametrize("connector", WITH_SCHEMA)
async def test_the_table_has_the_rows_of_postgresql_after_updates_and_deletes(
    fed: FeedTables, connector: str
) -> None:
    await of_latest(fed, connector)

    assert await latest(fed, "id, name, toString(paid), toString(born)") == THE_END


async def test_one_block_per_record_gives_the_same_rows_as_one_block(fed: FeedTables) -> None:
    await fed.make(VERSIONS, order_by="id", engine=LATEST)
    offsets = await produce(fed, "default", PLAIN)
    for first in range(offsets.first, offsets.end):
        await fed.write(Offsets(first, first + 1), f"t{first}", DEBEZIUM)

    assert await latest(fed, "id, name, toString(paid), toString(born)") == THE_END


@pytest.mark.parametrize("table", [PLAIN, FULL])
async def test_a_history_table_has_a_row_per_change_and_the_key_of_each_deleted_row(
    fed: FeedTables, table: str
) -> None:
    await fed.make(
        "_offset Int64, _op LowCardinality(String), _deleted Bool, id Int64, name String"
    )
    offsets = await produce(fed, "default", table)

    assert (await fed.write(offsets, feed=DEBEZIUM)).dead_letters == 0
    found = await fed.rows("_offset, _op, _deleted, id, name")
    assert [row[1:] for row in found][-10:] == [
        ["c", False, 1, "one"],
        ["u", False, 1, "uno"],
        ["d", True, 1, ""],
        ["c", False, 10, "uno"],
        ["d", True, 10, ""],
        ["c", False, 2, "two"],
        ["u", False, 2, "two"],
        ["d", True, 2, ""],
        ["c", False, 2, "again"],
        ["c", False, 3, "the last"],
    ]
    assert [row[1:] for row in found][:-10] == ([["r", False, 0, "zero"]] if table == PLAIN else [])


@pytest.mark.parametrize("connector", ["noschema", "rewrite", "rewrite_fields"])
async def test_values_of_records_without_schemas_are_read_by_the_type_of_the_column(
    fed: FeedTables, connector: str
) -> None:
    columns = "id Int64, name String, born Date32, _offset Int64, _deleted UInt8"
    await of_latest(fed, connector, columns)

    assert await latest(fed, "id, name, toString(born)") == [
        [number, name, born] for number, name, _, born in THE_END
    ]


async def test_a_base64_decimal_without_a_schema_is_a_dead_letter(fed: FeedTables) -> None:
    await fed.make("id Int64, paid Nullable(Decimal(18, 2))")
    first = samples("noschema", PLAIN)[0]
    offsets = await fed.produce_with_keys((first.key, first.value))

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(0, 1)
    assert await fed.errors() == [[0, "paid: AQ== does not fit Nullable(Decimal(18, 2))"]]


async def test_null_in_a_column_with_a_default_is_kept_with_the_connector_setting_for_nulls(
    fed: FeedTables,
) -> None:
    columns = "id Int64, colour Nullable(String), _offset Int64"
    for connector, expected in (("noschema", "red"), ("nulls", None)):
        await fed.make(columns)
        offsets = await produce(fed, connector, PLAIN)
        await fed.write(offsets, connector, DEBEZIUM)
        [[found]] = await fed.engine.rows(
            f"SELECT colour FROM shop.orders WHERE id = 1 AND _offset = {offsets.first + 1}"
        )
        assert found == expected


async def test_records_that_cannot_become_rows_are_dead_letters_with_the_reason(
    fed: FeedTables,
) -> None:
    await fed.make("id Int64, name String, a_text String, _deleted UInt8")
    truncated = next(one for one in samples("truncates", PLAIN) if one.key is None)
    deleted = samples("default", PLAIN)[3]
    unchanged = samples("default", TOASTED)[1]
    records: Sequence[tuple[tuple[bytes | None, bytes | None], str]] = [
        ((truncated.key, truncated.value), "the table was truncated in PostgreSQL"),
        ((None, deleted.value), "a row was deleted, and the record has no key"),
        ((b"7", deleted.value), "a row was deleted, and the key has no fields"),
        ((b"\xff", deleted.value), "the key is not JSON"),
        ((unchanged.key, unchanged.value), "a_text: PostgreSQL did not send this large value"),
        ((b"{}", b"nonsense"), "the value is not JSON"),
        ((b"{}", b"5"), "neither a change nor a row"),
        ((b"{}", b'{"before":0,"after":0,"source":0,"op":"m"}'), "a change with the op 'm'"),
        ((b"{}", b'{"before":0,"after":0,"source":0,"op":"c"}'), "without a row in after"),
        ((b"{}", b'{"id":"x"}'), "id: x does not fit Int64"),
        ((b"{}", None), ""),
    ]
    offsets = await fed.produce_with_keys(*(record for record, _ in records))

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(0, len(records) - 1)
    errors = await fed.errors()
    assert len(errors) == len(records) - 1
    for (_, error), (_, expected) in zip(errors, records, strict=False):
        assert expected in error


async def test_a_large_value_that_was_not_sent_affects_only_tables_with_its_column(
    fed: FeedTables,
) -> None:
    await fed.make("id Int64, name String")
    offsets = await produce(fed, "default", TOASTED)

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(2, 0)
    assert await fed.rows() == [[1, "one"], [1, "uno"]]


KINDS_OF_COLUMNS: Sequence[tuple[str, str, str]] = [
    ("a_text", "String", "Grüße, 世界"),
    ("a_varchar", "LowCardinality(String)", "short"),
    ("a_char", "FixedString(5)", "ab   "),
    ("a_boolean", "Bool", "true"),
    ("a_smallint", "Int16", "-32768"),
    ("an_int", "Int32", "2147483647"),
    ("a_bigint", "Int64", "9223372036854775807"),
    ("a_real", "Float32", "1.1"),
    ("a_double", "Float64", "1e300"),
    ("a_decimal", "Decimal(18, 2)", "1234567890123456.78"),
    ("a_numeric", "Decimal(38, 9)", "12345678901234567890.123456789"),
    ("a_numeric", "String", "12345678901234567890.123456789"),
    ("an_integral", "UInt128", "12345678901234567890"),
    ("an_integral", "Decimal(20, 0)", "12345678901234567890"),
    ("a_date", "Date", "2024-02-29"),
    ("a_date", "Date32", "2024-02-29"),
    ("a_time", "String", "23:59:59.999999"),
    ("a_time", "Time64(6)", "23:59:59.999999"),
    ("a_time3", "Time64(3)", "12:34:56.789"),
    ("a_timetz", "String", "10:34:56.789Z"),
    ("a_timestamp", "DateTime64(6)", "2024-02-29 12:34:56.789012"),
    ("a_timestamp", "DateTime64(6, 'UTC')", "2024-02-29 12:34:56.789012"),
    ("a_timestamp", "DateTime64(6, 'Asia/Tokyo')", "2024-02-29 12:34:56.789012"),
    ("a_timestamp", "DateTime64(9, 'UTC')", "2024-02-29 12:34:56.789012000"),
    ("a_timestamp0", "DateTime64(0, 'UTC')", "1900-01-01 00:00:01"),
    ("a_timestamp3", "DateTime64(3, 'UTC')", "2024-02-29 12:34:56.789"),
    ("a_timestamptz", "DateTime64(6, 'UTC')", "2024-02-29 10:34:56.789012"),
    ("a_timestamptz", "DateTime64(6, 'Asia/Tokyo')", "2024-02-29 19:34:56.789012"),
    ("a_timestamptz3", "DateTime64(3, 'UTC')", "2024-02-29 12:34:56.700"),
    ("an_interval", "Int64", "37091106789000"),
    ("a_uuid", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("a_json", "JSON", '{"a":[1,"x"]}'),
    ("a_json", "String", '{"a":  [1, "x"]}'),
    ("a_jsonb", "JSON", '{"b":1}'),
    ("ints", "Array(Nullable(Int32))", "[1,NULL,-3]"),
    ("texts", "Array(Nullable(String))", "['a','b c',NULL]"),
    ("decimals", "Array(Nullable(Decimal(10, 2)))", "[1.5,NULL]"),
    ("days", "Array(Date32)", "['2024-02-29']"),
    ("a_mood", "Enum8('sad' = 1, 'happy' = 2)", "happy"),
    ("an_inet", "String", "192.168.0.1/24"),
    ("a_money", "Decimal(18, 2)", "12.5"),
    ("a_bit", "Bool", "true"),
    ("bits", "UInt16", "257"),
    ("a_range", "String", "[1,5)"),
    ("a_point", "Tuple(x Float64, y Float64)", "(1,2)"),
    ("an_xml", "String", "<a/>"),
]
"""A column of PostgreSQL, a type for it, and its value."""


async def test_a_value_of_each_postgresql_type_is_stored_in_matching_columns(
    fed: FeedTables,
) -> None:
    columns = [f"c{place} {kind}" for place, (_, kind, _) in enumerate(KINDS_OF_COLUMNS)]
    await fed.make(", ".join(columns))
    paths = {f"c{place}": name for place, (name, _, _) in enumerate(KINDS_OF_COLUMNS)}
    first = samples("default", KINDS)[0]
    offsets = await fed.produce_with_keys((first.key, first.value))

    feed = replace(DEBEZIUM, paths=paths)
    assert await fed.write(offsets, feed=feed) == BlockCounts(1, 0), await fed.errors()
    [found] = await fed.rows(", ".join(f"toString({column})" for column in paths))
    pairs = zip(found, KINDS_OF_COLUMNS, strict=True)
    assert [(one, *case) for one, case in pairs if one != case[-1]] == []


async def test_columns_made_from_the_schema_hold_the_values_of_postgresql(fed: FeedTables) -> None:
    first = samples("default", KINDS)[0]
    columns = columns_of_change(first.value or b"")
    await fed.make(", ".join(f"{one.name} {one.type}" for one in columns))
    offsets = await fed.produce_with_keys((first.key, first.value))

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(1, 0), await fed.errors()
    null = [one.name for one in columns if "Nullable" in one.type and "Array" not in one.type]
    conditions = ", ".join(f"isNull({name})" for name in null)
    assert await fed.rows(conditions) == [[0] * len(null)]


async def test_unwrapped_rows_can_be_read_as_json_with_a_field_for_deletions(
    fed: FeedTables,
) -> None:
    columns = "id Int64, name String, _offset Int64, _deleted Bool"
    await fed.make(columns, order_by="id", engine=LATEST)
    offsets = await produce(fed, "rewrite", PLAIN)
    feed = replace(FEED, paths={"_deleted": "__deleted"})

    assert await fed.write(offsets, feed=feed) == BlockCounts(11, 0), await fed.errors()
    assert await latest(fed, "id, name") == [[0, "zero"], [2, "again"], [3, "the last"]]


async def test_bytea_values_are_stored_unchanged(fed: FeedTables) -> None:
    await fed.make("id Int64, a_bytea String")
    first = samples("default", KINDS)[0]
    offsets = await fed.produce_with_keys((first.key, first.value))

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(1, 0)
    assert await fed.rows("hex(a_bytea)") == [["00FF"]]


NOT_HELD: Sequence[tuple[str, str, Sequence[int]]] = [
    ("a_date", "Date32", [2, 3, 4, 5]),
    ("a_day", "Date32", [2, 3, 4, 5]),
    ("a_timestamp", "DateTime64(6, 'UTC')", [2, 3, 4, 5]),
    ("a_timestamp0", "DateTime64(0, 'UTC')", [2, 3, 4, 5]),
    ("a_timestamp3", "DateTime64(3, 'UTC')", [2, 5]),
    ("a_timestamptz", "DateTime64(6, 'UTC')", [2, 3, 4, 5]),
    ("a_timestamptz3", "DateTime64(3, 'UTC')", [2, 3, 4, 5]),
]
"""A column, a type, and the rows with infinity, years before Christ and far ones."""


@pytest.mark.parametrize(
    "connector",
    [
        "default",
        pytest.param("strings", marks=pytest.mark.test_all),
        pytest.param("doubles", marks=pytest.mark.test_all),
        pytest.param("numbers", marks=pytest.mark.test_all),
    ],
)
async def test_a_value_that_no_column_can_hold_is_a_dead_letter_with_field_and_value(
    fed: FeedTables, connector: str
) -> None:
    for name, kind, rows in NOT_HELD:
        await fed.make(f"id Int64, {name} Nullable({kind})")
        offsets = await produce(fed, connector, KINDS)
        await fed.write(offsets, feed=DEBEZIUM)
        errors = [one for one in await fed.errors() if one[0] >= offsets.first]
        assert [offset - offsets.first + 1 for offset, _ in errors] == rows, (name, errors)
        assert all(error.startswith(f"{name}: ") and "does not fit" in error for _, error in errors)


async def test_string_columns_hold_infinite_and_bc_dates_as_postgresql_writes_them(
    fed: FeedTables,
) -> None:
    await fed.make("id Int64, a_date String, a_day String, a_timestamp String, a_time String")
    await fed.write(await produce(fed, "default", KINDS), feed=DEBEZIUM)

    assert (await fed.rows("id, a_date, a_day, a_timestamp, a_time"))[1:3] == [
        [2, "infinity", "-infinity", "infinity", "24:00:00.000000"],
        [3, "0044-03-15 BC", "0001-01-01", "0044-03-15 12:00:00 BC", "00:00:00.000000"],
    ]


SETTINGS = ("strings", "doubles", "numbers")


@pytest.mark.parametrize("connector", SETTINGS)
async def test_rows_are_the_same_with_other_settings_of_the_connector(
    fed: FeedTables, connector: str
) -> None:
    assert connector in CONNECTORS
    kinds = {
        "id": "Int64",
        "a_date": "Date32",
        "a_timestamp3": "DateTime64(3, 'UTC')",
        "an_integral": "Nullable(Int256)" if connector != "doubles" else "Nullable(Float64)",
        "a_money": "Nullable(Decimal(18, 2))",
        "days": "Array(Date32)",
    }
    await fed.make(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    first = samples(connector, KINDS)[0]
    offsets = await fed.produce_with_keys((first.key, first.value))

    assert await fed.write(offsets, feed=DEBEZIUM) == BlockCounts(1, 0), await fed.errors()
    integral = "12345678901234567000" if connector == "doubles" else "12345678901234567890"
    assert await fed.rows(", ".join(f"toString({name})" for name in kinds)) == [
        ["1", "2024-02-29", "2024-02-29 12:34:56.789", integral, "12.5", "['2024-02-29']"]
    ]


async def test_units_apply_to_numbers_without_a_schema(fed: FeedTables) -> None:
    await fed.make("id Int64, a_timestamp0 DateTime64(0, 'UTC'), a_timestamp DateTime64(6, 'UTC')")
    units = {"a_timestamp0": "ms", "a_timestamp": "us"}
    feed = replace(DEBEZIUM, options=FeedOptions(units=units))
    first = samples("noschema", KINDS)[0]
    offsets = await fed.produce_with_keys((first.key, first.value))

    assert await fed.write(offsets, feed=feed) == BlockCounts(1, 0), await fed.errors()
    assert await fed.rows("toString(a_timestamp0), toString(a_timestamp)") == [
        ["1900-01-01 00:00:01", "2024-02-29 12:34:56.789012"]
    ]


async def test_added_columns_have_the_types_of_the_schema(fed: FeedTables) -> None:
    await fed.make("id Int64")
    feed = replace(DEBEZIUM, options=FeedOptions(add_columns=True))
    offsets = await produce(fed, "default", PLAIN)

    assert (await fed.write(offsets, feed=feed)).dead_letters == 0, await fed.errors()
    added = await fed.engine.rows(
        "SELECT name, type FROM system.columns WHERE database = 'shop' AND table = 'orders'"
        " AND name != '_block' ORDER BY name"
    )
    assert added == [
        ["added", "Nullable(Int32)"],
        ["born", "Date32"],
        ["colour", "Nullable(String)"],
        ["id", "Int64"],
        ["name", "String"],
        ["paid", "Nullable(Decimal(18, 2))"],
    ]
    assert ["4", "1999-12-31"] in await fed.rows("toString(paid), toString(born)")


async def test_a_block_that_is_written_again_after_merges_changes_nothing(fed: FeedTables) -> None:
    await fed.make(VERSIONS, order_by="id", engine=LATEST)
    offsets = await produce(fed, "default", PLAIN)
    before, block = (
        Offsets(offsets.first, offsets.first + 2),
        Offsets(offsets.first + 2, offsets.end),
    )
    await fed.write(before, "a", DEBEZIUM)
    await fed.write(block, "b", DEBEZIUM)
    await fed.engine.execute("OPTIMIZE TABLE shop.orders FINAL")

    with pytest.raises(TokenUsed):
        await fed.write(block, "b", DEBEZIUM, again=True)
    await fed.writer.take_away(DEBEZIUM, "b")
    assert await latest(fed, "id, name, toString(paid), toString(born)") == THE_END
    await fed.write(block, "b/1", DEBEZIUM)
    await fed.engine.execute("OPTIMIZE TABLE shop.orders FINAL")

    assert await latest(fed, "id, name, toString(paid), toString(born)") == THE_END
    [[versions]] = await fed.engine.rows("SELECT uniqExact(id) = count() FROM shop.orders")
    assert versions
