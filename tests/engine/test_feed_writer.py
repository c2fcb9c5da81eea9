"""Blocks of typed tables in a real engine: formats, types, bad records, tokens used twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.definition import Format
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, TokenUsed
from tests.support.feed_tables import BLOCK, FEED, SOURCE, FeedTables


@pytest.fixture
async def tables(engine: EmbeddedEngine, tmp_path: Path) -> Any:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


async def test_json_objects_and_arrays_become_rows_with_key_headers_and_offset_of_their_record(
    tables: FeedTables,
) -> None:
    await tables.make(
        "id UInt64, city String, _topic String, _partition Int32, _offset Int64,"
        " _timestamp DateTime64(3, 'UTC'), _key Nullable(String),"
        " _headers Array(Tuple(String, Nullable(String)))"
    )
    feed = replace(FEED, paths={"city": "address.city"})
    offsets = await tables.produce(
        '{"id": 1, "address": {"city": "Köln", "zip": "5"}, "more": [1]}',
        '[{"id": 2},\n {"id": 3, "address": {"city": "Bonn"}}]',
        "[]",
        None,
    )

    assert await tables.write(offsets, feed=feed) == BlockCounts(3, 0), await tables.errors()
    said = ["orders", 0]
    headers = [["h", "v"]]
    assert await tables.rows() == [
        [1, "Köln", *said, 0, "2023-11-14 22:13:20.000", "k0", headers],
        [2, "", *said, 1, "2023-11-14 22:13:20.001", "k1", headers],
        [3, "Bonn", *said, 1, "2023-11-14 22:13:20.001", "k1", headers],
    ]


TYPES: Sequence[tuple[str, str | None, str, str]] = [
    ("Bool", "true", "true", "7"),
    ("Int8", "-128", "-128", "-129"),
    ("UInt8", "255", "255", "256"),
    ("Int32", "-5", '"-5"', "1.5"),
    ("UInt64", str(2**64 - 1), str(2**64 - 1), str(2**64)),
    ("Int64", str(-(2**63)), str(-(2**63)), str(2**63)),
    ("Int128", str(2**127 - 1), str(2**127 - 1), str(2**127)),
    ("UInt256", str(2**256 - 1), str(2**256 - 1), '"x"'),
    ("Float64", "1.5", "1.5", '"x"'),
    ("Decimal(18, 2)", "1234567890123456.78", "1234567890123456.78", '"x"'),
    ("Decimal(38, 4)", "12345678901234567890.1234", "12345678901234567890.1234", "{}"),
    ("String", "x\ny", '"x\\ny"', ""),
    ("String", '{"a":[1]}', '{"a":[1]}', ""),
    ("FixedString(2)", "ab", '"ab"', '"abc"'),
    ("LowCardinality(String)", "x", '"x"', ""),
    ("LowCardinality(Nullable(String))", None, "null", ""),
    ("Nullable(Int32)", None, "null", '"x"'),
    ("UUID", str(UUID(int=5)), f'"{UUID(int=5)}"', '"5"'),
    ("IPv4", "1.2.3.4", '"1.2.3.4"', '"1.2.3.400"'),
    ("IPv6", "::1", '"::1"', '"::x"'),
    ("Date", "2026-11-24", '"2026-11-24"', '"2026-02-30"'),
    ("Date32", "1955-11-24", '"1955-11-24"', '"soon"'),
    ("DateTime('UTC')", "2026-11-24 10:00:00", '"2026-11-24T11:00:00+01:00"', '"soon"'),
    ("DateTime64(3, 'UTC')", "2026-11-24 10:00:00.500", '"2026-11-24T10:00:00.5Z"', '"soon"'),
    ("DateTime64(3, 'UTC')", "2024-01-01 00:00:00.123", "1704067200123", "{}"),
    ("Enum8('new' = 1, 'pa\\'id' = 2)", "pa'id", '"pa\'id"', '"lost"'),
    ("Array(UInt16)", "[1,2]", "[1, 2]", '[1, "x"]'),
    ("Array(Nullable(Int8))", "[1,NULL]", "[1, null]", "5"),
    ("Map(String, UInt8)", "{'a':1}", '{"a": 1}', '{"a": 300}'),
    ("Map(String, Array(String))", "{'a':['b']}", '{"a": ["b"]}', "[]"),
    ("Tuple(x UInt8, y String)", "(1,'')", '{"x": 1}', '{"x": "z"}'),
    ("Array(Tuple(x UInt8))", "[(1)]", '[{"x": 1}]', '[{"x": []}]'),
    ("Nested(x UInt8, y String)", "[(1,'a')]", '[{"x": 1, "y": "a"}]', "5"),
    ("Variant(String, UInt64)", "5", "5", ""),
    ("Dynamic", "5", "5", ""),
    ("JSON", '{"a":{"b":1}}', '{"a": {"b": 1}}', "5"),
]
"""A column's type, its value as a row has it, the same in JSON, and what does not fit."""


