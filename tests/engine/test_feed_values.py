"""A stored value reads back as the one that was sent, or the record is a dead letter: all types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from coordinator.feeds.blocks import Counted, Offsets
from coordinator.feeds.definition import FeedDefinition, FeedOptions, Format
from storage.embedded import EmbeddedEngine
from tests.support.feed_tables import BLOCK, FEED, TOPIC_ID, FeedTables
from tests.support.feed_values import (
    DEAD,
    NESTS,
    SCALARS,
    Nest,
    as_python,
    is_same,
    nests_of,
)


@pytest.fixture
async def fed(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    yield made
    await made.close()


Record = tuple[bytes, str, str | None]
"""A value, the nest that it fills, and what that has to store."""


async def check(
    fed: FeedTables, kind: str, nests: Mapping[str, Nest], sent: Sequence[Record],
    feed: FeedDefinition = FEED,
) -> None:  # fmt: skip
    """Each value is stored as it should be, or its record is a dead letter that names it.

    The table has a column for each nest, called as it is.
    """
    columns = ", ".join(f"{name} {nest.type.format(kind)}" for name, nest in nests.items())
    await fed.session.execute("SET flatten_nested = 0, allow_suspicious_low_cardinality_types = 1")
    await fed.session.execute("CREATE DATABASE IF NOT EXISTS shop")
    await fed.session.execute(
        f"CREATE TABLE shop.orders ({columns}, _offset Int64, {BLOCK}) ENGINE = MergeTree"
        " ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100"
    )
    offsets = await produce_all(fed, [value for value, _, _ in sent])
    counted = await fed.write(offsets, feed=feed)
    shown = ", ".join(nest.stored.format(name) for name, nest in nests.items())
    rows = {row[0]: dict(zip(nests, row[1:], strict=True))
            for row in await fed.rows(f"_offset, {shown}")}  # fmt: skip
    errors = dict(await fed.errors())
    wrong = []
    for offset, (value, nest, expected) in enumerate(sent, offsets.first):
        found = rows[offset][nest] if offset in rows else errors.get(offset)
        if expected is DEAD:
            if offset in rows or not is_named(errors.get(offset, ""), nest, kind):
                wrong.append((value, found, "a dead letter"))
        elif offset not in rows or not is_same(kind, rows[offset][nest], expected):
            wrong.append((value, found, expected))
    assert not wrong, f"{kind}: {len(wrong)} of {len(sent)}, such as {wrong[:8]}"
    assert counted == Counted(len(rows), len(sent) - len(rows))


def is_named(error: str, column: str, kind: str) -> bool:
    """Whether an error says which field, which value and which type."""
    field, _, rest = error.partition(": ")
    return field == column and " does not fit " in rest and kind.split("(")[0] in rest


async def produce_all(fed: FeedTables, values: Sequence[bytes]) -> Offsets:
    rows = ", ".join(
        f"('orders', '{TOPIC_ID}', 0, {n}, 0, unhex('{value.hex()}'), now64(3))"
        for n, value in enumerate(values)
    )
    columns = "topic, topic_id, partition, offset, timestamp_ms, value, append_time"
    await fed.engine.execute(f"INSERT INTO messages ({columns}) VALUES {rows}")
    return Offsets(0, len(values))


@pytest.mark.parametrize("kind", SCALARS)
async def test_json_reads_back_or_is_dead(fed: FeedTables, kind: str) -> None:
    nests = nests_of(kind)
    sent = [
        (f'{{"{name}": {nest.wrap(one.json)}}}'.encode(), name, one.stored)
        for name, nest in nests.items()
        for one in SCALARS[kind]()
    ]
    await check(fed, kind, nests, sent)


@pytest.mark.parametrize("kind", SCALARS)
async def test_messagepack_reads_back_or_is_dead(fed: FeedTables, kind: str) -> None:
    nests = {name: NESTS[name] for name in ("alone", "array", "map")}
    sent = []
    for one in SCALARS[kind]():
        try:
            value = as_python(one.json)
            if kind == "String" and not isinstance(value, str) and json.dumps(value) != one.json:
                continue  # blanks, or a number that Python writes in another way
            packed = {"alone": value, "array": [value], "map": {"k": value}}
            sent += [(msgpack.packb({name: packed[name]}), name, one.stored) for name in nests]
        except (ValueError, OverflowError):
            continue  # MessagePack has no such value
    assert len(sent) > 2
    await check(fed, kind, nests, sent, replace(FEED, format=Format.MSGPACK))


@pytest.mark.parametrize("kind", SCALARS)
async def test_csv_reads_back_or_is_dead(fed: FeedTables, kind: str) -> None:
    """Text in quotes is text, and what is not in quotes may be a number."""
    sent = []
    for one in SCALARS[kind]():
        value = json.loads(one.json, parse_float=str, parse_int=str, parse_constant=str)
        is_text = one.json.startswith('"')
        if not isinstance(value, str) or one.json.startswith('"\\ud'):
            continue  # half of a surrogate pair is no text of CSV
        # Nobody can tell whether digits such as 20240101 are a day or a number.
        is_either = "Date" in kind and not is_text and len(value) in (8, 14) and value.isdigit()
        text = '"{}"'.format(value.replace('"', '""')) if is_text else value
        sent.append((text.encode(), "alone", DEAD if is_either else one.stored))
    nests = {"alone": NESTS["alone"]}
    await check(fed, kind, nests, sent, replace(FEED, format=Format.CSV))


UNITS = [
    ("Date", "days", "19723", "2024-01-01"), ("Date", "ms", "1704067200000", "2024-01-01"),
    ("Date", "ms", "1704067200001", DEAD), ("Date32", "s", '"1704067200"', "2024-01-01"),
    ("Date32", "us", "-86400000000", "1969-12-31"), ("Date", "s", "1e30", DEAD),
    ("DateTime('UTC')", "ms", "1704067200000", "2024-01-01 00:00:00"),
    ("DateTime('UTC')", "ms", "1704067200001", DEAD),
    ("DateTime('UTC')", "days", "19723", "2024-01-01 00:00:00"),
    ("DateTime64(3, 'UTC')", "s", "1704067200", "2024-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "s", "1704067200.123", "2024-01-01 00:00:00.123"),
    ("DateTime64(3, 'UTC')", "us", "1704067200123000", "2024-01-01 00:00:00.123"),
    ("DateTime64(3, 'UTC')", "us", "1704067200123001", DEAD),
    ("DateTime64(6, 'UTC')", "ms", '"1704067200123"', "2024-01-01 00:00:00.123000"),
    ("DateTime64(9, 'UTC')", "ns", "1704067200123456789", "2024-01-01 00:00:00.123456789"),
    ("DateTime64(6, 'UTC')", "days", "-1", "1969-12-31 00:00:00.000000"),
    ("DateTime64(3, 'UTC')", "s", '"2024-01-01T00:00:00Z"', "2024-01-01 00:00:00.000"),
    ("DateTime64(3, 'UTC')", "s", '"20240101"', "1970-08-23 06:15:01.000"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "unit", "value", "stored"), UNITS)
async def test_a_unit_says_what_numbers_count(
    fed: FeedTables, kind: str, unit: str, value: str, stored: str | None
) -> None:
    nests = {name: NESTS[name] for name in ("alone", "array", "map")}
    feed = replace(FEED, options=FeedOptions(units=dict.fromkeys(nests, unit)))
    sent = [
        (f'{{"{name}": {nest.wrap(value)}}}'.encode(), name, stored) for name, nest in nests.items()
    ]
    await check(fed, kind, nests, sent, feed)
