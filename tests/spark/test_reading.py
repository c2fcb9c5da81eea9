"""The data source without Spark: options, filters, slices, servers that fail."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, Not, StringContains

from brokerhouse.spark_jobs import datasource
from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource, rate_limited
from brokerhouse.spark_jobs.filters import Filters
from brokerhouse.spark_jobs.options import OptionError, ReadOptions
from brokerhouse.spark_jobs.slices import DataLoss, LogError, Slice
from brokerhouse.spark_jobs.sql_client import SqlRefused, SqlServers, SqlUnavailable
from tests.spark.reading import Reading
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.tcp_proxy import TcpProxy

GOOD = {"servers": "http://one:8123", "subscribe": "t"}
MANY = 30_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "servers should be like http://host:8123,http://other:8123, but is missing"),
        ({"servers": "localhost:8123"}, "servers should be like .*, not 'localhost:8123'"),
        ({"servers": "ftp://a"}, "servers should be like"),
        ({"servers": "http://"}, "servers should be like"),
        ({"servers": "http://a:99999"}, "servers should be like"),
        ({"servers": "http://me:secret@a"}, "servers should be like"),
        ({"servers": "http://a/?query=DROP"}, "servers should be like"),
        ({"servers": " , "}, "servers is empty: ','"),
        ({"subscribe": None}, "give one of the options subscribe, subscribePattern and assign"),
        ({"assign": '{"t":[0]}'}, "give one of the options subscribe, subscribePattern and assign"),
        ({"subscribe": " ,"}, "subscribe is empty"),
        ({"subscribe": None, "subscribePattern": " "}, "subscribePattern is empty"),
        (
            {"subscribe": None, "subscribePattern": "("},
            "subscribePattern '\\(' is not a regular expression",
        ),
        ({"subscribe": None, "assign": "t"}, 'assign should be like {"topicA":\\[0,1\\]'),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, "assign should be like"),
        ({"subscribe": None, "assign": '{"t":[true]}'}, "assign should be like"),
        ({"subscribe": None, "assign": "{}"}, "assign is empty"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in batch queries"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets cannot be latest in batch"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest in batch queries"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets cannot be earliest in batch"),
        ({"startingOffsets": "first"}, "startingOffsets should be earliest, latest or like"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets should be earliest, latest"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "startingOffsets should be earliest, latest"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets should be earliest, latest"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "startingOffsets should be earliest, latest"),
        ({"startingOffsets": '{"t":{"0":9223372036854775808}}'}, "startingOffsets should be"),
        ({"startingOffsets": "[" * 100_000}, "startingOffsets should be earliest, latest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp should be a number"),
        ({"startingTimestamp": "1" * 30}, "startingTimestamp should be a number"),
        ({"startingOffsetsByTimestamp": "7"}, "startingOffsetsByTimestamp should be like"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "Strategy should be one of error, latest"),
        ({"isolation": "serializable"}, "isolation should be one of committed, read_committed"),
        ({"columns": "value,size"}, "column 'size' does not exist: the columns are key, value"),
        ({"columns": "value,value"}, "columns names a column twice: value,value"),
        ({"columns": ","}, "columns is empty"),
        ({"includeHeaders": "yes"}, "includeHeaders should be one of true, false, not 'yes'"),
        ({"failOnDataLoss": "0"}, "failOnDataLoss should be one of true, false, not '0'"),
        ({"minPartitions": "0"}, "minPartitions should be positive, not 0"),
        ({"maxOffsetsPerTrigger": "-5"}, "maxOffsetsPerTrigger should be positive, not -5"),
        ({"maxRecordsPerPartition": "1e6"}, "maxRecordsPerPartition should be a number"),
        ({"password": "x"}, "password is given without user"),
        ({"user": "a:b"}, "user cannot have a colon"),
        (
            {"maxOffsetPerTrigger": "5"},
            "option maxoffsetpertrigger does not exist: the options are ",
        ),
        ({"path": "/x"}, "option path does not exist"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "partition 0 of topic t starts at 5, after its end 4",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":7}}'},
            "should name the same partitions, not t-0 and t-1",
        ),
    ],
)
def test_a_wrong_option_is_an_error_in_one_sentence(
    options: dict[str, str | None], message: str
) -> None:
    given = {**(GOOD if options else {"subscribe": "t"}), **options}
    source = BrokerhouseDataSource({k: v for k, v in given.items() if v is not None})
    with pytest.raises(OptionError, match=message) as raised:
        source.reader(source.schema())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingoffsets"]
)
def test_streams_refuse_ending_options(name: str) -> None:
    with pytest.raises(OptionError, match="is not valid in streaming queries"):
        ReadOptions.parse({**GOOD, name: "latest"}, streaming=True)


def test_options_for_kafkas_clients_are_ignored() -> None:
    given = {
        **GOOD,
        "kafka.bootstrap.servers": "a:9092",
        "kafka.isolation.level": "read_uncommitted",
        "groupIdPrefix": "x",
        "fetchOffset.numRetries": "5",
        "kafkaConsumer.pollTimeoutMs": "1",
    }
    assert not ReadOptions.parse(given, streaming=False).committed
    assert ReadOptions.parse(GOOD, streaming=False).committed


def test_the_login_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERHOUSE_SQL_USER", "somebody")
    monkeypatch.setenv("BROKERHOUSE_SQL_PASSWORD", "secret")
    options = ReadOptions.parse(GOOD, streaming=False)
    assert (options.login.user, options.login.password) == ("somebody", "secret")
    assert "secret" not in repr(options)
    other = {**GOOD, "user": "other", "password": "x"}
    assert ReadOptions.parse(other, streaming=False).login.user == "other"


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"v"),
        EqualTo(("headers", "key"), "k"),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 1.5),
        EqualTo(("offset",), True),
        EqualTo(("offset",), 2**63),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),
        In(("offset",), (1, None)),
        Not(In(("partition",), (1, None))),
        Not(Not(EqualTo(("offset",), 1))),
        StringContains(("offset",), "1"),
    ],
)
def test_unknown_filters_stay_with_spark(one: Filter) -> None:
    filters = Filters()
    assert list(filters.push_down([one])) == [one]
    assert (filters.sql, filters.of_partitions) == ("", [])


def test_values_in_filters_are_bound() -> None:
    filters = Filters()
    when = datetime(2026, 1, 1, tzinfo=UTC)
    taken = [GreaterThan(("offset",), 7), Not(In(("timestamp",), (when,))), IsNotNull(("offset",))]
    assert list(filters.push_down(taken)) == []
    assert "7" not in filters.sql.replace("9223372036854775", "")
    assert filters.params == {"filter0": 7, "filter1": 1_767_225_600_000}


@pytest.fixture(scope="module")
def many(broker: BrokerProcess) -> str:
    """A topic with MANY records in the first of its three partitions, and ten in the second.

    12 MB: the view that is read gives blocks of 4 MB.
    """
    topic = "spark-many"
    client = ConfluentKafka()
    client.create_topic(broker.kafka, topic, 3)
    noise = random.Random(1)  # so that answers are not small when they are compressed
    values = [b"%d %b" % (n, noise.randbytes(400)) for n in range(MANY)]
    records = [Record(b"%d" % n, value, (), 1_000_000 + n) for n, value in enumerate(values)]
    client.produce(broker.kafka, topic, records, partition=0, codec="lz4")
    client.produce(broker.kafka, topic, records[:10], partition=1)
    return topic


@pytest.mark.test_all
def test_slices_have_exactly_the_wanted_rows(broker: BrokerProcess, many: str) -> None:
    for most in (1_000, 7_001, MANY):
        reading = Reading(broker.http_url, subscribe=many, maxRecordsPerPartition=str(most))
        sizes = [len(reading.rows_of(one)) for one in reading.slices]
        assert max(sizes) <= most
        assert min(sizes) > 0
        assert sum(sizes) == MANY + 10
        assert len(sizes) <= 2 + MANY / most * 1.2
    reading = Reading(broker.http_url, subscribe=many, minPartitions="8")
    assert 8 <= len(reading.slices) <= 12
    assert Counter(row["offset"] for row in reading.rows()) == Counter([*range(MANY), *range(10)])


def test_slices_have_the_same_size_however_rows_are_spread(
    broker: BrokerProcess, many: str
) -> None:
    """Only rows that pass the filters count: here, all are at the end of one partition."""
    new = GreaterThan(("offset",), MANY - 5_000)
    few = Reading(broker.http_url, [new], subscribe=many, maxRecordsPerPartition="1000")
    sizes = [len(few.rows_of(one)) for one in few.slices]
    assert sum(sizes) == 4_999
    assert 5 <= len(sizes) <= 8
    assert max(sizes) <= 1000


def test_topics_and_partitions_that_cannot_match_are_not_read(
    broker: BrokerProcess, many: str
) -> None:
    wanted = Reading(broker.http_url, [EqualTo(("partition",), 1)], subscribe=many)
    assert [one.partition for one in wanted.slices] == [1]
    none = Reading(broker.http_url, [EqualTo(("topic",), "'; DROP TABLE x")], subscribe=many)
    assert none.slices == []


def test_offsets_must_be_given_for_all_partitions(broker: BrokerProcess, many: str) -> None:
    few = json.dumps({many: {"0": 5}})
    with pytest.raises(LogError, match="given are spark-many-0, but there are spark-many-0, spark"):
        Reading(broker.http_url, subscribe=many, startingOffsets=few)


def test_a_missing_topic_or_partition_is_an_error(broker: BrokerProcess, many: str) -> None:
    with pytest.raises(LogError, match="topic not-there does not exist"):
        Reading(broker.http_url, subscribe=f"{many},not-there")
    with pytest.raises(LogError, match="topic '; DROP TABLE"):
        Reading(broker.http_url, subscribe="'; DROP TABLE messages; --\t\\")
    with pytest.raises(LogError, match="partition 3 of topic spark-many does not exist"):
        Reading(broker.http_url, assign=json.dumps({many: [0, 3]}))


def test_missing_records_are_data_loss_unless_allowed(broker: BrokerProcess, many: str) -> None:
    beyond = json.dumps({many: {"0": MANY + 5, "1": 12, "2": 0}})
    with pytest.raises(DataLoss, match=r"has offsets 0 to 10, but 0 to 12 were asked for"):
        Reading(
            broker.http_url,
            assign=json.dumps({many: [1]}),
            endingOffsets=json.dumps({many: {"1": 12}}),
        )
    reading = Reading(broker.http_url, subscribe=many, endingOffsets=beyond, failOnDataLoss="false")
    assert len(reading.rows()) == MANY + 10


def test_a_topic_deleted_before_it_is_read_is_data_loss(broker: BrokerProcess, many: str) -> None:
    """A topic of the same name has another id, and is not read instead."""
    another = "00000000-0000-0000-0000-00000000abcd"
    reading = Reading(broker.http_url, assign=json.dumps({many: [1]}))
    (one,) = reading.slices
    with pytest.raises(DataLoss, match="the topic of spark-many-1 was deleted while it was read"):
        reading.rows_of(replace(one, topic_id=another))
    careless = Reading(broker.http_url, subscribe=many, failOnDataLoss="false")
    assert careless.rows_of(replace(one, topic_id=another)) == []


def test_a_log_is_read_from_its_start(broker: BrokerProcess, topic: str) -> None:
    """Rows below the start of the log may still be stored, but are not shown."""
    client = ConfluentKafka()
    client.create_topic(broker.kafka, topic, 2)
    for partition in (0, 1):
        records = [Record(None, b"%d" % n) for n in range(50)]
        client.produce(broker.kafka, topic, records, partition=partition)
    planned = Reading(broker.http_url, subscribe=topic)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    wanted = [TopicPartition(topic, 0, 20), TopicPartition(topic, 1, 50)]
    for deleted in admin.delete_records(wanted).values():
        deleted.result(30)
    rows = Reading(broker.http_url, subscribe=topic).rows()
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, n) for n in range(20, 50)]

    starts = json.dumps({topic: {"0": 5, "1": 5}})
    with pytest.raises(DataLoss, match="-0 has offsets 20 to 50, but 5 to 50 were asked for"):
        Reading(broker.http_url, subscribe=topic, startingOffsets=starts)
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    careless = Reading(broker.http_url, (), **options, startingOffsets=starts)
    assert [row["offset"] for row in careless.rows()] == list(range(20, 50))

    # A task that comes too late: its first records are not there any more.
    (one, _) = planned.slices
    gone = replace(one, start=-5)
    with pytest.raises(DataLoss, match="-0 begins at 20, but -5 was to be read"):
        planned.rows_of(gone)


@pytest.fixture
async def proxy(broker: BrokerProcess) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(broker.http) as made:
        yield made


async def reading_through(url: str, **options: str) -> Reading:
    return await asyncio.to_thread(lambda: Reading(url, (), **options))


async def test_after_a_lost_server_another_one_continues(
    broker: BrokerProcess, many: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task continues where it was, and no record comes twice."""
    begun: list[int] = []

    stream = SqlServers.stream

    def noted(servers: SqlServers, url: str, sql: str, parameters: dict[str, Any]) -> Any:
        begun.append(parameters["start"])
        return stream(servers, url, sql, parameters)

    servers = f"{proxy.url},{broker.http_url}"
    reading = await reading_through(servers, subscribe=many, maxRecordsPerPartition=str(MANY))
    monkeypatch.setattr(SqlServers, "stream", noted)
    for cut in (0, 300, *range(5_000_000, 13_000_000, 1_000_000)):
        proxy.cut(to_client=cut)
        found = await asyncio.to_thread(reading.rows)
        offsets = Counter((row["partition"], row["offset"]) for row in found)
        assert set(offsets.values()) == {1}
        assert len(offsets) == MANY + 10
    assert max(begun) > 0, "no answer was cut behind its first records"