@pytest.mark.parametrize(("kind", "value", "text", "wrong"), TYPES, ids=lambda x: str(x)[:30])
async def test_a_json_value_of_each_type_is_stored_and_a_wrong_one_makes_a_dead_letter(
    tables: FeedTables, kind: str, value: str | None, text: str, wrong: str
) -> None:
    await tables.engine.execute("CREATE DATABASE IF NOT EXISTS shop")
    await tables.session.execute("SET flatten_nested = 0")
    await tables.session.execute(
        f"CREATE TABLE shop.orders (id UInt64, v {kind}, {BLOCK}) ENGINE = MergeTree"
        " ORDER BY id SETTINGS non_replicated_deduplication_window = 100"
    )
    good = [f'{{"id": 1, "v": {text}}}', '{"id": 2}']
    bad = [f'{{"id": 3, "v": {wrong}}}'] if wrong else []
    offsets = await tables.produce(*good, *bad)

    assert await tables.write(offsets) == BlockCounts(2, len(bad))
    [[one], [two]] = await tables.rows("id")
    assert (one, two) == (1, 2)
    [[stored]] = await tables.engine.rows("SELECT toString(v) FROM shop.orders WHERE id = 1")
    assert stored == value
    if bad:
        [[offset, error]] = await tables.errors()
        assert offset == offsets.end - 1
        assert error


async def test_bad_json_records_become_dead_letters_with_the_reason(tables: FeedTables) -> None:
    await tables.make("id UInt64, items UInt8, amount Decimal(9, 2), tags Array(String)")
    offsets = await tables.produce(
        '{"id": 1}',
        "nonsense",
        '{"id": 2, "items": 300}',
        '{"id": 3, "amount": "much"}',
        "5",
        '{"id": 4, "tags": {"a": 1}}',
        '[{"id": 5}, {"id": "six"}]',
        b"\xff\xfe",
        '{"id": 7} {"id": 8}',
        '{"id": 9, "items": null}',
        "",
    )

    assert await tables.write(offsets) == BlockCounts(2, 9)
    assert await tables.rows("id") == [[1], [9]]
    assert await tables.errors() == [
        [1, "not valid JSON at byte 0"],
        [2, "items: 300 does not fit UInt8"],
        [3, "amount: much does not fit Decimal(9, 2)"],
        [4, "neither an object nor an array of objects"],
        [5, 'tags: {"a": 1} does not fit Array(String)'],
        [6, "id: six does not fit UInt64"],
        [7, "not valid JSON at byte 0"],
        [8, "not valid JSON at byte 10"],
        [10, "not valid JSON: it ends too early"],
    ]


async def test_a_block_without_a_good_record_stores_no_rows(tables: FeedTables) -> None:
    """Also the first one, which has no file yet; lines of an earlier block do not count."""
    await tables.make("id UInt64")
    assert await tables.write(await tables.produce("bad"), "a") == BlockCounts(0, 1)
    assert await tables.write(await tables.produce('{"id": 1}', '{"id": 2}'), "b") == BlockCounts(
        2, 0
    )
    assert await tables.write(await tables.produce("bad", "worse"), "c") == BlockCounts(0, 2)
    assert await tables.write(await tables.produce(None), "d") == BlockCounts(0, 0)
    assert await tables.rows() == [[1], [2]]

    asked = replace(FEED, replay_asked_ms=2_000_000_000_000)
    assert await tables.writer.replay(asked, SOURCE) == BlockCounts(0, 3)
    assert await tables.rows() == [[1], [2]]


