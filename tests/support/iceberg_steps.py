"""What tests of the job `iceberg` do with a sink, and see of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support.iceberg_sink import IcebergSink, produce
from tests.support.typed_tables import TypedTables

COMMIT = "brokerhouse.spark_jobs.iceberg.tables.commit"


def as_json(*ids: int, **more: Any) -> list[str]:
    return [json.dumps({"id": one, **more}) for one in ids]


def put(sink: IcebergSink, *values: Any, **more: Any) -> None:
    produce(sink.broker, next(iter(sink.settings.topics)), list(values), **more)


def changed_rows(sink: IcebergSink) -> list[dict[str, Any]]:
    """By ClickHouse, which applies equality deletes."""
    table = f"icebergLocal('{sink.warehouse}/db/t')"
    query = f"SELECT id, v FROM {table} ORDER BY id FORMAT JSONEachRow"
    print_it = f"import chdb; print(chdb.query({query!r}))"
    done = subprocess.run(
        [sys.executable, "-c", print_it], cwd=sink.warehouse, check=True, stdout=subprocess.PIPE
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def dead_letters(sink: IcebergSink) -> list[dict[str, Any]]:
    [topic, *_] = sink.settings.topics
    return TypedTables(sink.broker).sql(
        "SELECT feed, partition, offset, error FROM brokerhouse_feeds.dead_letters"
        f" WHERE topic = '{topic}' ORDER BY offset"
    )


class Died(BaseException):
    """In place of a kill, at a place that a kill would hardly find."""


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
