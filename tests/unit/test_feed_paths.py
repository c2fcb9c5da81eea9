"""Paths of fields: dots, escapes and JSONPath."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.feeds.paths import path_as_text, path_from_text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("city", ("city",)),
        ("address.city", ("address", "city")),
        ("address\\.city", ("address.city",)),
        ("a\\\\.b", ("a\\", "b")),
        ("$.address.city", ("address", "city")),
        ("$['a.b'].c", ("a.b", "c")),
        ('$["a.b"]["c d"]', ("a.b", "c d")),
        ("$['it\\'s']", ("it's",)),
        ("\\$.a", ("$", "a")),
        ("ü.x y", ("ü", "x y")),
    ],
)
def test_a_path_is_read_as_fields(text: str, path: tuple[str, ...]) -> None:
    assert path_from_text(text) == path


@pytest.mark.parametrize("text", ["", ".", "a..b", "a.", ".a", "$", "$.", "$[0]", "$['a'", "$..a"])
def test_a_malformed_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        path_from_text(text)


@given(st.lists(st.text(min_size=1), min_size=1).map(tuple))
def test_a_path_written_as_text_is_read_as_the_same(path: tuple[str, ...]) -> None:
    assert path_from_text(path_as_text(path)) == path
