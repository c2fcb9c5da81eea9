"""The job `audit` finds what is wrong with feeds of typed tables, and nothing in healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pyspark.sql import SparkSession

from spark_jobs import audit
from spark_jobs.audit_feeds import BLOCKS, STORED, feed_findings
from tests.spark.history import run_job
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.engine_process import EngineProcess
from tests.support.typed_tables import SETTINGS, TypedTables

FEED = ("feed-shop.t", "f", "orders", "i", 0)
Step = tuple[str, int, int, int, int]
"""Phase, first and end offset, rows, total of rows."""
HEALTHY: list[Step] = [
    ("after", -1, 0, 0, 0),
    ("before", 0, 10, 0, 0),
    ("before", 0, 10, 0, 0),  # taken over, and repeated
    ("after", 0, 10, 9, 9),
    ("after", 0, 10, 9, 9),  # taken over again
    ("before", 10, 20, 0, 9),
    ("after", 10, 20, 10, 19),
]
NEXT: list[Step] = [("before", 20, 30, 0, 19), ("after", 20, 30, 10, 29)]
TABLE = {0: 9, 10: 10, 20: 10}


def found(spark: SparkSession, steps: Sequence[Step], table: dict[int, int]) -> Sequence[object]:
    history = [
        (*FEED, version, phase, first, end, rows, total, version)
        for version, (phase, first, end, rows, total) in enumerate(steps, 1)
    ]
    stored = [("f", "i", 0, first, rows) for first, rows in table.items()]
    frame = feed_findings(
        spark.createDataFrame(history, BLOCKS), spark.createDataFrame(stored, STORED)
    )
    return sorted((row["kind"], row["first"], row["last"]) for row in frame.collect())


@pytest.mark.parametrize(
    ("steps", "table", "expected"),
    [
        (HEALTHY + NEXT, TABLE, []),
        (HEALTHY + NEXT[:1], TABLE, []),
        (
            [*HEALTHY, ("before", 0, 5, 0, 19), ("after", 0, 5, 5, 24)], TABLE,
            [("backward", 0, 4), ("duplicate", 0, 4), ("gap", 0, 9)],
        ),
        (
            [*HEALTHY, ("before", 15, 30, 0, 19), ("after", 15, 30, 15, 34)],
            {**TABLE, 15: 15}, [("overlap", 15, 19)],
        ),
        (
            [*HEALTHY, ("before", 23, 30, 0, 19), ("after", 23, 30, 7, 26)],
            {**TABLE, 23: 7}, [("gap", 20, 22)],
        ),
        ([*HEALTHY[:5], *NEXT[:1]], TABLE, [("gap", 10, 19)]),
        (
            [*HEALTHY[:6], ("before", 20, 30, 0, 9), ("after", 20, 30, 10, 19)], TABLE,
            [("gap", 10, 19)],
        ),
        ([*HEALTHY, NEXT[0], ("after", 20, 30, 10, 28)], TABLE, [("gap", 20, 29)]),
        (HEALTHY + NEXT, {**TABLE, 10: 9}, [("gap", 10, 19)]),
        (HEALTHY + NEXT, {0: 9, 20: 10}, [("gap", 10, 19)]),
        (HEALTHY + NEXT, {**TABLE, 20: 20}, [("duplicate", 20, 29)]),
    ],
)  # fmt: skip
def test_each_anomaly_is_found_alone(
    spark: SparkSession, steps: list[Step], table: dict[int, int], expected: Sequence[object]
) -> None:
    assert found(spark, steps, table) == expected


def test_a_feed_of_a_broker_before_and_after_its_table_was_changed(
    spark: SparkSession, own_broker: Callable[..., BrokerProcess]
) -> None:
    del spark
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    create_topic(broker.kafka, "orders", 1)
    tables("create", "shop.t", "--topic", "orders", "--columns", "id UInt64, n UInt8")
    for number in range(3):
        tables.produce("orders", f'{{"id": {number}}}', '{"id": 1, "n": 999}')
        tables.await_fed("shop.t", 2 * number + 2)
    tables.sql("ALTER TABLE shop.t MODIFY COLUMN n UInt16")
    tables("replay", "shop.t")
    tables.await_rows("shop.t", 6)
    broker.restart()
    ended = run_job(audit.command, broker.http, "--format", "json")
    assert (ended.code, ended.told["rows"]) == (0, [])

    broker.stop()
    with EngineProcess(broker.data_dir) as engine:
        engine.sql("DELETE FROM shop.t WHERE id = 2")
        engine.stop()
    broker.start()
    ended = run_job(audit.command, broker.http, "--format", "json")
    assert ended.code == 1
    [row] = ended.told["rows"]
    assert (row["kind"], row["of"], row["topic"], row["group"], row["first"], row["last"]) == (
        "gap", "feed", "orders", "feed-shop.t", 4, 5,
    )  # fmt: skip
    assert row["detail"] == "0 rows in the table, and 1 when it was completed"
