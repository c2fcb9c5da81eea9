"""The compiled scanner beside Python's json: what is JSON, what is in it, any bytes at all."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.values.layout import Column, RowLayout
from tests.support.examples import up_to

COLUMNS = [
    Column("id", "Int64", ("id",)),
    Column("text", "String", ("text",)),
    Column("deep", "String", ("a", "b.c")),
    Column("items", "Array(Tuple(x Nullable(Float64), y String))", ("items",)),
    Column("at", "DateTime64(3, 'UTC')", ("at",)),
    Column("any", "Variant(String, UInt8, Array(Map(String, UInt8)))", ("any",)),
]
SCANNER = RowLayout(COLUMNS, Format.JSON).scanner()
CSV = RowLayout(COLUMNS[:2], Format.CSV).scanner()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "text": JSON,
        "a": JSON,
        "items": JSON,
        "at": JSON,
        "any": JSON,
        "other": JSON,
    },
)


def error_of(rows: bytes) -> str | None:
    """What the first row says is wrong; None if there are no rows."""
    if not rows:
        return None
    assert struct.unpack_from("<q", rows) == (7,)
    length, place, shift = 0, 8, 0
    while True:
        length |= (rows[place] & 0x7F) << shift
        shift += 7
        place += 1
        if rows[place - 1] < 0x80:
            return rows[place : place + length].decode()


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_every_object_of_json_is_read(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    error = error_of(SCANNER.scan_record(7, text.encode("utf-8", "surrogatepass")))
    assert error is not None
    assert "JSON" not in error
    assert not error or " does not fit " in error


def is_json_object(data: bytes) -> bool:
    try:
        value = json.loads(data.decode("utf-8-sig"), strict=False)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 2),
        st.binary(max_size=2) | st.sampled_from([b",", b"}", b"{", b'"', b"]", b"\\", b"0", b":"]),
    ),
    min_size=10,
    max_size=10,
)
"""Where, how many bytes are taken out there, and which are put in."""


@settings(max_examples=up_to(200))
@given(OBJECTS, CHANGES)
def test_a_record_with_changed_bytes_is_json_where_python_says_so(
    value: Any, changes: list[tuple[float, int, bytes]]
) -> None:
    text = json.dumps(value).encode()
    for where, taken, put in changes:
        place = int(where * len(text))
        check_as_python(text[:place] + put + text[place + taken :])


def check_as_python(text: bytes) -> None:
    rows = SCANNER.scan_record(7, text)
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # a text may have any bytes; Python's may not
    error = error_of(rows)
    if error and (" does not fit " in error or "comes twice" in error):
        return  # the first reason that was found
    is_read = error is not None and "not valid JSON" not in error and "neither" not in error
    if b"\\" in text:  # an escape that nobody wants is not looked at
        assert is_read or not is_json_object(text)
    else:
        assert is_read == is_json_object(text), error


@settings(max_examples=up_to(1000))
@given(st.binary(max_size=200))
def test_any_bytes_are_scanned_or_refused_with_a_reason(data: bytes) -> None:
    for scanner in (SCANNER, CSV):
        error_of(scanner.scan_record(7, data))
        error_of(scanner.scan_record(7, b'{"items": [' + data + b'], "any": ' + data + b"}"))
    with pytest.raises(ValueError, match="not what ClickHouse writes"):
        SCANNER.scan_file(b"m" * 16 + b"\0" * 8 + b"\xff" * 12 + data, b"m" * 16)


def test_an_escaped_text_is_unescaped() -> None:
    scanner = RowLayout([Column("v", "String", ("v",))], Format.RAW).scanner()
    assert scanner.scan_record(7, b"x\0\xff").endswith(b"\0\0\x03x\0\xff")
    scanner = RowLayout([Column("v", "String", ("v",))], Format.JSON).scanner()
    text = 'a"\\/\b\f\n\r\tü\U0001f600\x00'
    rows = scanner.scan_record(7, json.dumps({"v": text}).replace("/", "\\/").encode())
    assert rows[9:] == b"\0" + bytes([len(text.encode())]) + text.encode()


def test_a_scanner_can_be_used_again_after_a_large_record() -> None:
    scanner = RowLayout([Column("v", "String", ("v",))], Format.JSON).scanner()
    for size in (1, 5_000_000, 10, 3_000_000, 0):
        rows = scanner.scan_record(7, json.dumps({"v": "ü" * size}).encode())
        assert rows.endswith("ü".encode() * size)
