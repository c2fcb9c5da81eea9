"""The session of docs/tables.md, as typed, prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

from tests.support.broker_process import BrokerProcess
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

SESSION = re.compile(r"<!-- session -->\n```sh\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.DOTALL)


def typed(script: str, broker: BrokerProcess) -> str:
    result = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c",
         script.replace("brokerhouse ", f"{sys.executable} -m broker.cli ")],
        cwd=PROJECT,
        env={
            **os.environ,
            "BROKERHOUSE_KAFKA": broker.kafka,
            "BROKERHOUSE_HTTP": broker.http,
            "BROKERHOUSE_SQL_USER": USER,
            "BROKERHOUSE_SQL_PASSWORD": PASSWORD,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_session_prints_what_the_page_shows(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    (make, _), (ask, shown), (mend, _) = SESSION.findall(
        (PROJECT / "docs" / "tables.md").read_text(encoding="utf-8")
    )

    typed(make, broker)
    tables.await_fed("shop.orders", 2)
    assert _words(typed(ask, broker)) == _words(shown)

    typed(mend, broker)
    until(
        lambda: (
            tables.sql("SELECT items FROM shop.orders ORDER BY id")
            == [{"items": 2}, {"items": 900}]
        ),
        "the mended order is there",
    )


def _words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]
