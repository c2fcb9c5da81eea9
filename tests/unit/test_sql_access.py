"""What is refused before it runs, where the engine cannot be made to show it."""

from typing import Any

import pytest

from sql.http.access import Role, judge
from sql.http.errors import SqlError


class SilentHandle:
    """Finds no statement, and fails without a word when asked why."""

    def query(self, _sql: bytes, _format: str, *, params: dict[str, str]) -> Any:
        raise RuntimeError("")

    def classify_query(self, _sql: bytes) -> dict[str, Any]:
        return {"statement_count": 0}


def test_what_does_not_parse_is_a_syntax_error_even_if_the_engine_does_not_say_so() -> None:
    with pytest.raises(SqlError) as refused:
        judge(SilentHandle(), b"\xf0(", {}, Role.READER)  # type: ignore[arg-type]  # no more is asked
    assert refused.value.code == 62
