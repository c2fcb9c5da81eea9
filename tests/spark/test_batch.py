"""Batch reads in Spark return the same records as Kafka consumers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tests.spark.reading import FORMAT, Reading, frame, record
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import SAMPLE, Record

MAX_INT64 = 2**63 - 1
SENT = [one for one in SAMPLE if one.timestamp_ms != 0]  # librdkafka cannot send 0


@pytest.fixture(scope="module")
def sample(broker: BrokerProcess) -> str:
    """A topic of two partitions: the sample in the first, a few records in the second."""
    topic = "spark-sample"
    client = ConfluentKafka()
    client.create_topic(broker.kafka, topic, 2)
    client.produce(broker.kafka, topic, SENT, partition=0, codec="lz4")
    client.produce(broker.kafka, topic, [Record(b"k", b"v", (), n) for n in (5, 6, 7)], partition=1)
    return topic


def create(
    broker: BrokerProcess, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
    finally:
        admin.close()


def test_spark_reads_the_same_records_as_a_consumer(
    spark: SparkSession, broker: BrokerProcess, sample: str
) -> None:
    consumed = ConfluentKafka().read_from_offset(broker.kafka, sample, 0, len(SENT))
    rows = frame(spark, broker.http_url, subscribe=sample).where("partition = 0").collect()
    assert [record(row) for row in rows] == consumed
    assert {(row["topic"], row["timestampType"]) for row in rows} == {(sample, 0)}


def test_records_of_aborted_and_open_transactions_are_read_only_if_asked_for(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create(broker, topic)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions(60)
    for value in (b"committed", b"aborted", b"open"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(60)
        if value == b"committed":
            producer.commit_transaction(60)
        elif value == b"aborted":
            producer.abort_transaction(60)

    def values(**options: str) -> list[bytes]:
        rows = frame(spark, broker.http_url, subscribe=topic, **options).collect()
        return [bytes(row["value"]) for row in rows]

    assert values() == [b"committed"]
    assert values(isolation="read_uncommitted") == [b"committed", b"aborted", b"open"]
    producer.abort_transaction(60)


def test_the_schema_is_that_of_sparks_kafka_source(
    spark: SparkSession, broker: BrokerProcess, sample: str
) -> None:
    assert frame(spark, broker.http_url, subscribe=sample).schema == StructType.fromDDL(
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
        " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    plain = frame(spark, broker.http_url, subscribe=sample, includeHeaders=False)
    assert plain.columns[-1] == "timestampType"
    few = frame(spark, broker.http_url, subscribe=sample, columns="offset, value")
    assert few.columns == ["offset", "value"]
    assert few.count() == len(SENT) + 3


@pytest.mark.test_all
def test_columns_can_be_left_out_by_a_schema(
    spark: SparkSession, broker: BrokerProcess, sample: str
) -> None:
    reader = spark.read.format(FORMAT).options(servers=broker.http_url, subscribe=sample)
    rows = reader.schema("partition INT, key BINARY").load().where("partition = 1").collect()
    assert [tuple(row) for row in rows] == [(1, bytearray(b"k"))] * 3
    with pytest.raises(Exception, match="value string is not among the columns: key binary"):
        reader.schema("value STRING").load().collect()


FILTERS = (
    "topic = 'spark-sample'",
    "topic = 'another'",
    "topic <> 'spark-sample'",
    "topic > 'spark'",
    "topic LIKE 'spark%'",
    "topic LIKE '%sample'",
    "topic NOT LIKE '%ark-s%'",
    "topic IN ('a', 'spark-sample')",
    "partition = 1",
    "partition <> 1",
    "partition IN (0, 7)",
    "partition NOT IN (0, 7)",
    "partition IS NULL",
    "partition > 0.5",
    "partition + 1 = 2",
    "partition IN (0, NULL)",
    "partition NOT IN (0, NULL)",
    "partition <=> 1",
    "offset = 2",
    "offset <> 2",
    "offset > 2 AND offset <= 20",
    "offset BETWEEN 2 AND 20",
    "offset < 0",
    "offset IN (1, 3, 5, 500)",
    "offset NOT IN (1, 3, 5, 500)",
    "offset IS NOT NULL",
    "offset < 9223372036854775807",
    "offset > -9223372036854775808",
    "offset = 2 OR partition = 1",
    "NOT (offset < 5)",
    "offset % 2 = 1",
    "timestamp = '1970-01-01 00:00:00.006'",
    "timestamp <> '1970-01-01 00:00:00.006'",
    "timestamp > '1970-01-01 00:00:00.006'",
    "timestamp >= '1970-01-01 00:00:00.006'",
    "timestamp < '1970-01-01 00:00:00.006'",
    "timestamp <= '1970-01-01 00:00:00.006'",
    "timestamp = '1970-01-01 00:00:00.006001'",
    "timestamp <> '1970-01-01 00:00:00.006001'",
    "timestamp > '1970-01-01 00:00:00.005999'",
    "timestamp >= '1970-01-01 00:00:00.006001'",
    "timestamp < '1970-01-01 00:00:00.006001'",
    "timestamp <= '1970-01-01 00:00:00.005999'",
    "timestamp IN ('1970-01-01 00:00:00.006', '1970-01-01 00:00:00.007001')",
    "timestamp NOT IN ('1970-01-01 00:00:00.006', '1970-01-01 00:00:00.007001')",
    "timestamp IS NULL",
    "timestamp IS NOT NULL",
    "timestamp <=> NULL",
    "NOT (timestamp <=> '1970-01-01 00:00:00.006')",
    "timestamp > '0001-01-01' AND timestamp < '9999-12-31'",
    "key IS NULL",
    "value IS NOT NULL AND offset < 9",
    "timestampType = 0",
    "size(headers) > 1",
)


@pytest.fixture(scope="module")
def strange_times(broker: BrokerProcess) -> tuple[str, list[int]]:
    """A topic with every kind of timestamp, and its timestamps."""
    times = [-1, 0, 1, 5, 6, 7, 1_700_000_000_000, 253_402_300_800_000, -62_135_596_800_001]
    edge = MAX_INT64 // 1000
    times += [edge, edge + 1, MAX_INT64, -edge, -edge - 1, -MAX_INT64 - 1]
    topic = "spark-times"
    create(broker, topic, 1, {"message.timestamp.after.max.ms": str(MAX_INT64)})
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for time in times:  # each a batch of its own, which has no room for all of them
        producer.send(topic, b"v", partition=0, timestamp_ms=time).get(30)
    producer.close()
    return topic, times


@pytest.mark.parametrize(
    "filters",
    [
        pytest.param(FILTERS[::9], id="some"),
        pytest.param(FILTERS, id="all", marks=pytest.mark.slow),
    ],
)
def test_filters_give_the_same_rows_as_in_spark(
    spark: SparkSession,
    broker: BrokerProcess,
    sample: str,
    strange_times: tuple[str, list[int]],
    filters: tuple[str, ...],
) -> None:
    """Spark filters cached rows by itself: the result must be the same."""
    everything = frame(spark, broker.http_url, subscribe=f"{sample},{strange_times[0]}")
    cached = everything.cache()
    assert cached.count() == len(SENT) + 3 + len(strange_times[1])
    places = ("topic", "partition", "offset")
    differs = {}
    try:
        expected = {text: sorted(cached.where(text).select(*places).collect()) for text in filters}
    finally:
        cached.unpersist()
    for text in filters:
        found = frame(spark, broker.http_url, subscribe=f"{sample},{strange_times[0]}").where(text)
        rows = sorted(found.select(*places).collect())
        if rows != expected[text]:
            differs[text] = (len(rows), len(expected[text]))
    assert differs == {}


def test_timestamps_that_do_not_fit_into_spark_are_null(
    spark: SparkSession, broker: BrokerProcess, strange_times: tuple[str, list[int]]
) -> None:
    topic, stored = strange_times
    rows = (
        frame(spark, broker.http_url, subscribe=topic)
        .select("offset", F.expr("unix_micros(timestamp)").alias("micros"))
        .orderBy("offset")
        .collect()
    )
    assert [row["micros"] for row in rows] == [
        time * 1000 if abs(time * 1000) <= MAX_INT64 else None for time in stored
    ]
    assert [row["micros"] for row in rows].count(None) == 4


def test_batches_begin_and_end_where_the_options_say(
    spark: SparkSession, broker: BrokerProcess, sample: str
) -> None:
    def offsets(**options: str) -> list[tuple[int, int]]:
        options |= {"subscribe": sample, "columns": "partition,offset"}
        rows = frame(spark, broker.http_url, **options).collect()
        return sorted((row["partition"], row["offset"]) for row in rows)

    def of_second(**options: str) -> list[int]:
        return [offset for partition, offset in offsets(**options) if partition == 1]

    both = '{"%s":{"0":%d,"1":%d}}'
    assert offsets(startingOffsets=both % (sample, 220, -2)) == [
        *((0, offset) for offset in range(220, len(SENT))),
        *((1, offset) for offset in range(3)),
    ]
    assert offsets(startingOffsets=both % (sample, 5, 1), endingOffsets=both % (sample, 7, -1)) == [
        (0, 5),
        (0, 6),
        (1, 1),
        (1, 2),
    ]
    assert offsets(startingOffsets=both % (sample, 9, 3), endingOffsets=both % (sample, 9, 3)) == []
    assert of_second(endingTimestamp="6") == [0]
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert of_second(startingTimestamp="6", **late) == [1, 2]
    times = json.dumps({sample: {"0": 1_700_000_000_020, "1": 8}})
    assert of_second(startingOffsetsByTimestamp=times, **late) == []
    with pytest.raises(Exception, match="partition 1 of topic spark-sample has no record from 8 "):
        of_second(startingOffsetsByTimestamp=times)


def test_topics_can_be_named_by_pattern_and_by_partition(
    spark: SparkSession, broker: BrokerProcess, sample: str
) -> None:
    found = frame(spark, broker.http_url, subscribePattern="^spark-sam.*e$", columns="topic")
    assert found.count() == len(SENT) + 3
    assert frame(spark, broker.http_url, subscribePattern="no such topic").count() == 0
    assigned = frame(spark, broker.http_url, assign=json.dumps({sample: [1]}))
    assert assigned.count() == 3


def test_the_next_batch_reads_every_acknowledged_record(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, 2)
    producer = KafkaProducer(bootstrap_servers=broker.kafka, linger_ms=0)
    for count in range(1, 9):
        producer.send(topic, b"%d" % count, partition=count % 2).get(30)
        rows = Reading(broker.http_url, subscribe=topic).rows()
        assert sorted(int(row["value"]) for row in rows) == list(range(1, count + 1))
    producer.close()


def test_an_empty_topic_gives_no_rows(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create(broker, topic, 3)
    assert frame(spark, broker.http_url, subscribe=topic).collect() == []


def test_large_records_of_a_topic_with_an_odd_name_are_read_whole(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = "._-" + "Odd.name_" * 20
    create(broker, topic)
    producer = KafkaProducer(bootstrap_servers=broker.kafka, max_request_size=2**22)
    large = bytes(itertools.islice(itertools.cycle(range(256)), 900_000))
    for n in range(12):
        producer.send(topic, large, key=large[: n * 1000], partition=0)
    producer.close()
    rows = frame(spark, broker.http_url, subscribe=topic).select("value", F.length("key")).collect()
    assert {bytes(row[0]) for row in rows} == {large}
    assert [row[1] for row in rows] == [n * 1000 for n in range(12)]


def test_a_topic_created_again_shows_no_old_records(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    for life in (b"first", b"second"):
        admin.create_topics([NewTopic(topic, 1, 1)])
        producer = KafkaProducer(bootstrap_servers=broker.kafka)
        producer.send(topic, life, partition=0)
        producer.close()
        rows = frame(spark, broker.http_url, subscribe=topic).collect()
        assert [bytes(row["value"]) for row in rows] == [life]
        admin.delete_topics([topic])
    admin.close()
    with pytest.raises(Exception, match=f"topic {topic} does not exist"):
        frame(spark, broker.http_url, subscribe=topic).collect()


@pytest.mark.test_all
def test_a_frame_shows_the_records_of_its_first_use(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    """Unlike that of Spark's Kafka source: Spark plans a source in Python once for each load()."""
    create(broker, topic)
    client = ConfluentKafka()
    first = frame(spark, broker.http_url, subscribe=topic)
    for count in (1, 2, 3):
        client.produce(broker.kafka, topic, [Record(None, b"v", (), 5)])
        assert first.count() == 1
        assert frame(spark, broker.http_url, subscribe=topic).count() == count


@pytest.mark.test_all
def test_a_wrong_login_is_an_error(
    spark: SparkSession, own_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    secret = "s3cret ü"
    broker = own_broker(sql_user="reader", sql_password=secret, sql_anonymous="never")
    create(broker, topic)
    ConfluentKafka().produce(broker.kafka, topic, [Record(None, b"v")])
    rows = frame(spark, broker.http_url, subscribe=topic, user="reader", password="s3cret")
    with pytest.raises(Exception, match="refuses user reader: give the right user and password"):
        rows.collect()
    latin = frame(spark, broker.http_url, subscribe=topic, user="reader", password="\xff")
    with pytest.raises(Exception, match="refuses user reader"):
        latin.collect()
    with pytest.raises(Exception, match="refuses requests without a user"):
        frame(spark, broker.http_url, subscribe=topic).collect()
    given = frame(spark, broker.http_url, subscribe=topic, user="reader", password=secret)
    assert given.count() == 1