async def test_a_server_that_comes_back_is_asked_again(
    broker: BrokerProcess, many: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, is_back = threading.Event(), threading.Event()

    def pause(_: float) -> None:
        refused.set()
        assert is_back.wait(60)

    monkeypatch.setattr("brokerhouse.spark_jobs.sql_client.time", SimpleNamespace(sleep=pause))
    reading = await reading_through(proxy.url, subscribe=many, maxRecordsPerPartition=str(MANY))
    await proxy.refuse()
    found = asyncio.create_task(asyncio.to_thread(reading.rows))
    assert await asyncio.to_thread(refused.wait, 60)
    await proxy.pass_on()
    is_back.set()
    assert len(await found) == MANY + 10


async def test_servers_that_do_not_answer_are_named(
    many: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.spark_jobs.sql_client.FIRST_PAUSE_S", 0.0)
    reading = await reading_through(proxy.url, subscribe=many)
    await proxy.refuse()
    with pytest.raises(SqlUnavailable, match=rf"{proxy.url} does not answer \(.*refused"):
        await asyncio.to_thread(reading.rows)
    with pytest.raises(SqlUnavailable, match=rf"{proxy.url} does not answer \(.*refused"):
        await reading_through(proxy.url, subscribe=many)


async def test_a_truncated_answer_is_an_error(
    broker: BrokerProcess, many: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.spark_jobs.sql_client.FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr("brokerhouse.spark_jobs.sql_client.ROUNDS", 1)
    reading = await reading_through(proxy.url, subscribe=many, maxRecordsPerPartition=str(MANY))
    (one, _) = reading.slices
    size = 0
    for cut in range(0, 20_000, 997):
        proxy.cut(to_client=cut)
        with pytest.raises(SqlUnavailable):
            size = len(await asyncio.to_thread(reading.rows_of, one))
    assert size == 0


def test_a_refused_statement_is_not_repeated(broker: BrokerProcess, many: str) -> None:
    servers = SqlServers((broker.http_url,), database="brokerhouse")
    with pytest.raises(SqlRefused, match=r"lacks a table: .* \(Code: 60\. DB::Exc"):
        servers.rows("SELECT * FROM no_such_table")


def test_large_batches_are_cut(
    broker: BrokerProcess, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasource, "BATCH_MAX_BYTES", 10_000)
    reading = Reading(broker.http_url, subscribe=many)
    sizes: list[Any] = []
    offsets = []
    for one in reading.slices:
        for batch in reading.reader.read(one):
            sizes.append(batch.nbytes)  # type: ignore[union-attr]
            offsets += [(one.partition, row["offset"]) for row in batch.to_pylist()]  # type: ignore[union-attr]
    assert max(sizes) <= 10_000
    assert offsets == [*((0, n) for n in range(MANY)), *((1, n) for n in range(10))]


def test_a_slice_can_be_pickled_and_shows_no_password(broker: BrokerProcess, many: str) -> None:
    one = Reading(broker.http_url, subscribe=many).slices[0]
    assert pickle.loads(pickle.dumps(one)) == one
    assert isinstance(one, Slice)
    assert "password" not in repr(one)


def test_a_limit_is_shared_in_proportion_with_at_least_one_each() -> None:
    begin = {("a", 0): 0, ("a", 1): 100, ("b", 0): 5, ("c", 0): 7}
    ends = {("a", 0): 1000, ("a", 1): 101, ("b", 0): 5, ("c", 0): 1007}
    assert rate_limited(100, begin, ends) == {
        ("a", 0): 49,
        ("a", 1): 101,
        ("b", 0): 5,
        ("c", 0): 56,
    }
    assert rate_limited(10**12, begin, ends) == ends
