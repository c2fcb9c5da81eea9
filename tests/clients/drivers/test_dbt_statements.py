"""The statements of dbt run without dbt, whose start takes most of a minute: test_dbt.py runs it.

When a new version of dbt sends other statements, record them again and replace statements.sql.
"""

from __future__ import annotations

from typing import Any

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import WRITER, ask, read, write

STATEMENTS = (tools.DBT / "statements.sql").read_text().split("\n--------\n")[1:]
SETTINGS: dict[str, Any] = {
    "session_id": "dbt",
    "wait_end_of_query": 1,
    "date_time_input_format": "best_effort",
    "cast_string_to_dynamic_use_inference": 1,
    "mutations_sync": 3,
    "lightweight_deletes_sync": 3,
    "alter_sync": 3,
    "insert_distributed_sync": 1,
    "cancel_http_readonly_queries_on_client_close": 1,
    "send_progress_in_http_headers": 1,
    "http_headers_progress_interval_ms": 120_000,
}
BUILT = {
    "SELECT count(), uniqExact(offset) FROM shop.newest": "10\t10\n",
    "SELECT count(), uniqExact(offset) FROM shop.replaced": "10\t10\n",
    "SELECT count(), uniqExact(offset) FROM shop.as_they_come": "10\t10\n",
    "SELECT * FROM shop.per_topic": "kept\t10\n",
    "SELECT * FROM shop.named ORDER BY id": "1\tone\n2\ttwo\n",
    "SELECT count() FROM shop.names_over_time": "2\n",
}


def test_the_statements_of_two_builds_of_dbt_make_its_tables(server: BrokerProcess) -> None:
    write(server, "CREATE DATABASE shop")
    for statement in STATEMENTS:
        answer = ask(server, statement, headers=WRITER, database="shop", **SETTINGS)
        assert answer.status == 200, f"{statement}\n{answer.text}"
    assert {query: read(server, query) for query in BUILT} == BUILT
    write(server, "DROP DATABASE shop")
