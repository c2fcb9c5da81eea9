"""Many Native blocks as one: what is merged, how, and which bytes are refused."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.storage import _merge_blocks
from brokerhouse.storage.blocks import INT32, STRING, Table, array_of, block, map_of, nullable
from brokerhouse.storage.native_types import COLUMNS_MAX, HEADS_MAX_BYTES, UnmergeableBlock
from tests.reference import merge_blocks
from tests.support import record_batches as make
from tests.support.block_types import (
    OWN_KEYS,
    UPDATED_KEYS,
    dictionary,
    native,
    tables_of_blocks,
    varuint,
    written_into,
)
from tests.support.other_threads import runs_beside
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.record_codecs import COMPILED, append

T = TypeVar("T")


class IntoBuffers:
    """The compiled module, with a buffer for the merged block that is larger than the block."""

    block_rows = staticmethod(_merge_blocks.block_rows)
    block_columns = staticmethod(_merge_blocks.block_columns)

    @staticmethod
    def merge_blocks(blocks: Sequence[bytes]) -> bytes:
        return written_into(_merge_blocks.merge_blocks_into, blocks)


BOTH: list[Any] = [_merge_blocks, merge_blocks]
TEXT, MAYBE = "LowCardinality(String)", "LowCardinality(Nullable(String))"


@pytest.fixture(params=BOTH, ids=["compiled", "reference"])
def merger(request: pytest.FixtureRequest) -> Any:
    """Each implementation in turn."""
    return request.param


def agreed(call: Callable[[Any], T]) -> T | None:
    """What all implementations answer. None: they refuse."""
    answers: list[T | None] = []
    for module in (*BOTH, IntoBuffers):
        try:
            answers.append(call(module))
        except UnmergeableBlock:
            answers.append(None)
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def maybe_merged(blocks: Sequence[bytes]) -> bytes | None:
    return agreed(lambda module: cast(bytes, module.merge_blocks(blocks)))


def merged(blocks: Sequence[bytes]) -> bytes:
    result = maybe_merged(blocks)
    assert result is not None
    return result


def rows_in(data: bytes) -> int | None:
    return agreed(lambda module: cast(int, module.block_rows(data)))


def columns_in(data: bytes) -> list[tuple[str, str]] | None:
    return agreed(lambda module: cast(list[tuple[str, str]], module.block_columns(data)))


def log_block(*topics: str) -> bytes:
    builder = COMPILED.BlockBuilder(0)
    batch = batch_of(Record(key=b"k", headers=((b"h", b"x"), (b"i", None))), Record(value=None))
    for offset, topic in enumerate(topics):
        append(COMPILED, builder, batch, offset * 2, topic)
    data: bytes = builder.finish()
    return data


# --- rows ---


@given(tables_of_blocks())
def test_blocks_of_any_table_are_merged_into_the_block_of_all_rows(table_and_blocks: Any) -> None:
    columns, blocks = table_and_blocks
    table = Table("t", tuple(columns))
    data = [block(table, rows) for rows in blocks]
    assert merged(data) == block(table, [row for rows in blocks for row in rows])
    for one, rows in zip(data, blocks, strict=True):
        assert rows_in(one) == len(rows)
        assert columns_in(one) == [(name, kind.name) for name, kind in columns]


@given(st.lists(st.tuples(st.sampled_from("abc"), make.batches()), min_size=1, max_size=6))
def test_blocks_of_the_log_are_merged_into_the_block_of_all_batches(
    batches: list[tuple[str, Batch]],
) -> None:
    expected, blocks = COMPILED.BlockBuilder(7), []
    for number, (topic, batch) in enumerate(batches):
        alone = COMPILED.BlockBuilder(7)
        for builder in (alone, expected):
            append(COMPILED, builder, batch, number * 100, topic)
        blocks.append(alone.finish())
    assert merged(blocks) == expected.finish()


def test_a_single_block_is_unchanged(merger: Any) -> None:
    strange = native(1, ("t", TEXT, dictionary([b"x", b"x"], [1], 3, OWN_KEYS)))
    for data in (log_block("a"), log_block(), strange):
        assert merger.merge_blocks([data]) is data
        assert merger.merge_blocks((data,)) is data


def test_blocks_without_rows_add_nothing(merger: Any) -> None:
    empty, one, two = log_block(), log_block("a"), log_block("b", "c")
    assert merger.block_rows(empty) == 0
    assert merger.merge_blocks([empty, one, empty]) == one
    assert merger.merge_blocks([empty, one, empty, two]) == merger.merge_blocks([one, two])
    assert merger.merge_blocks([empty, empty]) == empty


def test_merging_no_blocks_is_refused(merger: Any) -> None:
    with pytest.raises(ValueError, match="no blocks"):
        merger.merge_blocks([])


@pytest.mark.parametrize("wrong", [None, "text", bytearray(9), memoryview(b"123"), 1])
def test_a_block_that_is_not_bytes_is_refused(wrong: Any) -> None:
    good = log_block("a")
    for blocks in ([wrong], [good, wrong], [wrong, good]):
        with pytest.raises(TypeError):
            _merge_blocks.merge_blocks(blocks)
    with pytest.raises(TypeError):
        _merge_blocks.block_rows(wrong)


def test_many_long_blocks_are_merged() -> None:
    """With more rows than a count of one byte holds, and so many bytes that the GIL is released."""
    columns = (
        ("names", map_of(STRING, array_of(INT32))),
        ("text", nullable(STRING)),
        ("number", INT32),
    )
    table = Table("t", columns)
    rows = [({f"{n}": [n] * (n % 3)}, None if n % 5 else "x" * n, n) for n in range(500)]
    blocks = [block(table, rows[start : start + 100]) for start in range(0, 500, 100)]
    assert merged(blocks * 2) == block(table, rows * 2)


# --- columns ---


INT8 = ("a", "Int8", b"\1")
WIDTHS = {
    **dict.fromkeys(("Bool", "Int8", "UInt8", "Enum8('a' = 1, 'b)(\\'' = -2)"), 1),
    **dict.fromkeys(("Int16", "UInt16", "Date", "Enum16('a' = 1)"), 2),
    **dict.fromkeys(("Int32", "UInt32", "Float32", "Date32", "IPv4", "Decimal(9, 2)"), 4),
    **dict.fromkeys(("DateTime", "DateTime('Asia/Istanbul')", "Decimal32(2)"), 4),
    **dict.fromkeys(("Int64", "UInt64", "Float64", "Decimal(10, 0)", "Decimal64(2)"), 8),
    **dict.fromkeys(("DateTime64(3)", "DateTime64(9, 'UTC')", "Decimal(18, 18)"), 8),
    **dict.fromkeys(("Int128", "UInt128", "UUID", "IPv6", "Decimal(38, 2)", "Decimal128(2)"), 16),
    **dict.fromkeys(("Int256", "UInt256", "Decimal(76, 2)", "Decimal256(2)"), 32),
    "FixedString(1)": 1,
    "FixedString(300)": 300,
    "Nullable(UUID)": 17,
    "Nullable(Enum8('it''s' = 1))": 2,
    "Tuple(Int8, Tuple(Int16, Int32))": 7,
    "Tuple(a Int8, `b (,\\`` Int16, Array Int32)": 7,
    "Tuple(Enum8('x, y' = 1), d DateTime64(3, 'UTC'))": 9,
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_values_of_every_fixed_width_type_are_merged(merger: Any, kind: str) -> None:
    data = native(2, ("v", kind, bytes(2 * WIDTHS[kind])), (*INT8[:2], b"\1\2"))
    assert merger.block_rows(data) == 2
    for wrong in (2 * WIDTHS[kind] - 1, 2 * WIDTHS[kind] + 1):
        with pytest.raises(UnmergeableBlock):
            merger.block_rows(native(2, ("v", kind, bytes(wrong))))


NESTED_31 = "Array(" * 31
_UNSUPPORTED = """
    Nothing | int8 | Int8(3) | Int8 Int8 | Int8) | (Int8) | String(3) | FixedString
    FixedString() | FixedString(0) | FixedString(x) | FixedString(16777216) | FixedString(3
    FixedString(3, 4) | Decimal | Decimal() | Decimal(3) | Decimal(0, 0) | Decimal(77, 0)
    Decimal(9, 2 | Decimal(9,) | Enum8( | Enum8('a = 1) | DateTime('UTC' | Nullable | Nullable()
    Nullable(Array(Int8)) | Nullable(Nullable(Int8)) | Nullable(Int8, Int8) | Array | Array(
    Array() | Array(Int8 | Array(Int8)) | Array(Int8)x | Array(a Int8) | Map(Int8)
    Map(Int8, Int8, Int8) | Map(a Int8, b Int8) | Tuple | Tuple() | Tuple( | Tuple(a)
    Tuple(a b Int8) | Tuple(, Int8) | Tuple(Int8,) | Tuple(Int8 Int8 Int8) | Tuple(`a Int8)
    LowCardinality | LowCardinality() | LowCardinality(Int8) | LowCardinality(FixedString(3))
    LowCardinality(Nullable(Int8)) | LowCardinality(String | LowCardinality(String))
    Nullable(LowCardinality(String)) | Array(LowCardinality(String))
    Map(LowCardinality(String), Int8) | JSON | Dynamic | Variant(Int8, String)
    AggregateFunction(sum, Int8) | Point
"""
UNSUPPORTED = [
    *(one for line in _UNSUPPORTED.strip().splitlines() for one in line.strip().split(" | ")),
    "",
    " ",
    f"FixedString({'9' * 5000})",
    "FixedString(\u0663)",
    "Enum8('a\\' = 1)",
    NESTED_31 + "Array(Int8)" + ")" * 31,
    "Array(" * 10_000,
    "(" * 10_000,
    "'" + "\\'" * 20_000,
]


@pytest.mark.parametrize("kind", UNSUPPORTED, ids=lambda kind: kind[:40])
def test_unsupported_types_are_refused_by_name(merger: Any, kind: str) -> None:
    for rows, values in ((0, b""), (1, bytes(64))):
        with pytest.raises(UnmergeableBlock, match=r"column 1, 'v': type .* is not supported"):
            merger.block_rows(native(rows, ("a", "Int8", values[:rows]), ("v", kind, values)))


def test_types_nested_deeper_than_thirty_two_are_refused(merger: Any) -> None:
    kind = NESTED_31 + "Int8" + ")" * 31
    assert merger.block_rows(native(1, ("v", kind, (1).to_bytes(8, "little") * 31 + b"x"))) == 1


def test_a_type_that_is_not_utf8_is_refused(merger: Any) -> None:
    data = native(0, ("v", "Int8", b""))[:-4] + b"\xff\xff\xff\xff"
    with pytest.raises(UnmergeableBlock):
        merger.block_rows(data)


@pytest.mark.parametrize(
    "columns",
    [
        [INT8],
        [INT8, ("b", "Int16", b"12"), INT8],
        [("b", "Int16", b"12"), INT8],
        [("A", "Int8", b"1"), ("b", "Int16", b"12")],
        [INT8, ("b", "UInt16", b"12")],
        [INT8, ("c", "Int16", b"12")],
    ],
    ids=["fewer", "more", "order", "case", "type", "name"],
)
@pytest.mark.parametrize("rows", [0, 1])
def test_blocks_with_different_columns_are_refused(merger: Any, columns: Any, rows: int) -> None:
    first = native(1, INT8, ("b", "Int16", b"12"))
    if not rows:
        columns = [(name, kind, b"") for name, kind, _ in columns]
    other = native(rows, *columns)
    assert merger.merge_blocks([first, first])
    for blocks in ([first, other], [other, first], [first, first, other]):
        with pytest.raises(UnmergeableBlock, match=r"block \d of \d: its columns are not those"):
            merger.merge_blocks(blocks)


def test_a_refusal_names_the_block_and_the_column(merger: Any) -> None:
    good = native(1, INT8, ("b", "String", b"\1x"))
    bad = native(1, INT8, ("b", "String", b"\2x"))
    with pytest.raises(UnmergeableBlock, match="block 2 of 4: column 1, 'b'"):
        merger.merge_blocks([good, good, bad, good])
    with pytest.raises(UnmergeableBlock, match="block 0 of 2: column 1, 'b'"):
        merger.merge_blocks([bad, good])
    with pytest.raises(UnmergeableBlock, match=r"^column 1, 'b'"):
        merger.block_rows(bad)


def test_column_headers_with_a_common_beginning_are_told_apart(merger: Any) -> None:
    for round_ in range(3):
        for number in range(40):  # more than are remembered
            rows = round_ + 1
            columns = [(*INT8[:2], bytes(rows)), (f"c{number}", "Int8", bytes(rows))]
            assert merger.block_rows(native(rows, *columns)) == rows


# --- LowCardinality ---


def low(
    keys: Sequence[bytes],
    indexes: Sequence[int],
    width_log2: int = 0,
    kind: str = TEXT,
    **more: int,
) -> bytes:
    """A block whose only column is of LowCardinality."""
    return native(len(indexes), ("t", kind, dictionary(keys, indexes, width_log2, **more)))


def test_dictionary_keys_are_merged_in_order_and_each_once() -> None:
    blocks = [
        low([b"", b"b", b"a"], [2, 1, 0]),
        low([b"", b"a", b"c", b"unused"], [1, 2, 2]),
        low([b"", b"a", b"c", b"unused"], [3, 2]),
        low([b"x", b"x", b"b"], [0, 1, 2]),
    ]
    keys = [b"", b"b", b"a", b"c", b"unused", b"x"]
    indexes = [2, 1, 0, 2, 3, 3, 4, 3, 5, 5, 1]
    assert merged(blocks) == low(keys, indexes, bits=OWN_KEYS)


def test_the_null_key_of_a_dictionary_differs_from_empty_text() -> None:
    blocks = [
        low([b"", b"", b"b"], [0, 1, 2], kind=MAYBE),
        low([b"strange"], [0, 0], kind=MAYBE),
        low([b"", b"strange", b"", b"b"], [1, 2, 3, 0], kind=MAYBE),
    ]
    expected = low(
        [b"", b"", b"b", b"strange"], [0, 1, 2, 0, 0, 3, 1, 2, 0], kind=MAYBE, bits=OWN_KEYS
    )
    assert merged(blocks) == expected


@pytest.mark.parametrize("flags", [OWN_KEYS, OWN_KEYS | UPDATED_KEYS])
@pytest.mark.parametrize("width_log2", range(4))
def test_dictionary_indexes_are_read_in_every_width(width_log2: int, flags: int) -> None:
    one = low([b"", b"a", b"b"], [2, 1, 0], width_log2, bits=flags)
    expected = low([b"", b"a", b"b"], [2, 1, 0] * 2, bits=OWN_KEYS)
    assert merged([one, one]) == expected


@pytest.mark.parametrize(
    ("kind", "keys", "width_log2"),
    [
        *((kind, *one) for kind in (TEXT, MAYBE) for one in ((255, 0), (256, 0), (257, 1))),
        (TEXT, 65_536, 1),
        (TEXT, 65_537, 2),
        pytest.param(MAYBE, 65_536, 1, marks=pytest.mark.test_all),
        pytest.param(MAYBE, 65_537, 2, marks=pytest.mark.test_all),
    ],
)
def test_many_dictionary_keys_widen_the_indexes(keys: int, width_log2: int, kind: str) -> None:
    names = [b"%d" % n if n else b"" for n in range(keys)]
    half = keys // 2
    first = low(names[:half], range(half), 2, kind)
    second = low([b"", *names[half:]], range(1, keys - half + 1), 2, kind)
    expected = low(names, [*range(half), *range(half, keys)], width_log2, kind, bits=OWN_KEYS)
    assert merged([first, second]) == expected


def test_two_columns_have_their_own_dictionaries() -> None:
    def two(first: bytes, second: bytes) -> bytes:
        return native(
            1,
            ("t", TEXT, dictionary([b"", first], [1])),
            ("u", "String", b"\1u"),
            ("v", MAYBE, dictionary([b"", b"", second], [2])),
        )

    assert merged([two(b"a", b"b"), two(b"b", b"a")]) == native(
        2,
        ("t", TEXT, dictionary([b"", b"a", b"b"], [1, 2], bits=OWN_KEYS)),
        ("u", "String", b"\1u\1u"),
        ("v", MAYBE, dictionary([b"", b"", b"b", b"a"], [2, 3], bits=OWN_KEYS)),
    )


WRONG_DICTIONARIES = {
    "another version": low([b""], [0], version=2),
    "shared keys": low([b""], [0], bits=1 << 8 | OWN_KEYS),
    "no keys of its own": low([b""], [0], bits=UPDATED_KEYS),
    "an unknown flag": low([b""], [0], bits=1 << 11 | OWN_KEYS),
    "a high flag": low([b""], [0], bits=1 << 63 | OWN_KEYS),
    "an unknown width": low([b""], [0], bits=OWN_KEYS | 4),
    "no keys": low([], [0]),
    "an index that has no key": low([b"", b"a"], [0, 2]),
    "a large index that has no key": low([b"", b"a"], [2**64 - 1], 3),
    "fewer rows than the block": native(2, ("t", TEXT, dictionary([b""], [0]))),
    "more rows than the block": native(1, ("t", TEXT, dictionary([b""], [0, 0]))),
    "another number of rows": low([b""], [0], rows=2**63),
}


@pytest.mark.parametrize("name", WRONG_DICTIONARIES)
def test_a_malformed_dictionary_is_refused(merger: Any, name: str) -> None:
    with pytest.raises(UnmergeableBlock, match=r"column 0, 't': .*LowCardinality"):
        merger.block_rows(WRONG_DICTIONARIES[name])


# --- bytes that are no block ---


def small_blocks() -> dict[str, bytes]:
    columns = (
        ("m", map_of(STRING, array_of(nullable(INT32)))),
        ("s", nullable(STRING)),
        ("n", INT32),
    )
    rows = [({"a": [1, None], "b": []}, "x" * 130, 1), ({}, None, 2)]
    return {
        "one": block(Table("t", columns), rows),
        "log": log_block("a"),
        "two keys": low([b"", b"a", b"b"], [1, 2, 0, 1], kind=MAYBE),
        "empty": log_block(),
    }


@pytest.mark.parametrize("name", small_blocks())
def test_a_block_that_is_cut_anywhere_is_refused(merger: Any, name: str) -> None:
    whole = small_blocks()[name]
    for end in range(len(whole)):
        for blocks in ([whole[:end]], [whole, whole[:end]], [whole[:end], whole]):
            with pytest.raises(UnmergeableBlock):
                merger.merge_blocks(blocks)


@pytest.mark.parametrize("name", small_blocks())
def test_bytes_after_a_block_are_refused(merger: Any, name: str) -> None:
    whole = small_blocks()[name]
    for more in (b"\0", whole):
        for blocks in ([whole + more], [whole, whole + more]):
            with pytest.raises(UnmergeableBlock):
                merger.merge_blocks(blocks)


@pytest.mark.parametrize(
    "name", ["one", "two keys", "empty", pytest.param("log", marks=pytest.mark.test_all)]
)
def test_a_changed_byte_is_refused_or_makes_another_block(name: str) -> None:
    whole = small_blocks()[name]
    for at in range(len(whole)):
        for value in {0, 0xFF, whole[at] ^ 1, whole[at] ^ 0x80}:
            both_agree(whole, whole[:at] + bytes([value]) + whole[at + 1 :])


@given(tables_of_blocks(), make.mutations())
def test_damaged_blocks_are_refused_or_are_other_blocks(
    table_and_blocks: Any, mutations: list[make.Mutation]
) -> None:
    columns, blocks = table_and_blocks
    data = block(Table("t", tuple(columns)), blocks[0])
    both_agree(data, make.spoil(data, mutations))


@given(st.sampled_from(sorted(small_blocks())), make.mutations())
def test_damaged_blocks_of_the_log_are_refused_or_are_other_blocks(
    name: str, mutations: list[make.Mutation]
) -> None:
    data = small_blocks()[name]
    both_agree(data, make.spoil(data, mutations))


NAMELESS = ("", "Int8", b"")


def both_agree(good: bytes, spoilt: bytes) -> None:
    rows = {data: rows_in(data) for data in (good, spoilt)}
    assert (columns_in(spoilt) is None) == (rows[spoilt] is None)
    for blocks in ([good, spoilt], [spoilt, spoilt]):
        counts = [rows[data] for data in blocks]
        result = maybe_merged(blocks)
        if None in counts:
            assert result is None
        elif result is not None:
            assert rows_in(result) == sum(count or 0 for count in counts)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\1",
        b"\0\0",
        b"\0\1",
        b"\xff" * 10,
        b"\x80" * 9 + b"\2" + b"\1",
        native(0, *[NAMELESS] * (COLUMNS_MAX + 1)),
        varuint(2**64 - 1) + b"\0",
        varuint(2**64 - 1) + varuint(2**64 - 1),
        native(0, ("a" * HEADS_MAX_BYTES, "Int8", b"")),
        native(0, ("a", f"Enum8('{'a' * HEADS_MAX_BYTES}' = 1)", b"")),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_bytes_that_are_not_a_block_are_refused(merger: Any, data: bytes) -> None:
    with pytest.raises(UnmergeableBlock):
        merger.block_rows(data)


def test_blocks_with_thousands_of_columns_are_merged(merger: Any) -> None:
    assert merger.block_rows(native(0, *[NAMELESS] * COLUMNS_MAX)) == 0


# --- costs ---


HUGE = [2**32, 2**61, 2**61 + 1, 2**63 - 1, 2**63, 2**64 - 1]
CLAIMS = {
    "rows": [
        varuint(1) + varuint(count) + native(0, ("v", kind, b""))[2:] + bytes(100)
        for count in HUGE
        for kind in ("Int8", "Int64", "UInt256", "FixedString(16777215)", "String", "Array(Int8)")
    ],
    "elements": [
        native(1, ("v", f"Array({kind})", count.to_bytes(8, "little") + bytes(100)))
        for count in HUGE
        for kind in ("Int8", "Int64", "UInt256", "String", "Array(Int8)", "Tuple(Int64, String)")
    ],
    "keys": [
        native(1, ("v", TEXT, dictionary([], [])[:16] + count.to_bytes(8, "little") + bytes(100)))
        for count in HUGE
    ],
    "bytes of a string": [native(1, ("v", "String", varuint(count) + bytes(9))) for count in HUGE],
    "columns of each of many": [
        native(0, *[("a", "Int8", b"")] * 9_000),
        *[varuint(9_000) + b"\1"] * 100_000,
    ],
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claimed_count_allocates_no_memory(name: str) -> None:
    too_short = r"the block ends before|does not fit into the block"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in CLAIMS[name][1:]:
        with pytest.raises(UnmergeableBlock, match=too_short):
            _merge_blocks.block_rows(data)
    with pytest.raises(UnmergeableBlock, match=too_short):
        _merge_blocks.merge_blocks(CLAIMS[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_384


def test_merging_and_refusing_leak_nothing() -> None:
    good = log_block("a" * 1000)
    other = low([b"", b"k" * 100_000], [1])
    blocks = [good] * 1000

    def work() -> None:
        for _ in range(50):
            _merge_blocks.merge_blocks(blocks)
            _merge_blocks.merge_blocks([other, other])
            for bad in ([*blocks, good[:-1]], [*blocks, other], [good + b"x"]):
                with pytest.raises(UnmergeableBlock):
                    _merge_blocks.merge_blocks(bad)

    work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_384


def test_merging_large_blocks_releases_the_gil() -> None:
    large = native(1 << 16, ("v", "String", (b"\x40" + bytes(64)) * (1 << 16)))
    assert runs_beside(lambda: _merge_blocks.block_rows(large))
    assert runs_beside(lambda: _merge_blocks.merge_blocks([large] * 4))
