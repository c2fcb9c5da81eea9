"""A single broker becomes a shard of a new cluster: clients go on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support import tokens
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import SQL_PASSWORD, SQL_USER, Cluster
from tests.support.cluster_tables import ClusterTables
from tests.support.cluster_view import await_settled, leaders
from tests.support.command_line import output, run
from tests.support.committed import create_topic
from tests.support.server_process import ServerProcessError
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until

pytestmark = pytest.mark.test_all

TOPIC, PARTITIONS = "orders", 4
OTHER, DELETED, FED, GHOST = "other", "deleted", "fed", "ghost"
TABLE = "shop.fed"
GROUP, MOVED_GROUP = "readers", "movers"
BEFORE, AFTER = 100, 60
"""Records of the ordinary producer in each partition."""
LIMIT_S = 60.0
ADMINISTRATED = {"sql_user": SQL_USER, "sql_password": SQL_PASSWORD}


@contextmanager
def cluster_of(directory: Path, shards: int) -> Iterator[Cluster]:
    """Its first shard will be on the data directory of `single_of` the same directory."""
    tokens.take()
    made = Cluster(directory, brokers=2, shards=shards)
    try:
        yield made
    finally:
        made.close()


def single_of(cluster: Cluster) -> BrokerProcess:
    return BrokerProcess(cluster.engines[0].data_dir, ADMINISTRATED)


class Sender:
    """One idempotent producer: its id and its sequences go on from the broker to the cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self.offsets: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

    def send(self, numbers: range) -> None:
        for number in numbers:
            for partition in self.offsets:
                value = f"{partition}-{number}"
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._stored)
        assert self._producer.flush(LIMIT_S) == 0

    def _stored(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.offsets[message.partition()].append(message.offset())


def config_of(bootstrap: str, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_configs([resource])
    return str(described[resource].result(LIMIT_S)[name].value)


def committed(bootstrap: str, group: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(wanted, LIMIT_S)}
    finally:
        consumer.close()


def read_on(bootstrap: str, group: str, count: int) -> list[tuple[int, int, str]]:
    """What a group reads from its committed offsets on: so many records, and none after those."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[tuple[int, int, str]] = []

    def poll() -> None:
        for one in consumer.consume(1000, 0.5):
            partition, offset, value = one.partition(), one.offset(), one.value()
            assert partition is not None, one.error()
            assert offset is not None
            assert value is not None
            found.append((partition, offset, value.decode()))

    def has_all() -> bool:
        poll()
        return len(found) >= count

    try:
        consumer.subscribe([TOPIC])
        until(has_all, f"{count} records are read", LIMIT_S)
        poll()
    finally:
        consumer.close()
    return sorted(found)


def count_in(single: BrokerProcess, table: str) -> int:
    [row] = single.sql(f"SELECT count() AS n FROM {table}", user=SQL_USER, password=SQL_PASSWORD)
    return int(row["n"])


def id_of(bootstrap: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_topics(confluent_kafka.TopicCollection([topic]))
    return str(described[topic].result(LIMIT_S).topic_id)


def cluster_id_of(bootstrap: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_cluster()
    return str(described.result(LIMIT_S).cluster_id)


@pytest.mark.parametrize(
    ("end", "shards"),
    [
        pytest.param(BrokerProcess.stop, 1, id="stopped, one shard"),
        pytest.param(BrokerProcess.kill, 2, id="killed, with a second shard"),
    ],
)
def test_clients_go_on_after_a_single_broker_has_become_a_shard(
    tmp_path: Path, end: Callable[[BrokerProcess], None], shards: int
) -> None:
    with cluster_of(tmp_path, shards) as cluster:
        single = single_of(cluster)
        single.start()
        both = f"{single.kafka},{cluster.bootstrap}"
        admin = AdminClient({"bootstrap.servers": single.kafka})
        names = [TOPIC, OTHER, DELETED, FED]
        for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
            made.result(LIMIT_S)
        entry = ConfigEntry(
            "retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
        admin.delete_topics([DELETED])[DELETED].result(LIMIT_S)

        sender = Sender(both)
        sender.send(range(BEFORE))
        done = ConfluentProducer(both, "done")
        done.begin()
        done.send(TOPIC, "done", partition=0)
        done.send_offset(MOVED_GROUP, TOPIC, 11, partition=1)
        done.flush()
        done.commit()
        aborted = ConfluentProducer(both, "aborted")
        aborted.begin()
        aborted.send(TOPIC, "aborted", partition=1)
        aborted.flush()
        aborted.abort()
        still_open = ConfluentProducer(both, "open")
        still_open.begin()
        still_open.send(TOPIC, "open", partition=2)
        still_open.flush()
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": single.kafka, "group.id": GROUP, "enable.auto.commit": False}
        )
        offsets = [TopicPartition(TOPIC, partition, 50) for partition in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
        output(
            "tables", "create", TABLE, "--topic", FED, "--interval-ms", "10",
            "--columns", "id UInt64", how=run, BROKERHOUSE_HTTP=single.http_url,
            BROKERHOUSE_SQL_USER=SQL_USER, BROKERHOUSE_SQL_PASSWORD=SQL_PASSWORD,
        )  # fmt: skip
        feed(single.kafka, range(20))
        until(
            lambda: count_in(single, TABLE) == 20,
            "the table has the records",
            LIMIT_S,
        )
        topic_id, known_as = id_of(single.kafka, TOPIC), cluster_id_of(single.kafka)
        end(single)

        if end is BrokerProcess.kill:
            leave_unfinished(cluster)
        cluster.start()
        bootstrap = cluster.bootstrap
        await_settled(cluster)
        assert cluster_id_of(bootstrap) == known_as
        assert id_of(bootstrap, TOPIC) == topic_id
        assert config_of(bootstrap, TOPIC, "retention.ms") == "123456789"
        listed = set(
            AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=LIMIT_S).topics
        )
        assert {TOPIC, OTHER, FED} <= listed
        assert not {DELETED, GHOST} & listed
        assert committed(bootstrap, GROUP) == dict.fromkeys(range(PARTITIONS), 50)
        assert committed(bootstrap, MOVED_GROUP)[1] == 11

        sender.send(range(BEFORE, BEFORE + AFTER))
        still_open.send(TOPIC, "open too", partition=2)
        still_open.commit()
        again = ConfluentProducer(bootstrap, "done")
        again.begin()
        again.send(TOPIC, "again", partition=0)
        again.commit()

        # The ordinary producer's own records have no gap but the transactions in between.
        records, rest = BEFORE + AFTER, {0: 2, 1: 2, 2: 1, 3: 0}
        for partition, stored in sender.offsets.items():
            between = rest[partition]
            expected = [*range(BEFORE), *range(BEFORE + between, records + between)]
            assert stored == expected, f"partition {partition}"
        read = read_on(bootstrap, GROUP, PARTITIONS * (records - 50) + 4)
        assert len(set(read)) == len(read) == PARTITIONS * (records - 50) + 4
        texts = [text for _, _, text in read]
        assert {"done", "open", "open too", "again"} <= set(texts)
        assert "aborted" not in texts

        engines = cluster.engines
        stored_rows = [
            row
            for engine in engines
            for row in engine.sql(
                "SELECT partition, offset, leader_epoch FROM messages"
                f" WHERE topic = '{TOPIC}' AND NOT control ORDER BY ALL"
            )
        ]
        places = {(row["partition"], row["offset"]) for row in stored_rows}
        assert len(places) == len(stored_rows) == PARTITIONS * records + 5
        for partition in range(PARTITIONS):
            epochs = [
                row["leader_epoch"]
                for row in sorted(stored_rows, key=lambda row: row["offset"])
                if row["partition"] == partition
            ]
            assert epochs == sorted(epochs)
            assert epochs[0] == 0
            assert epochs[-1] >= 1
        assert min(one.epoch for one in leaders(cluster.brokers[0], TOPIC).values()) >= 1

        feed(bootstrap, range(20, 50))
        tables = ClusterTables(cluster)
        local = f"{TABLE}_local"
        tables.await_rows(local, 50)
        assert sorted(row["id"] for row in tables.sql(f"SELECT id FROM {local}")) == [*range(50)]
        progress = engines[0].sql(
            f"SELECT count() AS n, uniqExact(partition, version) AS versions,"
            " max(if(epoch = 1, version, 0)) < min(if(epoch > 1, version, 1000000)) AS in_order"
            f" FROM table_feed_blocks FINAL WHERE feed = '{TABLE}'"
        )
        assert progress[0]["n"] == progress[0]["versions"]
        assert progress[0]["in_order"] == 1

        # What a single broker had in its registry is in Keeper now.
        assert engines[0].sql("SELECT count() AS n FROM cluster_state") == [{"n": 0}]
        for broker in cluster.brokers:
            broker.stop()
        engines[0].stop()
        with pytest.raises(ServerProcessError, match="has the data of a shard of a cluster"):
            single.start()


def leave_unfinished(cluster: Cluster) -> None:
    """What a first broker leaves in Keeper that was killed before it had copied everything."""
    cluster.keeper.start()
    engine = cluster.engines[0]
    for each in cluster.engines:
        each.start()
    cluster.migrate()
    for name in (TOPIC, GHOST):
        topic = {"name": name, "id": str(UUID(int=1)), "partitions": 1, "configs": {}, "version": 1}
        engine.sql(
            "INSERT INTO topic_registry SELECT"
            f" 'topic/{name}', concat(repeat('0', 128), '{json.dumps(topic)}')"
        )
    for each in cluster.engines:
        each.stop()
    cluster.keeper.kill()


def test_what_a_cluster_cannot_take_over_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with cluster_of(tmp_path, shards=2) as cluster:
        first, second = cluster.engines
        broker = cluster.brokers[0]
        for engine in (first, second):
            with BrokerProcess(engine.data_dir, ADMINISTRATED) as single:
                create_topic(single.kafka, engine.name, 1)
                if engine is first:
                    write(single, "CREATE DATABASE mine")
                    write(
                        single,
                        "CREATE VIEW mine.copies AS SELECT value FROM brokerhouse.messages",
                    )
                single.stop()
        cluster.keeper.start()
        with pytest.raises(ServerProcessError, match=r"mine\.copies would not find .*drop"):
            first.start()
        with BrokerProcess(first.data_dir, ADMINISTRATED) as single:
            write(single, "DROP VIEW mine.copies")
            single.stop()
        first.start()
        second.start()
        with pytest.raises(ServerProcessError, match="shard1 and shard2 have the data of single"):
            broker.start()

        both = cluster.config_path.read_text()
        cluster.config_path.write_text(both.replace("replicated = false", "replicated = true"))
        with pytest.raises(ServerProcessError, match="only one: leave one of them"):
            broker.start()
        cluster.engines = [first]
        alone = cluster.write_config("cluster.toml").read_text()
        cluster.config_path.write_text(alone.replace("replicated = false", "replicated = true"))
        with pytest.raises(ServerProcessError, match="which cannot replicate: write replicated"):
            broker.start()

        cluster.config_path.write_text(alone)
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        assert "shard1" in admin.list_topics(timeout=LIMIT_S).topics
        broker.stop()
        cluster.engines = [first, second]
        cluster.config_path.write_text(both)
        with pytest.raises(ServerProcessError, match="which only a new cluster can take over"):
            broker.start()
        broker.kill()


def write(single: BrokerProcess, statement: str) -> None:
    single.sql(statement, user=SQL_USER, password=SQL_PASSWORD)


def feed(bootstrap: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(FED, json.dumps({"id": number}), partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0
