"""Spark's own Kafka source and sink work with the broker, and both sources read the same rows.

So a job can change from one to the other by its format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.reading import frame
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import SAMPLE, Record


@pytest.fixture
def options(broker: BrokerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.kafka}


@pytest.fixture
def source(spark_with_kafka: SparkSession, options: dict[str, str]) -> Any:
    def load(topic: str, **more: Any) -> DataFrame:
        reader = spark_with_kafka.read.format("kafka").options(**options, **more)
        return reader.option("subscribe", topic).load()

    return load


@pytest.mark.test_all
def test_both_sources_show_the_same_rows(
    spark_with_kafka: SparkSession, broker: BrokerProcess, source: Any, topic: str
) -> None:
    client = ConfluentKafka()
    client.create_topic(broker.kafka, topic, 2)
    sent = [one for one in SAMPLE if one.timestamp_ms != 0]
    client.produce(broker.kafka, topic, sent, partition=0)
    client.produce(broker.kafka, topic, [Record(b"k", b"v")], partition=1)
    of_kafka = source(topic, includeHeaders=True)
    ours = frame(spark_with_kafka, broker.http_url, subscribe=topic)
    assert ours.schema == of_kafka.schema
    order = ("partition", "offset")
    expected = of_kafka.orderBy(*order).collect()
    assert len(expected) == len(sent) + 1
    assert ours.orderBy(*order).collect() == expected
    plain = frame(spark_with_kafka, broker.http_url, subscribe=topic, includeHeaders=False)
    assert plain.schema == source(topic).schema


@pytest.mark.test_all
def test_sparks_kafka_source_writes_and_reads_batches(
    spark_with_kafka: SparkSession, broker: BrokerProcess, source: Any, options: Any, topic: str
) -> None:
    ConfluentKafka().create_topic(broker.kafka, topic, 3)
    numbers = spark_with_kafka.range(5_000).selectExpr(
        "CAST(id AS STRING) AS key", "CAST(id * id AS STRING) AS value", "int(id % 3) AS partition"
    )
    numbers.write.format("kafka").options(**options, topic=topic).save()
    squares = ["CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "partition"]
    assert source(topic).selectExpr(*squares).exceptAll(numbers).count() == 0
    rows = frame(spark_with_kafka, broker.http_url, subscribe=topic).selectExpr(*squares)
    assert rows.exceptAll(numbers).count() == 0
    assert rows.count() == source(topic, minPartitions=7).count() == 5_000


@pytest.mark.test_all
def test_a_stream_of_sparks_kafka_source_copies_a_topic(
    spark_with_kafka: SparkSession,
    broker: BrokerProcess,
    options: dict[str, str],
    topic: str,
    tmp_path: Path,
) -> None:
    client = ConfluentKafka()
    for name in (topic, f"{topic}-copy"):
        client.create_topic(broker.kafka, name, 1)
    for part in (range(50), range(50, 120)):
        client.produce(broker.kafka, topic, [Record(b"%d" % n, b"v%d" % n) for n in part])
        stream = spark_with_kafka.readStream.format("kafka").options(**options)
        read = stream.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
        writer = read.load().selectExpr("key", "upper(CAST(value AS STRING)) AS value").writeStream
        query = (
            writer.format("kafka")
            .options(**options, topic=f"{topic}-copy", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        copied = client.read_from_offset(broker.kafka, f"{topic}-copy", 0, part.stop)
        assert [one.value for one in copied] == [b"V%d" % n for n in range(part.stop)]
