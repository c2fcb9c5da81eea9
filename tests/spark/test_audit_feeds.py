"""The job `audit` finds what is wrong with feeds of typed tables, and nothing in healthy ones."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs import audit
from brokerhouse.spark_jobs.audit_feeds import BLOCKS, STORED, feed_findings
from tests.spark.history import run_job
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.engine_process import EngineProcess
from tests.support.typed_tables import SETTINGS, TypedTables

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


Found = tuple[str, int, int]
"""Kind, first and last offset."""
CASES: list[tuple[list[Step], dict[int, int], list[Found]]] = [
    (HEALTHY + NEXT, TABLE, []),
    (HEALTHY + NEXT[:1], TABLE, []),
    (
        [*HEALTHY, ("before", 0, 5, 0, 19), ("after", 0, 5, 5, 24)],
        TABLE,
        [("backward", 0, 4), ("duplicate", 0, 4), ("gap", 0, 9)],
    ),
    (
        [*HEALTHY, ("before", 15, 30, 0, 19), ("after", 15, 30, 15, 34)],
        {**TABLE, 15: 15},
        [("overlap", 15, 19)],
    ),
    (
        [*HEALTHY, ("before", 23, 30, 0, 19), ("after", 23, 30, 7, 26)],
        {**TABLE, 23: 7},
        [("gap", 20, 22)],
    ),
    ([*HEALTHY[:5], *NEXT[:1]], TABLE, [("gap", 10, 19)]),
    ([*HEALTHY[:6], ("before", 20, 30, 0, 9), ("after", 20, 30, 10, 19)], TABLE, [("gap", 10, 19)]),
    ([*HEALTHY, NEXT[0], ("after", 20, 30, 10, 28)], TABLE, [("gap", 20, 29)]),
    (HEALTHY + NEXT, {**TABLE, 10: 9}, [("gap", 10, 19)]),
    (HEALTHY + NEXT, {0: 9, 20: 10}, [("gap", 10, 19)]),
    (HEALTHY + NEXT, {**TABLE, 20: 20}, [("duplicate", 20, 29)]),
]


@pytest.fixture(scope="module")
def found_in_frames(spark: SparkSession) -> dict[int, list[Found]]:
    """What is found in each case, all of them at once: a feed is a case."""
    history, stored = [], []
    for case, (steps, table, _) in enumerate(CASES):
        feed = (f"feed-{case}", f"f{case}", "orders", "i", 0)
        history += [
            (*feed, version, phase, first, end, rows, total, version)
            for version, (phase, first, end, rows, total) in enumerate(steps, 1)
        ]
        stored += [(f"f{case}", "i", 0, first, rows) for first, rows in table.items()]
    frame = feed_findings(
        spark.createDataFrame(history, BLOCKS), spark.createDataFrame(stored, STORED)
    )
    found: dict[int, list[Found]] = {case: [] for case in range(len(CASES))}
    for row in frame.collect():
        case = int(row["group_id"].removeprefix("feed-"))
        found[case].append((row["kind"], row["first"], row["last"]))
    return found


@pytest.mark.parametrize("case", range(len(CASES)))
def test_each_anomaly_of_a_feed_is_found_and_no_other(
    found_in_frames: dict[int, list[Found]], case: int
) -> None:
    assert sorted(found_in_frames[case]) == CASES[case][2]


# --- in a broker's own tables


@pytest.mark.test_all
@pytest.mark.usefixtures("spark")
def test_a_row_deleted_from_the_table_of_a_feed_is_a_gap(
    sink_broker: BrokerProcess, topic: str
) -> None:
    tables = TypedTables(sink_broker)
    create_topic(sink_broker.kafka, topic, 1)
    tables("create", "audited.t", "--topic", topic, "--columns", "id UInt64")
    for first in (0, 2):
        tables.produce(topic, f'{{"id": {first}}}', f'{{"id": {first + 1}}}')
        tables.await_fed("audited.t", first + 2)
    tables.sql("DELETE FROM audited.t WHERE id = 2")
    ended = run_job(audit.command, sink_broker.http, "--topic", topic, "--json")
    assert ended.code == 1
    assert [
        (row["kind"], row["group"], row["first"], row["last"], row["detail"])
        for row in ended.told["rows"]
    ] == [("gap", "feed-audited.t", 2, 3, "1 rows in the table, and 2 when it was completed")]


# --- planted in the tables of a stopped broker

TABLE_NAME, GONE, UNCOUNTED = "shop.t", "shop.gone", "shop.uncounted"
LATEST = "shop.latest"
HISTORY = "brokerhouse.table_feed_blocks"


def begin(engine: EngineProcess, topic: str, first: int, end: int, later: int = 1) -> None:
    """The feed notes that it begins this block, after all that the history has."""
    _note(engine, topic, "before", first, end, 0, later)


def _note(
    engine: EngineProcess, topic: str, phase: str, first: int, end: int, more: int, later: int
) -> None:
    """`more`: by how much the total of rows is too high. The next feeder uses the next version."""
    engine.sql(
        f"INSERT INTO {HISTORY} SELECT * REPLACE (version + 100 + {later} AS version,"
        f" '{phase}' AS phase, {first} AS first_offset, {end} AS end_offset, 0 AS rows,"
        f" total_rows + {more} AS total_rows, now64(3) AS time) FROM {HISTORY}"
        f" WHERE topic = '{topic}' ORDER BY version DESC LIMIT 1"
    )


def backward(engine: EngineProcess) -> None:
    begin(engine, "backward", 0, 2)


def overlap(engine: EngineProcess) -> None:
    begin(engine, "overlap", 5, 8)


def gap(engine: EngineProcess) -> None:
    begin(engine, "gap", 8, 9)


def never_completed(engine: EngineProcess) -> None:
    begin(engine, "never-completed", 6, 7)
    begin(engine, "never-completed", 7, 8, later=2)


def wrong_total(engine: EngineProcess) -> None:
    begin(engine, "wrong-total", 6, 7)
    _note(engine, "wrong-total", "after", 6, 7, 5, later=2)


def a_row_missing(engine: EngineProcess) -> None:
    engine.sql(f"DELETE FROM {TABLE_NAME} WHERE _topic = 'missing' AND id = 2")


def a_row_doubled(engine: EngineProcess) -> None:
    columns = "id, _topic, _block"
    engine.sql(
        f"INSERT INTO {TABLE_NAME} ({columns}) SELECT {columns} FROM {TABLE_NAME}"
        " WHERE _topic = 'doubled' AND id = 3 SETTINGS insert_allow_materialized_columns = 1"
    )


def a_block_missing(engine: EngineProcess) -> None:
    engine.sql(f"DELETE FROM {TABLE_NAME} WHERE _topic = 'block' AND id < 2")


def the_table_dropped(engine: EngineProcess) -> None:
    engine.sql(f"DROP TABLE {GONE} SYNC")


PLANTED: dict[str, tuple[Callable[[EngineProcess], None], list[tuple[str, int, int, str]]]] = {
    "backward": (backward, [("backward", 0, 1, "begun after the block from 4 on")]),
    "overlap": (overlap, [("overlap", 5, 5, "begun after the block up to 5")]),
    "gap": (gap, [("gap", 6, 7, "in no block of the feed")]),
    "never-completed": (never_completed, [("gap", 6, 6, "the block was never completed")]),
    "wrong-total": (wrong_total, [("gap", 6, 6, "0 rows and 6 before are not 11")]),
    "missing": (a_row_missing, [("gap", 2, 3, "1 rows in the table, and 2 when it was completed")]),
    "doubled": (
        a_row_doubled,
        [("duplicate", 2, 3, "3 rows in the table, and 2 when it was completed")],
    ),
    "block": (a_block_missing, [("gap", 0, 1, "0 rows in the table, and 2 when it was completed")]),
    "gone": (
        the_table_dropped,
        [("gap", 0, 1, "0 rows in the table, and 2 when it was completed")],
    ),
}
OF_ONE_FEED = [topic for topic in PLANTED if topic != "gone"] + ["healthy"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[dict[str, Any]]:
    """What the audit says of a broker whose tables have every anomaly, each in a topic."""
    del spark
    broker = BrokerProcess(tmp_path_factory.mktemp("planted") / "data", SETTINGS)
    with broker:
        fill(TypedTables(broker))
        broker.stop()
        with EngineProcess(broker.data_dir) as engine:
            for plant, _ in PLANTED.values():
                plant(engine)
            engine.sql(f"ALTER TABLE {UNCOUNTED} DROP COLUMN _block")
            engine.stop()
        broker.start()
        yield run_job(audit.command, broker.http, "--json").told


def fill(tables: TypedTables) -> None:
    """A feed with three blocks of two records in each topic, two with a block, and a router."""
    for topic in (*OF_ONE_FEED, "gone", "routed"):
        create_topic(tables.broker.kafka, topic, 1)
    of_topics = [word for topic in OF_ONE_FEED for word in ("--topic", topic)]
    tables("create", TABLE_NAME, *of_topics, "--columns", "id UInt64, _topic String")
    tables("create", GONE, "--topic", "gone", "--columns", "id UInt64")
    tables("create", UNCOUNTED, "--topic", "healthy", "--columns", "id UInt64")
    tables(
        *shlex.split(
            f"create {LATEST} --topic healthy --columns 'id UInt64' --order-by 'intDiv(id, 4)'"
            " --engine ReplacingMergeTree"
        ),
    )
    tables("create", "many.*", "--topic", "routed", "--route", "header=kind")
    tables.produce("routed", '{"id": 1}')  # nothing names its table
    tables.produce("gone", '{"id": 0}', '{"id": 1}')
    for first in (0, 2, 4):
        for topic in OF_ONE_FEED:
            tables.produce(topic, f'{{"id": {first}}}', f'{{"id": {first + 1}}}')
        for topic in OF_ONE_FEED:
            tables.await_fed_of(TABLE_NAME, topic, first + 2)
    tables.await_fed(GONE, 2)
    tables.await_fed(UNCOUNTED, 6)
    tables.await_fed(LATEST, 6)
    tables.await_fed("many.*", 1)


@pytest.mark.test_all
@pytest.mark.parametrize("topic", PLANTED)
def test_each_anomaly_is_found_that_was_planted_in_the_tables_of_a_broker(
    told: dict[str, Any], topic: str
) -> None:
    feed = GONE if topic == "gone" else TABLE_NAME
    found = [row for row in told["rows"] if row["topic"] == topic]
    assert {(row["of"], row["group"], row["partition"]) for row in found} == {
        ("feed", f"feed-{feed}", 0)
    }
    shown = [(row["kind"], row["first"], row["last"], row["detail"]) for row in found]
    assert shown == PLANTED[topic][1]


@pytest.mark.test_all
def test_the_audit_of_feeds_reports_only_planted_anomalies(told: dict[str, Any]) -> None:
    assert not told["ok"]
    assert {row["topic"] for row in told["rows"]} == set(PLANTED)
    kinds = Counter(kind for _, found in PLANTED.values() for kind, *_ in found)
    assert told["summary"].startswith(
        f"{kinds.total()} anomalies ({kinds['backward']} backward, {kinds['overlap']} overlap,"
        f" {kinds['duplicate']} duplicate, {kinds['gap']} gap)"
    )


@pytest.mark.test_all
def test_a_feed_with_a_changed_table_and_a_restarted_broker_has_no_anomaly(
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
    ended = run_job(audit.command, broker.http, "--json")
    assert (ended.code, ended.told["rows"]) == (0, [])


@pytest.mark.test_all
def test_tables_whose_rows_cannot_be_counted_are_named(told: dict[str, Any]) -> None:
    assert told["summary"].endswith(f" replace each other: {LATEST}, {UNCOUNTED}")
