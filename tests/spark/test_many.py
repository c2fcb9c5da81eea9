"""Ten million records: Spark reads what a consumer reads. Minutes; `make test-spark`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from zlib import crc32

import confluent_kafka
import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.reading import FORMAT, frame
from tests.support.broker_process import BrokerProcess

MANY = 10_000_000
PARTITIONS = 5
LIMIT_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Sums = dict[int, tuple[int, int, int]]
"""By partition: records, sum of offsets, sum of checksums of the values."""


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    """Half of the records are in one partition: skewed, as topics are."""
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    admin.create_topics([NewTopic("ten-million", PARTITIONS, 1)])
    admin.close()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.kafka,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(MANY):
        partition = 0 if number % 2 else number // 2 % PARTITIONS
        while True:
            try:
                producer.produce("ten-million", b"value %d" % number, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(LIMIT_S) == 0
    return "ten-million"


@pytest.fixture(scope="module")
def consumed(broker: BrokerProcess, topic: str) -> Sums:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    counts, offsets, checksums = Counter[int](), Counter[int](), Counter[int]()
    while counts.total() < MANY:
        messages = consumer.consume(100_000, LIMIT_S)
        assert messages, "no more records came"
        for message in messages:
            partition, value = message.partition(), message.value()
            assert message.error() is None
            assert partition is not None
            assert isinstance(value, bytes)
            counts[partition] += 1
            offsets[partition] += message.offset() or 0
            checksums[partition] += crc32(value)
    consumer.close()
    return {one: (counts[one], offsets[one], checksums[one]) for one in counts}


def sums(rows: list[tuple[int, int, int, int]]) -> Sums:
    return {partition: tuple(rest) for partition, *rest in rows}  # type: ignore[misc]


def test_a_batch_is_what_a_consumer_read(
    spark: SparkSession, broker: BrokerProcess, topic: str, consumed: Sums
) -> None:
    rows = frame(spark, broker.http_url, subscribe=topic)
    found = (
        rows.groupBy("partition")
        .agg(F.count("*"), F.sum("offset"), F.sum(F.crc32("value")), F.countDistinct("offset"))
        .collect()
    )
    assert sums([tuple(row)[:4] for row in found]) == consumed
    assert all(row[1] == row[4] for row in found)


def test_a_skewed_topic_is_read_in_tasks_of_bounded_size(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    rows = frame(spark, broker.http_url, subscribe=topic, columns="offset")
    sizes = [
        size for (size,) in rows.groupBy(F.spark_partition_id()).count().select("count").collect()
    ]
    assert sum(sizes) == MANY
    assert max(sizes) <= 500_000


def test_a_stream_is_what_a_consumer_read(
    spark: SparkSession, broker: BrokerProcess, topic: str, consumed: Sums, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format(FORMAT)
        .options(servers=broker.http_url, subscribe=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "1500000")
        .load()
    )
    query = (
        stream.select("partition", "offset", F.crc32("value").alias("checksum"))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(1500)
    found = (
        spark.read.parquet(str(tmp_path / "rows"))
        .groupBy("partition")
        .agg(F.count("*"), F.sum("offset"), F.sum("checksum"))
        .collect()
    )
    assert sums([tuple(row) for row in found]) == consumed
