"""Refusals that a real engine cannot be made to show: see also tests/clients/test_http_fence.py."""

from typing import Any

import pytest

from brokerhouse.sql.http.access import Role, judge
from brokerhouse.sql.http.errors import SqlError


class SilentHandle:
    """Finds no statement, and fails with an empty message when asked why."""

    def query(self, _sql: bytes, _format: str, *, params: dict[str, str]) -> Any:
        raise RuntimeError("")

    def classify_query(self, _sql: bytes) -> dict[str, Any]:
        return {"statement_count": 0}


def test_sql_that_does_not_parse_is_a_syntax_error_even_if_the_engine_gives_no_reason() -> None:
    with pytest.raises(SqlError) as refused:
        judge(SilentHandle(), b"\xf0(", {}, Role.READER)  # type: ignore[arg-type]  # no more is asked
    assert refused.value.code == 62
