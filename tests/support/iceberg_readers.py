"""Programs that read Iceberg tables, besides PyIceberg: Spark and ClickHouse.

Spark is the newest that Iceberg has a version for, in a JVM of its own: Iceberg does not run on the
Spark that pip installs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brokerhouse.spark_jobs.iceberg.tables import LOCAL_CATALOG
from tests.support import tools

LIMIT_S = 300.0
_END = b"\x1d"
"""Behind each answer of ClickHouse."""

Rows = list[dict[str, Any]]


def spark_rows(directory: Path, *queries: str) -> list[Rows]:
    """The rows of each query. Tables are called `local.NAMESPACE.TABLE`."""
    command = [
        *tools.iceberg_rows_command(),
        LOCAL_CATALOG,
        f"jdbc:sqlite:{directory}/catalog.db",
        f"file://{directory}",
        *queries,
    ]
    printed, _ = tools.run(command, limit_s=LIMIT_S)
    return [json.loads(line) for line in printed.splitlines()]


def clickhouse_rows(*queries: str) -> list[Rows]:
    """The rows of each query, with times in UTC.

    ClickHouse reads local tables only below its working directory.
    """
    command = [sys.executable, "-m", "tests.support.iceberg_readers", *queries]
    environment = {**os.environ, "PYTHONPATH": str(tools.PROJECT), "TZ": "UTC"}
    found = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stderr.decode()
    answers = found.stdout.split(_END)[:-1]
    return [[json.loads(row) for row in answer.splitlines()] for answer in answers]


def main(queries: Sequence[str]) -> None:
    from chdb import _chdb

    database = vars(_chdb)["connect"](":memory:")  # it has no type stubs
    database.query("SET output_format_json_quote_64bit_integers = 0", "Null")
    for query in queries:
        sys.stdout.buffer.write(database.query(query, "JSONEachRow").bytes() + _END)


if __name__ == "__main__":
    main(sys.argv[1:])
