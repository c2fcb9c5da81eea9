"""How long a statement waits for its turn, and that what waited in vain takes no place."""

from unittest.mock import Mock

import pytest

from brokerhouse.broker.settings.config import Settings
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.errors import SqlError
from brokerhouse.sql.http.pool import StatementPool

HERE = "127.0.0.1"
_MANY_TIMES = 30


async def test_a_query_whose_turn_does_not_come_in_time_is_refused() -> None:
    settings = Settings(sql_max_queries=1, sql_wait_ms=10, sql_max_waiting=4)
    pool = StatementPool(Mock(), settings.sql_limits)
    permit = await pool.permit(Role.READER, HERE)
    for _ in range(_MANY_TIMES):
        with pytest.raises(SqlError) as refused:
            await pool.permit(Role.READER, HERE)
        assert refused.value.code == 202
        assert "none has ended within 10 ms: send the query again later" in str(refused.value)
    permit.give_back()
    (await pool.permit(Role.READER, HERE)).give_back()