async def test_a_csv_record_that_is_not_exactly_one_row_becomes_a_dead_letter(
    tables: FeedTables,
) -> None:
    await tables.make("id UInt8, note String, _offset Int64")
    feed = replace(FEED, format=Format.CSV)
    offsets = await tables.produce(
        '1,"two\nlines, ""quoted"""', "2,x\n", "3\n", "4,y\n5,z", "300,x", "a,b", "6,,", "7,\n0,8,x"
    )

    counted = await tables.write(offsets, feed=feed)
    assert await tables.rows() == [[1, 'two\nlines, "quoted"', 0], [2, "x", 1]]
    assert counted == BlockCounts(2, 6)
    assert [offset for offset, _ in await tables.errors()] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "bad", ['9,"x', '9, "x', '9,\t"x', '9,"x""', '9,a"b,"x', '"9,x', '9,"x"y"', '9,x\n"', '"']
)
async def test_an_unclosed_quote_in_a_csv_record_does_not_affect_other_records(
    tables: FeedTables, bad: str
) -> None:
    await tables.make("id UInt8, note String, _offset Int64")
    feed = replace(FEED, format=Format.CSV)
    offsets = await tables.produce("1,a", bad, "2,b", '3,"c"', "4,d", bad)

    assert await tables.write(offsets, feed=feed) == BlockCounts(4, 2)
    assert await tables.rows() == [[1, "a", 0], [2, "b", 2], [3, "c", 3], [4, "d", 4]]
    assert [offset for offset, _ in await tables.errors()] == [1, 5]


async def test_csv_text_that_is_not_utf_8_or_has_quotes_inside_is_stored(
    tables: FeedTables,
) -> None:
    await tables.make("id UInt8, note String, _offset Int64")
    feed = replace(FEED, format=Format.CSV)
    offsets = await tables.produce(
        b"1,\xff\xfe", b'2,"\xc3"', b"3,\xe2\x82,", b'4,a"b', b'5,"a""\xff, b" ', b"6,\xe2\x82"
    )

    assert await tables.write(offsets, feed=feed) == BlockCounts(5, 1)
    assert await tables.rows("id, hex(note), _offset") == [
        [1, "FFFE", 0],
        [2, "C3", 1],
        [4, "612262", 3],
        [5, "6122FF2C2062", 4],
        [6, "E282", 5],
    ]


async def test_the_raw_format_stores_any_bytes(tables: FeedTables) -> None:
    await tables.make("line String, _offset Int64")
    feed = replace(FEED, format=Format.RAW)
    offsets = await tables.produce("a\nb", b"\xff\x00", None, "")

    assert await tables.write(offsets, feed=feed) == BlockCounts(3, 0)
    assert await tables.rows("hex(line), _offset") == [["", 3], ["610A62", 0], ["FF00", 1]]


async def test_a_block_that_is_written_again_is_stored_once(tables: FeedTables) -> None:
    await tables.make("id UInt64", by="PARTITION BY id % 3")
    offsets = await tables.produce(*[f'{{"id": {n}}}' for n in range(9)], "bad")

    for again in (False, True, True):
        assert await tables.write(offsets, again=again) == BlockCounts(9, 1)
    assert await tables.rows() == [[n] for n in range(9)]
    assert await tables.errors() == [[9, "not valid JSON at byte 0"]]


async def test_writing_a_block_whose_token_was_used_without_all_rows_raises_token_used(
    tables: FeedTables,
) -> None:
    """As a server leaves it that is killed between noting a token and adding its part."""
    await tables.make("id UInt64")
    offsets = await tables.produce('{"id": 1}', '{"id": 2}')
    await tables.write(offsets)
    await tables.engine.execute(
        "ALTER TABLE shop.orders DELETE WHERE id = 2 SETTINGS mutations_sync=2"
    )

    with pytest.raises(TokenUsed):
        await tables.write(offsets, again=True)
    await tables.writer.take_away(FEED, "t")
    assert await tables.write(offsets, "t/1", again=True) == BlockCounts(2, 0)
    assert await tables.rows() == [[1], [2]]


async def test_a_column_that_is_added_while_the_feed_runs_is_filled(tables: FeedTables) -> None:
    await tables.make("id UInt64")
    await tables.write(await tables.produce('{"id": 1, "city": "Bonn"}'), "a")
    await tables.engine.execute("ALTER TABLE shop.orders ADD COLUMN city String DEFAULT 'none'")
    await tables.write(await tables.produce('{"id": 2, "city": "Kiel"}', '{"id": 3}'), "b")

    assert await tables.rows() == [[1, "none"], [2, "Kiel"], [3, "none"]]


async def test_a_replay_stores_rows_of_dead_letters_that_fit_after_a_fix(
    tables: FeedTables,
) -> None:
    await tables.make("id UInt64, items UInt8")
    offsets = await tables.produce('{"id": 1, "items": 300}', "bad", '{"id": 2, "items": 301}')
    assert await tables.write(offsets) == BlockCounts(0, 3)
    await tables.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")
    asked = replace(FEED, replay_asked_ms=2_000_000_000_000)

    assert await tables.writer.replay(asked, SOURCE) == BlockCounts(2, 1)
    assert await tables.rows() == [[1, 300], [2, 301]]
    assert await tables.errors() == [[1, "not valid JSON at byte 0"]]
    again = replace(FEED, replay_asked_ms=2_000_000_000_001)
    assert await tables.writer.replay(again, SOURCE) == BlockCounts(0, 1)
    assert await tables.rows() == [[1, 300], [2, 301]]


