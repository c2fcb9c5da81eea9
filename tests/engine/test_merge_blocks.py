"""Merged Native blocks in a real engine: the same rows as the separate blocks."""

from __future__ import annotations

from contextlib import closing

from brokerhouse.storage._merge_blocks import block_rows, merge_blocks
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support import message_blocks
from tests.support.record_batches import Record, batch_of
from tests.support.record_codecs import COMPILED, append

COLUMNS = {
    "n": ("UInt64", "number"),
    "text": ("String", "repeat('x', number % 200)"),
    "maybe": ("Nullable(String)", "if(number % 3 = 0, NULL, toString(number))"),
    "low": ("LowCardinality(String)", "if(number % 4 = 0, '', toString(number % 700))"),
    "low_maybe": (
        "LowCardinality(Nullable(String))",
        "multiIf(number % 5 = 0, NULL, number % 5 = 1, '', toString(number % 90))",
    ),
    "same": ("LowCardinality(String)", "'always'"),
    "list": ("Array(Nullable(Int16))", "arrayMap(i -> if(i = 1, NULL, i), range(number % 5))"),
    "lists": ("Array(Array(String))", "arrayMap(i -> [toString(i), 'y'], range(number % 3))"),
    "names": (
        "Map(String, Map(Int32, String))",
        "if(number % 2 = 0, map(), map('a', map(1, 'one'), toString(number), map(2, 'two')))",
    ),
    "headers": (
        "Array(Tuple(key String, value Nullable(String)))",
        "arrayMap(i -> (toString(i), if(i = 0, NULL, 'v')), range(number % 4))",
    ),
    "pair": ("Tuple(Int8, String)", "(number, toString(number))"),
    "named": ("Tuple(`a (b,` Int8, c Enum8('x, (' = 1, 'it\\'s' = 2))", "(number, 'it\\'s')"),
    "flag": ("Bool", "number % 2"),
    "small": ("Int8", "number"),
    "large": ("Int256", "-toInt256(number) * toInt256('1000000000000000000000000')"),
    "big": ("UInt128", "number * 7"),
    "real": ("Float64", "number / 3"),
    "short_real": ("Float32", "number / 3"),
    "money": ("Decimal(10, 2)", "number / 4"),
    "much_money": ("Decimal(60, 10)", "number / 4"),
    "e16": ("Enum16('a' = 1, 'b)' = 1000)", "if(number % 2 = 0, 'a', 'b)')"),
    "day": ("Date", "number"),
    "day32": ("Date32", "toDate32(number)"),
    "at": ("DateTime('Asia/Istanbul')", "number"),
    "at64": ("DateTime64(3, 'UTC')", "number"),
    "code": ("FixedString(7)", "toString(number)"),
    "id": ("UUID", "reinterpretAsUUID(reverse(toString(number)))"),
    "v4": ("IPv4", "toIPv4(toUInt32(number))"),
    "v6": ("IPv6", "toIPv6(toIPv4(toUInt32(number)))"),
}


async def test_merged_blocks_of_the_engine_have_the_rows_of_the_separate_blocks(
    engine: EmbeddedEngine,
) -> None:
    """LowCardinality has indexes of one and of two bytes in them."""
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    select = ", ".join(
        f"CAST({value} AS {kind}) AS {name}" for name, (kind, value) in COLUMNS.items()
    )
    blocks: list[bytes] = []
    first = 0
    with closing(engine.handle()) as handle:
        for count in (1, 300, 1, 2_000, 15, 15, 3):
            sql = f"SELECT {select} FROM numbers({first}, {count})"
            blocks.append(handle.query(sql, "Native").bytes())
            assert block_rows(blocks[-1]) == count
            first += count
    names = ", ".join(COLUMNS)
    for table in ("separate", "merged"):
        await engine.execute(f"CREATE TABLE {table} ({schema}) ENGINE = MergeTree ORDER BY n")
    for number, one in enumerate(blocks):
        if block_rows(one):
            await engine.insert_block(0, "separate", names, one, f"separate-{number}")
    await engine.insert_block(0, "merged", names, merge_blocks(blocks), "merged")
    rows = await engine.rows("SELECT * FROM merged ORDER BY n")
    assert len(rows) == first
    assert rows == await engine.rows("SELECT * FROM separate ORDER BY n")


async def test_merged_blocks_of_the_log_have_the_rows_of_the_separate_blocks(
    engine: EmbeddedEngine,
) -> None:
    """Each has fewer topics than a byte can number; together they have more."""
    blocks = []
    for first in range(0, 300, 12):
        builder = COMPILED.BlockBuilder(1_700_000_000_000)
        for number in range(first, first + 12):
            record = Record(key=b"k" * (number % 3), headers=((b"h", None),) * (number % 4))
            batch = batch_of(record, Record(value=None))
            append(COMPILED, builder, batch, number * 2, f"topic-{number % 290}")
        blocks.append(builder.finish())
    query = "SELECT * EXCEPT (append_time) FROM messages ORDER BY topic, offset"
    await message_blocks.insert(engine, merge_blocks(blocks), "merged")
    merged = await engine.rows(query)
    assert len(merged) == 600
    await engine.execute("TRUNCATE TABLE messages")
    for number, one in enumerate(blocks):
        await message_blocks.insert(engine, one, f"separate-{number}")
    assert merged == await engine.rows(query)
