"""Sessions of pages in docs/, typed as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER

_SESSION = re.compile(r"<!-- session -->\n```sh\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.DOTALL)


def sessions(page: str) -> list[tuple[str, str]]:
    """Each session of a page: what is typed, and what it prints or nothing."""
    return _SESSION.findall((PROJECT / "docs" / page).read_text(encoding="utf-8"))


def typed(script: str, broker: BrokerProcess, directory: Path = PROJECT) -> str:
    """What a session prints. `localhost:9092` is the broker. One that hangs ends with its test."""
    script = script.replace("brokerhouse ", f"{sys.executable} -m brokerhouse ")
    script = script.replace("python - ", f"{sys.executable} - ")
    result = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script.replace("localhost:9092", broker.kafka)],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "BROKERHOUSE_BOOTSTRAP": broker.kafka,
            "BROKERHOUSE_HTTP": broker.http,
            "BROKERHOUSE_SQL_USER": USER,
            "BROKERHOUSE_SQL_PASSWORD": PASSWORD,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def words(text: str) -> list[list[str]]:
    """Each line's words: columns of a table are as wide as their cells."""
    return [line.split() for line in text.splitlines() if line.strip()]
