"""`make bench-tables`: a typed table beside its topic: rate, delay, and what it costs producers.

Records are JSON objects of about 190 bytes with 8 columns, in one partition, sent by librdkafka
from this process, on the same cores as the broker. Prints Markdown tables; asserts nothing.

* backlog: a table is made for a topic that is full; rows a second from its first block to its last.
* delay: records come at a steady rate; how long after its append the oldest record of a block is in
  the table (from the history of blocks).
* producers: how fast a topic is filled, with a feed and without one, in turns.
* with --cluster, only these, on two embedded engines and three brokers with default settings: a
  topic that is full, rows a second from the first block of all partitions to their last; the delay
  at a steady rate.
* with --spark, only this: a topic that is full, fed by the job `feed` in Spark's local mode; rows a
  second from the first block to the last.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

from bench.cluster import running_cluster
from bench.machine import machine, running_broker
from tests.spark.feed_job import FeedJob
from tests.support.cluster_processes import Cluster
from tests.support.cluster_tables import ClusterTables
from tests.support.committed import create_topic
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

COLUMNS = (
    "id UInt64, at DateTime64(3), amount Decimal(18,2), name String,"
    " country LowCardinality(String), items UInt8, paid Bool, note String"
)
_DIFFERENT = 10_000
_ASK_EVERY_S = 0.5
_SPARK_PARTITIONS = 2
_CLUSTER_PARTITIONS = 6
VALUES = [
    (
        f'{{"id":{n},"at":"2026-11-24 10:00:00.{n % 1000:03}","amount":{n}.25,'
        f'"name":"customer {n % 1000}","country":"DE","items":{n % 7},"paid":true,'
        f'"note":"{"x" * 60}"}}'
    ).encode()
    for n in range(_DIFFERENT)
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.tables", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rate", type=int, default=100_000, help="records a second, for the delay")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="measure the Spark job alone")
    parser.add_argument("--cluster", action="store_true", help="measure a cluster alone")
    options = parser.parse_args(arguments)
    print(f"{machine()}\n")
    if options.cluster:
        with running_cluster() as cluster:
            _of_cluster(cluster, options)
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        running_broker(Path(directory, "data"), SETTINGS) as broker,
    ):
        tables = TypedTables(broker)
        if options.spark:
            _spark(tables, options)
            return
        _backlog(tables, options)
        _delay(tables, options)
        _producers(tables, options)


def _backlog(tables: TypedTables, options: argparse.Namespace) -> None:
    create_topic(tables.broker.kafka, "backlog", 1)
    _fill(tables.broker.kafka, "backlog", options.records)
    rates = []
    for number in range(options.rounds):
        table = f"bench.backlog{number}"
        _make(tables, table, "backlog")
        _await_fed(tables, table, options.records)
        [row] = tables.sql(
            "SELECT dateDiff('millisecond', minIf(time, phase = 'before'), max(time)) AS ms"
            f" FROM brokerhouse.table_feed_blocks WHERE feed = '{table}' AND first_offset >= 0"
        )
        rates.append(options.records / row["ms"] * 1000)
        tables("drop", table, "--with-table")
    print(f"backlog of {options.records:,}: rows/s {_three(rates)}")


def _spark(tables: TypedTables, options: argparse.Namespace) -> None:
    create_topic(tables.broker.kafka, "backlog", _SPARK_PARTITIONS)
    _fill(tables.broker.kafka, "backlog", options.records)
    rates = []
    for number in range(options.rounds):
        table = f"bench.spark{number}"
        arguments = (table, "--topic", "backlog", "--once", "--columns", COLUMNS)
        with FeedJob(tables.broker, *arguments, "--order-by", "id") as job:
            job.ends()
        [row] = tables.sql(
            "SELECT dateDiff('millisecond', minIf(time, phase = 'before'), max(time)) AS ms"
            f" FROM brokerhouse_feeds.table_feed_blocks WHERE feed = '{table}'"
        )
        [fed] = tables.sql(f"SELECT count() AS n FROM {table}")
        assert fed["n"] == options.records, fed
        rates.append(options.records / row["ms"] * 1000)
        tables.sql(f"DROP TABLE {table}")
    print(f"Spark, backlog of {options.records:,}: rows/s {_three(rates)}")


def _delay(tables: TypedTables, options: argparse.Namespace) -> None:
    create_topic(tables.broker.kafka, "steady", 1)
    _make(tables, "bench.steady", "steady")
    count = options.rate * options.seconds
    seconds = _fill(tables.broker.kafka, "steady", count, options.rate)
    _await_fed(tables, "bench.steady", count)
    delays = tables.sql(
        "SELECT dateDiff('millisecond', append_time, time) AS ms FROM"
        " (SELECT first_offset, time FROM brokerhouse.table_feed_blocks"
        "  WHERE feed = 'bench.steady' AND phase = 'after' AND first_offset >= 0) AS blocks"
        " INNER JOIN (SELECT offset, append_time FROM brokerhouse.messages"
        "  WHERE topic = 'steady') AS records ON records.offset = blocks.first_offset ORDER BY ms"
    )
    _print_delays(count / seconds, seconds, [row["ms"] for row in delays])


def _print_delays(rate: float, seconds: float, delays: Sequence[int]) -> None:
    ordered = sorted(delays)
    print(
        f"delay at {rate:,.0f}/s for {seconds:.0f} s: oldest record of a block"
        f" median {statistics.median(ordered):,.0f} ms, p99 {ordered[int(len(ordered) * 0.99)]:,}"
        f" ms, longest {ordered[-1]:,} ms, {len(ordered)} blocks"
    )


def _of_cluster(cluster: Cluster, options: argparse.Namespace) -> None:
    tables = ClusterTables(cluster)
    create_topic(cluster.bootstrap, "backlog", _CLUSTER_PARTITIONS)
    _fill(cluster.bootstrap, "backlog", options.records, partitions=_CLUSTER_PARTITIONS)
    rates = []
    for number in range(options.rounds):
        table = f"bench.backlog{number}"
        tables("create", table, "--topic", "backlog", "--columns", COLUMNS, "--order-by", "id")
        _await_fed_on_shards(tables, table, options.records)
        found = tables.sql(
            "SELECT toUnixTimestamp64Milli(minIf(time, phase = 'before')) AS first,"
            " toUnixTimestamp64Milli(max(time)) AS last FROM table_feed_blocks"
            f" WHERE feed = '{table}' AND first_offset >= 0"
        )
        ms = max(row["last"] for row in found) - min(row["first"] for row in found)
        rates.append(options.records / ms * 1000)
        tables("drop", table)
    print(f"cluster, backlog of {options.records:,}: rows/s {_three(rates)}")

    create_topic(cluster.bootstrap, "steady", _CLUSTER_PARTITIONS)
    table = "bench.steady"
    tables("create", table, "--topic", "steady", "--columns", COLUMNS, "--order-by", "id")
    begun = f"SELECT uniqExact(partition) AS n FROM table_feed_blocks WHERE feed = '{table}'"
    until(lambda: sum(row["n"] for row in tables.sql(begun)) == _CLUSTER_PARTITIONS, "feeds begin")
    count = options.rate * options.seconds
    seconds = _fill(cluster.bootstrap, "steady", count, options.rate, _CLUSTER_PARTITIONS)
    _await_fed_on_shards(tables, table, count)
    # A block's records and its history are on the same shard, if no slot has moved.
    delays = tables.sql(
        "SELECT dateDiff('millisecond', append_time, time) AS ms FROM"
        " (SELECT partition, first_offset, time FROM table_feed_blocks"
        f"  WHERE feed = '{table}' AND phase = 'after' AND first_offset >= 0) AS blocks"
        " INNER JOIN (SELECT partition, offset, append_time FROM messages WHERE topic = 'steady')"
        " AS records ON records.partition = blocks.partition"
        " AND records.offset = blocks.first_offset"
    )
    _print_delays(count / seconds, seconds, [row["ms"] for row in delays])


def _await_fed_on_shards(tables: ClusterTables, table: str, count: int) -> None:
    while tables.fed(table) < count:
        time.sleep(_ASK_EVERY_S)


def _producers(tables: TypedTables, options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(options.rounds):
        # In turns, because each run leaves merges behind for the next one.
        for kind, found in sorted(rates.items(), reverse=number % 2 == 1):
            topic = f"produce-{kind}-{number}"
            create_topic(tables.broker.kafka, topic, 1)
            table = f"bench.{kind}{number}"
            if kind == "with":
                _make(tables, table, topic)
            found.append(options.records / _fill(tables.broker.kafka, topic, options.records))
            if kind == "with":
                _await_fed(tables, table, options.records)
                tables("drop", table, "--with-table")
    for kind, found in rates.items():
        print(f"producers {kind} a feed: records/s {_three(found)}")
    share = statistics.median(rates["with"]) / statistics.median(rates["without"])
    print(f"with a feed they keep {share:.0%}")


def _await_fed(tables: TypedTables, table: str, count: int) -> None:
    """Asks seldom: every question costs the broker time."""
    while not tables.sql(
        "SELECT 1 FROM brokerhouse.table_feed_progress"
        f" WHERE feed = '{table}' AND next_offset >= {count} AND phase = 'after'"
    ):
        time.sleep(_ASK_EVERY_S)


def _make(tables: TypedTables, table: str, topic: str) -> None:
    tables("create", table, "--topic", topic, "--columns", COLUMNS, "--order-by", "id")
    tables.await_fed(table, 0)


def _fill(bootstrap: str, topic: str, count: int, rate: int = 0, partitions: int = 1) -> float:
    """Sends records to the partitions in turn, at a rate if one is given.

    Returns after how many seconds all are stored.
    """
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    begun = time.monotonic()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, VALUES[number % _DIFFERENT], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
            if rate and (ahead_s := begun + number / rate - time.monotonic()) > 0:
                time.sleep(ahead_s)
    assert producer.flush(300) == 0
    return time.monotonic() - begun


def _three(numbers: Sequence[float]) -> str:
    median = statistics.median(numbers)
    return f"{median:,.0f} ({min(numbers):,.0f} to {max(numbers):,.0f})"


if __name__ == "__main__":
    main()
