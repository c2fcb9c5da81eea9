"""`make bench-spark`: rows per second into Spark, by the data source and by Spark's Kafka source.

One topic, written once with librdkafka, is read by ClickHouse itself, which sends nothing; as Arrow
over HTTP by Python alone; and by Spark in local mode, which discards the rows (format `noop`).
Broker, ClickHouse and Spark share the cores. The readers run in turn, several times each; the
median is shown. Prints a Markdown table; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from bench.machine import machine, running_broker
from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource
from brokerhouse.spark_jobs.session import session
from tests.support import tools
from tests.support.broker_process import BrokerProcess

_TOPIC = "bench"
_PARTITIONS = 4
_COLUMNS = "key, value, topic, partition, offset, timestamp_ms, timestamp_type, headers"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--bytes", type=int, default=100, help="the size of each value")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    spark = session(
        "bench", spark__driver__memory="2g", spark__jars=",".join(tools.spark_source_jars())
    )
    print(f"{machine()}, Spark {spark.version}\n")
    with tempfile.TemporaryDirectory() as directory:
        settings = {"sql_max_threads": str(os.cpu_count() or 1)}
        with running_broker(Path(directory, "data"), settings) as broker:
            _write(broker, options.records, options.bytes)
            _compare(spark, broker, options.records, options.bytes, options.rounds)
    spark.stop()


def _write(broker: BrokerProcess, records: int, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for created in admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)]).values():
        created.result(30)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.kafka,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    letters = random.Random(1).choices(string.ascii_letters, k=1_000_000)
    text = "".join(letters).encode()
    for number in range(records):
        start = number * 7919 % (len(text) - size)
        while True:
            try:
                producer.produce(
                    _TOPIC,
                    text[start : start + size],
                    b"%d" % (number % 100_000),
                    number % _PARTITIONS,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _compare(
    spark: SparkSession, broker: BrokerProcess, records: int, size: int, rounds: int
) -> None:
    url = broker.http_url
    late = records // _PARTITIONS * 99 // 100

    def scan() -> int:
        broker.sql(
            f"SELECT {_COLUMNS} FROM messages_committed WHERE topic = '{_TOPIC}' FORMAT Null"
        )
        return records

    def arrow() -> int:
        source = BrokerhouseDataSource({"servers": url, "subscribe": _TOPIC})
        reader = source.reader(source.schema())
        return sum(
            batch.num_rows  # type: ignore[union-attr]
            for one in reader.partitions()
            for batch in reader.read(one)
        )

    def ours(**options: str) -> DataFrame:
        return (
            spark.read.format("brokerhouse")
            .options(servers=url, subscribe=_TOPIC, **options)
            .load()
        )

    def of_kafka(**options: str) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.kafka)
        return reader.options(subscribe=_TOPIC, **options).load()

    def into_nothing(frame: Callable[[], DataFrame], rows: int) -> Callable[[], int]:
        def run() -> int:
            frame().write.format("noop").mode("overwrite").save()
            return rows

        return run

    last = records - late * _PARTITIONS
    ways: dict[str, Callable[[], int]] = {
        "ClickHouse scans, and sends nothing": scan,
        "Arrow over HTTP into Python, one core": arrow,
        "Spark, `brokerhouse`, all columns": into_nothing(ours, records),
        "Spark, `brokerhouse`, `columns` = value": into_nothing(
            lambda: ours(columns="value"), records
        ),
        "Spark, `kafka`": into_nothing(of_kafka, records),
        "Spark, `kafka`, with headers": into_nothing(
            lambda: of_kafka(includeHeaders="true"), records
        ),
        "the last 1 %: `brokerhouse`, filter on offset": into_nothing(
            lambda: ours().where(f"offset >= {late}"), last
        ),
        "the last 1 %: `kafka`, filter on offset": into_nothing(
            lambda: of_kafka().where(f"offset >= {late}"), last
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    counted: dict[str, int] = {}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            counted[name] = way()
            took[name].append(time.perf_counter() - began)
    print(f"{records:,} records of {size} bytes in {_PARTITIONS} partitions, median of {rounds}:\n")
    print("| reader | s | rows/s |\n|---|---:|---:|")
    for name, all_of_them in took.items():
        seconds = statistics.median(all_of_them[1:])  # the first one warms up
        print(f"| {name} | {seconds:.2f} | {counted[name] / seconds:,.0f} |")


if __name__ == "__main__":
    main()
