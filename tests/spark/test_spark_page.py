"""The sessions of docs/spark.md run as typed, against a test broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs.options import COLUMNS, known_options
from tests.spark.reading import with_python
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.server_process import PROJECT

PAGE = (PROJECT / "docs" / "spark.md").read_text(encoding="utf-8")
SESSION = re.compile(r"<!-- session -->\n```python\n(.*?)```\n", re.DOTALL)
LINES = [
    "2026-11-20 15:36:01 startup archives unpack",
    "2026-11-20 15:36:01 install kcat:amd64 <none> 1.7.1-2",
    "2026-11-21 09:00:00 install curl:amd64 <none> 7.88.1-10",
]


def test_the_sessions_do_what_the_page_says(
    spark: SparkSession,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = ConfluentKafka()
    client.create_topic(broker.kafka, "packages", 2)
    client.produce(broker.kafka, "packages", [Record(None, line.encode()) for line in LINES])
    monkeypatch.chdir(tmp_path)
    batch, stream = SESSION.findall(PAGE)
    names: dict[str, Any] = {}
    exec(typed(batch, broker), names)
    assert "|        0|    2|" in capsys.readouterr().out
    *statements, last = typed(stream, broker).strip().splitlines()
    for more in (3, 4):
        with_python(lambda: exec("\n".join(statements), names))
        assert eval(last, names) == more
        client.produce(broker.kafka, "packages", [Record(None, b"one more line")])


def typed(session: str, broker: BrokerProcess) -> str:
    """With paths in the test's directory: Spark's working directory never changes."""
    text = session.replace("http://localhost:8123", broker.http_url)
    return text.replace('"try/', f'"{Path.cwd()}/try/')


def test_every_option_and_column_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(known_options()) <= named
    assert set(COLUMNS) <= named
