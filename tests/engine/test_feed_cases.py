"""Tables and records of people who do this job, after public reports: fields with dots, tables that
ClickHouse has flattened, columns that are computed, anything around the value that counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokerhouse.feeds.blocks import BlockCounts
from brokerhouse.feeds.definition import FeedOptions, Format
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from tests.support.feed_tables import FEED, FeedTables


@pytest.fixture
async def fed(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


REPORTED = [
    ("Date", '"9999-12-31"', None),
    ("Date", '"1969-12-31"', None),
    ("Date", '"2150-01-01"', None),
    ("DateTime('UTC')", '"1960-05-01T00:00:00Z"', None),
    ("DateTime('UTC')", '"9999-12-31T23:59:59Z"', None),
    ("DateTime('UTC')", '"0000-05-01T00:00:00Z"', None),
    ("DateTime64(3, 'UTC')", '"0000-05-01 10:00:00"', None),
    ("Date32", "2000", "1975-06-24"),
    ("Date32", "5479", "1985-01-01"),
    ("Date32", "19782", "2024-02-29"),
    ("DateTime64(3, 'UTC')", "946684800000", "2000-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "0", "1970-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "1", "1970-01-01 00:00:00.001"),
    ("DateTime64(3, 'UTC')", "-1000", "1969-12-31 23:59:59.000"),
    ("DateTime64(3, 'UTC')", "1704067200123", "2024-01-01 00:00:00.123"),
    ("Array(DateTime64(3, 'UTC'))", "[1704067200123]", "['2024-01-01 00:00:00.123']"),
    (
        "Map(String, DateTime64(3, 'UTC'))",
        '{"start": 1704067200123}',
        "{'start':'2024-01-01 00:00:00.123'}",
    ),
    ("Array(Int64)", "[1.5]", None),
    ("Array(Int64)", "[null]", None),
    ("Array(Date)", '["2150-01-01", "1900-01-01"]', None),
    ("Float32", "1e39", None),
]


async def test_values_from_public_bug_reports_are_stored_right_or_become_dead_letters(
    fed: FeedTables,
) -> None:
    """One column for each; before, they became another day, another number or `inf`."""
    columns = ", ".join(f"v{number} {kind}" for number, (kind, _, _) in enumerate(REPORTED))
    await fed.make(f"_offset Int64, {columns}")
    values = [f'{{"v{number}": {value}}}' for number, (_, value, _) in enumerate(REPORTED)]
    await fed.write(await fed.produce(*values))

    texts = ", ".join(f"toString(v{number})" for number in range(len(REPORTED)))
    rows = {row[0]: row[1:] for row in await fed.rows(f"_offset, {texts}")}
    stored = [rows[number][number] if number in rows else None for number in range(len(REPORTED))]
    assert stored == [expected for _, _, expected in REPORTED]
    dead = dict(await fed.errors())
    assert dead.keys() == {n for n, (_, _, expected) in enumerate(REPORTED) if expected is None}
    for number, error in dead.items():
        assert error.startswith(f"v{number}: ")
        assert error.endswith(f" does not fit {REPORTED[number][0]}")


async def test_a_field_with_a_dot_in_its_name_and_a_nested_field_are_told_apart(
    fed: FeedTables,
) -> None:
    await fed.make("`service.name` Nullable(String), nested String, deep String, both String")
    feed = replace(
        FEED,
        paths={"nested": "service.name", "deep": "$['a.b'].c", "both": "a\\.b.c"},
    )
    offsets = await fed.produce(
        '{"service.name": "flat", "a.b": {"c": "x"}}',
        '{"service": {"name": "inside"}, "a": {"b": {"c": "y"}}}',
        '{"service.name": "one", "service": {"name": "other"}}',
    )

    assert await fed.write(offsets, feed=feed) == BlockCounts(3, 0)
    assert await fed.rows("ifNull(`service.name`, '-'), nested, deep, both") == [
        ["-", "inside", "", ""],
        ["flat", "", "x", "x"],
        ["one", "other", "", ""],
    ]


async def test_a_field_with_a_dot_gets_a_column_of_its_name(fed: FeedTables) -> None:
    await fed.make("id UInt8")
    feed = replace(FEED, options=FeedOptions(add_columns=True))
    offsets = await fed.produce('{"id": 1, "service.name": "api", "a": {"b": 2}}')

    assert await fed.write(offsets, feed=feed) == BlockCounts(1, 0)
    assert await fed.rows("id, `service.name`, toString(a)") == [[1, "api", '{"b":2}']]


async def test_a_nested_column_that_was_flattened_is_filled_from_objects(fed: FeedTables) -> None:
    await fed.make("id UInt8, items Nested(sku String, qty UInt32)")
    offsets = await fed.produce(
        '{"id": 1, "items": [{"sku": "a", "qty": 1}, {"sku": "b"}]}',
        '{"id": 2, "items": []}',
        '{"id": 3}',
        '{"id": 4, "items.sku": ["x"], "items.qty": [7]}',
        '{"id": 5, "items": [{"sku": "a", "qty": -1}]}',
        '{"id": 6, "items.sku": ["x", "y"], "items.qty": [7]}',
        '{"id": 7, "items": {"sku": "a"}}',
    )

    assert await fed.write(offsets) == BlockCounts(4, 3)
    assert await fed.rows("id, items.sku, items.qty") == [
        [1, ["a", "b"], [1, 0]],
        [2, [], []],
        [3, [], []],
        [4, ["x"], [7]],
    ]
    assert await fed.errors() == [
        [4, "items: -1 does not fit Array(Tuple(`sku` String, `qty` UInt32))"],
        [5, "the arrays items.sku, items.qty have not the same length"],
        [6, 'items: {"sku": "a"} does not fit Array(Tuple(`sku` String, `qty` UInt32))'],
    ]


async def test_computed_columns_are_computed_from_the_fields_of_the_record(fed: FeedTables) -> None:
    await fed.make(
        "raw String EPHEMERAL, n UInt32 DEFAULT length(raw), twice UInt32 MATERIALIZED n * 2,"
        " thrice UInt32 ALIAS n * 3"
    )
    offsets = await fed.produce('{"raw": "abc"}', '{"raw": "abc", "n": 7, "twice": 1}', "{}")

    assert await fed.write(offsets) == BlockCounts(3, 0)
    assert await fed.rows("n, twice, thrice") == [[0, 0, 0], [3, 6, 9], [7, 14, 21]]


async def test_a_column_without_a_field_gets_its_default(fed: FeedTables) -> None:
    await fed.make(
        "id UInt8, n UInt8 DEFAULT 5, text Nullable(String) DEFAULT 'none',"
        " size UInt8 DEFAULT length(tags), tags Array(String) DEFAULT ['a'],"
        " named Map(String, UInt8) DEFAULT map('b', 1)"
    )
    offsets = await fed.produce(
        '{"id": 1}',
        '{"id": 2, "n": null, "text": null, "tags": null, "named": null}',
        '{"id": 3, "n": 0, "text": "", "tags": [], "named": {}}',
    )

    assert await fed.write(offsets) == BlockCounts(3, 0)
    assert await fed.rows("id, n, ifNull(text, 'NULL'), tags, toString(named), size") == [
        [1, 5, "none", ["a"], "{'b':1}", 1],
        [2, 5, "NULL", ["a"], "{'b':1}", 1],
        [3, 0, "", [], "{}", 0],
    ]


async def test_columns_named_like_internal_aliases_are_filled(fed: FeedTables) -> None:
    await fed.make(
        "r1 UInt8 DEFAULT r0 + 1, r0 UInt8, c0 UInt8, p0 Array(UInt8) DEFAULT [t0], t0 UInt8"
    )
    offsets = await fed.produce('{"r0": 1, "c0": 2, "t0": 3}', '{"r1": 4, "p0": []}')

    assert await fed.write(offsets) == BlockCounts(2, 0)
    assert await fed.rows() == [[2, 1, 2, [3], 3], [4, 0, 0, [], 0]]


ODD = [
    b'\xef\xbb\xbf{"id": 1}',
    b' \r\n\t{"id": 1} \n',
    b'{"other": 1e400, "id": 1}',
    b'{"other": "\\ud83d", "\\ud83d": 1, "id": 1}',
    b'{"other": "\xff\xfe", "id": 1}',
    b'{"other": {"id": 2, "id": 3}, "x": 1, "x": 2, "id": 1}',
    b'{"other": "line\nbreak", "id": 1}',
    b'{"other": NaN, "more": [Infinity, -Infinity], "id": 1}',
    b'{"\\u0069d": 1}',
    b'{"other": ' + b"[" * 400 + b"]" * 400 + b', "id": 1}',
    b'{"id": 1, "other": ' + b"9" * 5000 + b"}",
    b'{"id": 1, "": 2}',
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
async def test_a_field_without_a_column_makes_no_dead_letter(fed: FeedTables, value: bytes) -> None:
    await fed.make("id UInt32")
    assert await fed.write(await fed.produce(value)) == BlockCounts(1, 0), await fed.errors()
    assert await fed.rows() == [[1]]


BROKEN = [
    (b'{"id": 1,}', "not valid JSON at byte 9"),
    (b'{"id": 01}', "not valid JSON at byte 8"),
    (b"{'id': 1}", "not valid JSON at byte 1"),
    (b'{"id": 1', "not valid JSON: it ends too early"),
    (b'{"other": tru, "id": 1}', "not valid JSON at byte 10"),
    (b'{"other": [1 2], "id": 1}', "not valid JSON at byte 13"),
    (b'{"other": {"a" 2}, "id": 1}', "not valid JSON at byte 15"),
    (b'{"id": 1, "id": 1}', "the field id comes twice"),
    (b'{"id": 1, "\\u0069d": 1}', "the field id comes twice"),
    (b'{"other": ' + b"[" * 600 + b"]" * 600 + b"}", "nested more than 500 times"),
    (b'[{"id": 1}, 5]', "neither an object nor an array of objects"),
    (b'"text"', "neither an object nor an array of objects"),
    (b"null", "neither an object nor an array of objects"),
    (b'{"id": "\\ud83d"}', "id: \\ud83d does not fit UInt32"),
    (b'{"id": "\xff\xfe\xe2\x82"}', "id: ???? does not fit UInt32"),
    (b'{"id": "' + b"x" * 300 + b'"}', f"id: {'x' * 100} does not fit UInt32"),
    (b'{"id": {"a": [1, 2]}}', 'id: {"a": [1, 2]} does not fit UInt32'),
    (b'{"id": true}', "id: true does not fit UInt32"),
]


@pytest.mark.parametrize(("value", "why"), BROKEN, ids=range(len(BROKEN)))
async def test_a_dead_letter_names_the_fault_of_its_record(
    fed: FeedTables, value: bytes, why: str
) -> None:
    await fed.make("id UInt32")
    assert await fed.write(await fed.produce(value)) == BlockCounts(0, 1)
    assert await fed.errors() == [[0, why]]


async def test_null_in_an_array_map_or_tuple_of_numbers_makes_a_dead_letter(
    fed: FeedTables,
) -> None:
    await fed.make("n Array(Int64), m Map(String, UInt8), t Tuple(a UInt8, b Nullable(UInt8))")
    offsets = await fed.produce(
        '{"n": [null]}',
        '{"n": [1.5]}',
        '{"m": {"a": null}}',
        '{"t": {"a": null}}',
        '{"n": null, "m": null, "t": null}',
        '{"t": {"b": null}}',
    )

    assert await fed.write(offsets) == BlockCounts(2, 4)
    assert [error for _, error in await fed.errors()] == [
        "n: null does not fit Array(Int64)",
        "n: 1.5 does not fit Array(Int64)",
        "m: null does not fit Map(String, UInt8)",
        "t: null does not fit Tuple(a UInt8, b Nullable(UInt8))",
    ]


ZONED = [
    ("2026-03-29T01:30:00", "2026-03-29 01:30:00.000"),
    ("2026-03-29T02:30:00", None),  # there is no such time in Berlin
    ("2026-10-25T02:30:00", "2026-10-25 02:30:00.000"),
    ("2026-07-01T12:00:00Z", "2026-07-01 14:00:00.000"),
    ("2026-07-01T12:00:00.5+02:00", "2026-07-01 12:00:00.500"),
    ("2026-07-01", "2026-07-01 00:00:00.000"),
    ("1900-01-01T00:30:00", "1900-01-01 00:30:00.000"),
    ("2299-12-31T23:59:59.999", "2299-12-31 23:59:59.999"),
    ("2301-01-01T00:30:00", None),
]


async def test_a_time_without_a_zone_is_in_the_time_zone_of_the_column(fed: FeedTables) -> None:
    await fed.make(
        "at Nullable(DateTime64(3, 'Europe/Berlin')), every Array(DateTime64(3, 'Europe/Berlin')),"
        " s Nullable(DateTime('Europe/Berlin')), _offset Int64"
    )
    values = [f'{{"at": "{text}"}}' for text, _ in ZONED]
    values += [f'{{"every": ["{text}"]}}' for text, _ in ZONED]
    values += ['{"s": "2026-07-01T12:00:00"}', '{"s": "2026-03-29 02:30:00"}', '{"s": 0}']
    await fed.write(await fed.produce(*values))

    rows = dict(await fed.rows("_offset, [ifNull(toString(at), toString(every[1])), toString(s)]"))
    for number, (text, stored) in enumerate(ZONED):
        for offset in (number, number + len(ZONED)):
            assert (rows[offset][0] if offset in rows else None) == stored, (text, rows)
    end = 2 * len(ZONED)
    assert rows[end][1] == "2026-07-01 12:00:00"
    assert end + 1 not in rows
    assert rows[end + 2][1] == "1970-01-01 01:00:00"


DATES = (
    "2026-11-24|2026/11/24|20261124|24.11.2026|24/11/2026|24-11-2026|24 Nov 2026|Tue, 24 Nov 2026"
)
TIMES = (
    "2026-11-24 10:00|2026-11-24T10:00:00|2026-11-24t10:00:00z|20261124100000"
    "|Tue, 24 Nov 2026 10:00:00 GMT|2026-11-24 10:00:00 UTC|24/11/2026 10:00:00"
)
FORMS = [
    *((text, 0) for text in DATES.split("|")),
    *((text, 36_000) for text in TIMES.split("|")),
    *((text, 32_400) for text in ("24 Nov 2026 10:00:00 +0100", "2026-11-24T10:00:00+01")),
]
"""Texts, and the seconds after midnight that they mean."""


async def test_dates_and_times_in_common_formats_are_understood(fed: FeedTables) -> None:
    await fed.make("at DateTime('UTC'), _offset Int64")
    offsets = await fed.produce(*(f'{{"at": "{text}"}}' for text, _ in FORMS))

    assert await fed.write(offsets) == BlockCounts(len(FORMS), 0), await fed.errors()
    midnight = 1795478400
    seconds = [second for _, second in sorted(await fed.rows("_offset, toUnixTimestamp(at)"))]
    assert seconds == [midnight + after for _, after in FORMS]


async def test_a_variant_column_stores_a_value_as_the_type_in_which_it_was_sent(
    fed: FeedTables,
) -> None:
    await fed.make(
        "v Variant(String, UInt8, Bool, Array(UInt8), Map(String, UInt8)), _offset Int64,"
        " w Variant(UInt8, Date)"
    )
    in_v = ('"5"', "5", "1.5", "300", "true", "[1]", '{"a": 1}', "null")
    in_w = ('"2026-11-24"', "7", "300", '"5"')
    records = [*(f'{{"v": {one}}}' for one in in_v), *(f'{{"w": {one}}}' for one in in_w)]
    offsets = await fed.produce(*records, '{"v": [300]}')

    counted = await fed.write(offsets)
    shown = "_offset, variantType(v)::String, toString(v), variantType(w)::String, toString(w)"
    rows = {row[0]: row[1:] for row in await fed.rows(shown)}
    assert {offset: row[:2] for offset, row in rows.items() if offset < 8} == {
        0: ["String", "5"],
        1: ["UInt8", "5"],
        2: ["String", "1.5"],
        3: ["String", "300"],
        4: ["Bool", "true"],
        5: ["Array(UInt8)", "[1]"],
        6: ["Map(String, UInt8)", "{'a':1}"],
        7: ["None", ""],
    }
    assert rows[8][2:] == ["Date", "2026-11-24"]
    assert rows[9][2:] == ["UInt8", "7"]
    assert rows[11][2:] == ["UInt8", "5"]
    assert rows[12][:2] == ["String", "[300]"]
    assert counted == BlockCounts(12, 1)
    assert await fed.errors() == [[10, "w: 300 does not fit Variant(Date, UInt8)"]]


async def test_text_that_looks_like_a_date_stays_text_in_json_and_dynamic(fed: FeedTables) -> None:
    await fed.make("j JSON, d Dynamic")
    offsets = await fed.produce(
        '{"j": {"at": "2026-11-24T10:00:00Z", "big": 18446744073709551615}, "d": "2026-11-24"}'
    )

    assert await fed.write(offsets) == BlockCounts(1, 0)
    assert await fed.rows("toString(j), toString(d), dynamicType(d)") == [
        ['{"at":"2026-11-24T10:00:00Z","big":18446744073709551615}', "2026-11-24", "String"]
    ]


async def test_a_feed_names_a_column_that_no_record_can_fill(fed: FeedTables) -> None:
    await fed.make("id UInt8, state AggregateFunction(sum, UInt64)")
    with pytest.raises(
        EngineError, match=r"shop\.orders: column state: no record can fill a column of type Agg"
    ):
        await fed.write(await fed.produce('{"id": 1}'))


async def test_many_columns_are_filled_by_one_statement(fed: FeedTables) -> None:
    names = [
        "Decimal(18, 2)",
        "DateTime64(3, 'Europe/Berlin')",
        "UUID",
        "Array(Array(Decimal(9, 1)))",
    ]
    await fed.make(
        ", ".join(f"c{n} Nullable({names[n % 3]})" for n in range(900)) + f", l {names[3]}"
    )
    value = '{"c0": "1.5", "c1": "2026-01-01 00:00:00", "l": [[1.5]]}'
    assert await fed.write(await fed.produce(value)) == BlockCounts(1, 0)
    assert await fed.rows("c0, toString(c1), c899, l") == [
        [1.5, "2026-01-01 00:00:00.000", None, [[1.5]]]
    ]


async def test_csv_keeps_blanks_and_distinguishes_a_missing_value_from_empty_text(
    fed: FeedTables,
) -> None:
    await fed.make("id UInt8, a Nullable(String), b String, c Array(UInt8), d Nullable(UInt8)")
    feed = replace(FEED, format=Format.CSV)
    offsets = await fed.produce(
        '1, x ,"", "[1, 2]" , 5 ', "2,,,[],", '3,\\N,"\\N",,\\N', '4,"a","b","[300]",1', "5,a,b,x,1"
    )

    assert await fed.write(offsets, feed=feed) == BlockCounts(3, 2)
    assert await fed.rows("id, ifNull(a, 'NULL'), b, c, ifNull(d, 0)") == [
        [1, " x ", "", [1, 2], 5],
        [2, "NULL", "", [], 0],
        [3, "NULL", "\\N", [], 0],
    ]
    assert [error for _, error in await fed.errors()] == [
        "c: 300 does not fit Array(UInt8)",
        "c: x does not fit Array(UInt8)",
    ]
