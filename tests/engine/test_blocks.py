"""Native blocks: what went into a column comes out of the table, bit for bit."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.storage.blocks import (
    BOOL,
    BYTES,
    DATETIME64_MS,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    UUIDS,
    Table,
    Type,
    array_of,
    block,
    map_of,
    nullable,
    tuple_of,
)
from brokerhouse.storage.embedded import EmbeddedEngine

ALL_BYTES = bytes(range(256))
SAMPLES: dict[str, tuple[Type, list[object], str]] = {
    "text": (STRING, ["", "a", "'\"\\\n\r\t\0", "é€😀", "x" * 127, "x" * 128, "y" * 70_000], "v"),
    "bytes": (BYTES, [b"", b"\xff\x00", ALL_BYTES, b"z" * 127, b"z" * 16384], "hex(v)"),
    "booleans": (BOOL, [True, False, True], "v"),
    "int32": (INT32, [0, -1, 2**31 - 1, -(2**31)], "v"),
    "uint32": (UINT32, [0, 2**32 - 1], "v"),
    "int64": (INT64, [0, -1, 2**63 - 1, -(2**63)], "v"),
    "uint64": (UINT64, [0, 2**64 - 1], "v"),
    "times": (DATETIME64_MS, [0, 1_700_000_000_123], "toUnixTimestamp64Milli(v)"),
    "ids": (UUIDS, [UUID(int=0), UUID(int=1), UUID(bytes=ALL_BYTES[1:17])], "v"),
    "nullable text": (nullable(STRING), [None, "", "a", None], "v"),
    "nullable numbers": (nullable(INT64), [None, 0, -5], "v"),
    "arrays": (array_of(INT32), [[], [1], [2, 3], []], "v"),
    "arrays of nothing": (array_of(STRING), [[], []], "v"),
    "arrays of tuples": (
        array_of(tuple_of(name=STRING, metadata=BYTES)),
        [[], [("range", b"\xff"), ("sticky", b"")], [("range", ALL_BYTES)]],
        "arrayMap(p -> (p.name, hex(p.metadata)), v)",
    ),
    "tuples": (tuple_of(a=INT32, b=nullable(STRING)), [(1, None), (2, "two")], "(v.a, v.b)"),
    "maps of maps": (
        map_of(STRING, map_of(INT32, STRING)),
        [{}, {"t": {}}, {"t": {0: "m", 7: "m"}, "ü": {-1: ""}}],
        "v",
    ),
    "maps of nothing": (map_of(STRING, map_of(INT32, STRING)), [{}, {}], "v"),
}


def as_json(value: object) -> object:
    """A value as the engine writes it in JSON, bytes as hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(inner) for inner in value]
    return value


async def test_values_of_every_type_are_read_back_unchanged(engine: EmbeddedEngine) -> None:
    for number, (name, (kind, values, select)) in enumerate(SAMPLES.items()):
        table = Table(f"sample_{number}", (("n", INT32), ("v", kind)))
        await engine.execute(
            f"CREATE TABLE {table.name} (n Int32, v {kind.name}) ENGINE = MergeTree ORDER BY n"
        )
        data = block(table, list(enumerate(values)))
        await engine.insert_block(0, table.name, table.column_list, data, f"token-{number}")
        rows = await engine.rows(f"SELECT n, {select} FROM {table.name} ORDER BY n")
        assert rows == [[n, as_json(value)] for n, value in enumerate(values)], name


async def test_string_columns_with_few_or_many_different_values_are_read_back_unchanged(
    engine: EmbeddedEngine,
) -> None:
    table = Table("many", (("n", INT32), ("same", STRING), ("other", STRING)))
    await engine.execute(
        "CREATE TABLE many (n Int32, same String, other String) ENGINE = MergeTree ORDER BY n"
    )
    rows = [(n, f"{n % 3}", f"{n}" * (n % 50)) for n in range(20_000)]
    await engine.insert_block(0, "many", table.column_list, block(table, rows), "token")
    assert await engine.rows("SELECT * FROM many ORDER BY n") == [list(row) for row in rows]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_column_without_values_is_encoded_as_no_bytes(name: str) -> None:
    assert SAMPLES[name][0].encode([]) == b""


@given(st.lists(st.tuples(st.text(), st.binary()), max_size=5), st.integers(1, 4))
def test_the_length_before_each_string_of_a_column_is_that_of_its_bytes(
    pairs: list[tuple[str, bytes]], repeats: int
) -> None:
    """Every length is read back by hand: a wrong one would shift all that follows."""
    column = array_of(tuple_of(name=STRING, metadata=BYTES)).encode([pairs] * repeats)
    ends = struct.unpack_from(f"<{repeats}Q", column)
    assert ends == tuple(len(pairs) * (n + 1) for n in range(repeats))
    position = 8 * repeats
    expected = [name.encode() for name, _ in pairs] * repeats
    expected += [metadata for _, metadata in pairs] * repeats
    for text in expected:
        size = shift = 0
        while True:
            byte = column[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert column[position : position + size] == text
        position += size
    assert position == len(column)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INT32, 2**31),
        (UINT32, -1),
        (INT64, 2**63),
        (UINT64, -1),
        (INT32, None),
        (INT32, "1"),
        (STRING, None),
        (STRING, b"bytes"),
        (STRING, "\ud800"),
        (BYTES, "text"),
        (BOOL, None),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_refused(kind: Type, value: object) -> None:
    with pytest.raises((struct.error, TypeError, AttributeError, UnicodeEncodeError)):
        block(Table("t", (("v", kind),)), [(value,)])


@pytest.mark.parametrize("rows", [[], [(1,)], [(1, 2, 3)], [(1, 2), (1,)]])
def test_rows_that_do_not_have_one_value_per_column_are_refused(
    rows: list[tuple[int, ...]],
) -> None:
    with pytest.raises(ValueError, match=r"values|zip"):
        block(Table("t", (("a", INT32), ("b", INT32))), rows)