async def test_a_replay_repeated_after_a_kill_stores_its_rows_once(tables: FeedTables) -> None:
    await tables.make("id UInt64, items UInt8")
    offsets = await tables.produce('{"id": 1, "items": 300}', '{"id": "two"}')
    await tables.write(offsets)
    await tables.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")
    asked = replace(FEED, replay_asked_ms=2_000_000_000_000)
    kept = await tables.engine.rows("SELECT * FROM dead_letter_versions FINAL")
    await tables.writer.replay(asked, SOURCE)
    # As if it had not come to marking them, and the table had changed since.
    await tables.engine.execute("TRUNCATE TABLE dead_letter_versions")
    for row in kept:
        values = ", ".join(repr(value) if isinstance(value, str) else str(value) for value in row)
        await tables.engine.execute(f"INSERT INTO dead_letter_versions SELECT {values}")
    await tables.engine.execute("ALTER TABLE shop.orders ADD COLUMN name String ALIAS toString(id)")

    assert await tables.writer.replay(asked, SOURCE) == BlockCounts(1, 1)
    assert await tables.rows("id, items") == [[1, 300]]


async def test_a_replay_also_marks_dead_letters_whose_record_was_deleted(
    tables: FeedTables,
) -> None:
    await tables.make("id UInt64")
    offsets = await tables.produce("bad", "worse")
    await tables.write(offsets)
    await tables.engine.execute(
        "ALTER TABLE messages DELETE WHERE offset = 0 SETTINGS mutations_sync = 1"
    )
    asked = replace(FEED, replay_asked_ms=2_000_000_000_000)

    assert await tables.writer.replay(asked, SOURCE) == BlockCounts(0, 2)
    assert not await tables.writer.has_dead_letters(asked, SOURCE)
    why = "not valid JSON at byte 0"
    assert await tables.errors() == [[0, why], [1, why]]


async def test_a_replay_counts_its_rows_once_and_not_those_that_a_block_stored(
    tables: FeedTables,
) -> None:
    await tables.make("id UInt64, items UInt8")
    offsets = await tables.produce('{"id": 1, "items": 300}')
    await tables.write(offsets)
    await tables.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt16")
    # The block is repeated, after a crash, and counts the row itself.
    assert await tables.write(offsets, again=True) == BlockCounts(1, 0)
    more = await tables.produce('[{"id": 2, "items": 1}, {"id": 3, "items": 99999}]')
    await tables.write(more, "u")
    await tables.engine.execute("ALTER TABLE shop.orders MODIFY COLUMN items UInt32")
    for asked_ms in (2_000_000_000_000, 2_000_000_000_001):
        await tables.writer.replay(replace(FEED, replay_asked_ms=asked_ms), SOURCE)

    counted = "SELECT offset, rows FROM dead_letter_versions FINAL WHERE replayed ORDER BY offset"
    assert await tables.engine.rows(counted) == [[0, 0], [1, 2]]


async def test_a_range_is_limited_in_bytes_but_has_at_least_one_record(tables: FeedTables) -> None:
    offsets = await tables.produce("x" * 100, "y" * 100, "z" * 1000, "a")

    assert await tables.writer.cut(SOURCE, offsets, 10_000) == offsets
    assert await tables.writer.cut(SOURCE, offsets, 250) == Offsets(0, 2)
    assert await tables.writer.cut(SOURCE, offsets, 10) == Offsets(0, 1)
    assert await tables.writer.cut(SOURCE, Offsets(2, 4), 10) == Offsets(2, 3)


async def test_writing_to_a_table_that_cannot_be_filled_fails_with_the_reason(
    tables: FeedTables,
) -> None:
    offsets = await tables.produce('{"id": 1}')
    with pytest.raises(EngineError, match=r"there is no table shop\.orders"):
        await tables.write(offsets)
    await tables.make("_offset Int64")
    with pytest.raises(EngineError, match="has no column for values"):
        await tables.write(offsets)
    await tables.make("a String, b String")
    with pytest.raises(
        EngineError, match=r"shop\.orders: the format raw fills one column, and the table has a, b"
    ):
        await tables.write(offsets, feed=replace(FEED, format=Format.RAW))
