"""Columns that are inferred hold each value of the sample exactly."""

from __future__ import annotations

import pytest

from brokerhouse.feeds.inference import (
    InferredColumn,
    field_columns,
    fields_without_columns,
    flat_columns,
    parse_sample,
)

TYPES = [
    (["1", "-2"], "Nullable(Int64)"),
    (["1875924584784080993", "18446744073709551557"], "Nullable(UInt64)"),
    (["-1", "18446744073709551557"], "Nullable(Int128)"),
    (["1", "1" + "0" * 40], "Nullable(Int256)"),
    (["1" + "0" * 90], "Nullable(String)"),
    (["1", "1.5"], "Nullable(Float64)"),
    (["0.1", "1e22"], "Nullable(Float64)"),
    (["1875924584784080993", "0.5"], "Nullable(Decimal(38, 1))"),
    (["12345678901234567890.123456"], "Nullable(Decimal(38, 6))"),
    (["1" * 60 + ".5"], "Nullable(Decimal(76, 1))"),
    (["1" * 80 + ".5"], "Nullable(String)"),
    (["1e400"], "Nullable(String)"),
    (["true", "false"], "Nullable(Bool)"),
    (["true", "1"], "Nullable(String)"),
    (['"x"', '"5"'], "Nullable(String)"),
    (["5", '"x"'], "Nullable(String)"),
    (["5", "null"], "Nullable(Int64)"),
    (["[1, 2]", "[]", "[18446744073709551615]"], "Array(Nullable(UInt64))"),
    (["[]"], "Array(Nullable(String))"),
    (['[{"a": 1}]'], "Array(JSON)"),
    (["[[1], [2.5]]"], "Array(Array(Nullable(Float64)))"),
    (["{}"], "JSON"),
]


@pytest.mark.parametrize(("values", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_an_inferred_type_holds_every_value(values: list[str], kind: str) -> None:
    sample = parse_sample(f'{{"v": {value}}}'.encode() for value in values)
    assert field_columns(sample) == [InferredColumn("v", kind, "v")]


DATES = [
    (["2026-11-24", "1999-01-01"], "Nullable(Date32)"),
    (["2026-11-24T10:00:00Z"], "Nullable(DateTime64(3, 'UTC'))"),
    (["2026-11-24T10:00:00.123456Z", "2026-11-24T10:00:00Z"], "Nullable(DateTime64(6, 'UTC'))"),
    (["2026-11-24 10:00:00"], "Nullable(DateTime64(3))"),
    (["2026-11-24T10:00:00", "2026-11-24T10:00:00Z"], "Nullable(String)"),
    (["2026-11-24", "soon"], "Nullable(String)"),
    (["1850-01-01"], "Nullable(String)"),
    (["2026-02-30"], "Nullable(String)"),
]


@pytest.mark.parametrize(("values", "kind"), DATES)
def test_dates_are_inferred_only_for_a_definition_that_a_person_reviews(
    values: list[str], kind: str
) -> None:
    rows = [{"v": value} for value in values]
    assert flat_columns(rows) == [InferredColumn("v", kind, "v")]
    assert field_columns(rows) == [InferredColumn("v", "Nullable(String)", "v")]


def test_fields_with_dots_and_fields_of_objects_are_columns_of_their_own() -> None:
    sample = parse_sample([b'{"a.b": 1, "a": {"b": "x", "c d": 2}, "a_b": true}'])
    assert flat_columns(sample) == [
        InferredColumn("a.b", "Nullable(Int64)", "a\\.b"),
        InferredColumn("a_b", "Nullable(String)", "a.b"),
        InferredColumn("a_c d", "Nullable(Int64)", "a.c d"),
        InferredColumn("a_b_2", "Nullable(Bool)", "a_b"),
    ]


def test_a_field_that_is_sometimes_an_object_is_one_column_of_text() -> None:
    sample = parse_sample([b'{"a": {"b": 1}}', b'{"a": "x"}'])
    assert flat_columns(sample) == [InferredColumn("a", "Nullable(String)", "a")]


def test_fields_whose_names_no_column_can_have_are_left_out() -> None:
    sample = parse_sample(
        [b'{"": 1, "_block": 2, "_offset": 3, "\\ud83d": 4, "ok": 5}', b"no", b"5"]
    )
    assert [column.name for column in flat_columns(sample)] == ["ok"]
    assert [column.name for column in field_columns(sample)] == ["ok"]
    assert fields_without_columns(sample) == ["", "_block", "_offset", "\ud83d"]
