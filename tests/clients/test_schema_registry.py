"""Typed tables from Avro and Protobuf, with Confluent's serializers and a real schema registry.

The registry is Apicurio's, which keeps its schemas in a topic of the same broker.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.schema_registry import JOURNAL, SchemaRegistryProcess
from tests.support.server_process import free_port
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

pytestmark = pytest.mark.test_all


class Registered:
    """A broker, a registry, and producers that use both."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.broker = BrokerProcess(
            directory / "data",
            {
                **SETTINGS,
                "schema_registry": f"http://127.0.0.1:{port}/apis/ccompat/v7",
                "group_initial_rebalance_delay_ms": "0",  # each start of the registry would wait
            },
        )
        self.broker.start()
        self.registry = SchemaRegistryProcess(directory, self.broker.kafka, port)
        self.registry.start()
        self.client = SchemaRegistryClient({"url": self.registry.url})
        self.tables = TypedTables(self.broker)

    def produce(self, topic: str, serialize: Any, *values: object) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.broker.kafka})
        context = SerializationContext(topic, MessageField.VALUE)
        for value in values:
            producer.produce(topic, serialize(value, context))
        assert producer.flush(60) == 0

    def produce_avro(self, topic: str, schema: str, *values: dict[str, Any]) -> None:
        money = SchemaReference("shop.Money", "shop.Money", 1)
        serialize = AvroSerializer(self.client, Schema(schema, "AVRO", [money]))
        self.produce(topic, serialize, *values)

    def produce_protobuf(self, topic: str, kind: type[Any], *values: dict[str, Any]) -> None:
        serialize = ProtobufSerializer(kind, self.client, {"use.deprecated.format": False})
        self.produce(topic, serialize, *(json_format.ParseDict(value, kind()) for value in values))

    def versions(self, subject: str) -> list[int]:
        return list(self.client.get_versions(subject))


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    made = Registered(tmp_path_factory.mktemp("registered"))
    yield made
    made.registry.stop()
    made.broker.stop()


MONEY_AVRO = """{"type": "record", "name": "Money", "namespace": "shop", "fields": [
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18,
                                "scale": 2}}]}"""
NOTE_AVRO = ', {"name": "note", "type": ["null", "string"], "default": null}'


def order_avro(more: str = "") -> str:
    return f"""{{"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {{"name": "id", "type": "long"}},
        {{"name": "at", "type": {{"type": "long", "logicalType": "timestamp-millis"}}}},
        {{"name": "price", "type": "shop.Money"}}{more}]}}"""


MONEY_PROTOBUF = """
syntax = "proto3";
package shop;
message Money { string amount = 1; }
"""


def order_protobuf(more: str = "") -> str:
    return f"""
    syntax = "proto3";
    package shop;
    import "shop/money.proto";
    import "google/protobuf/timestamp.proto";
    message Ignored {{ int32 n = 1; }}
    message Order {{
        int64 id = 1;
        google.protobuf.Timestamp at = 2;
        Money price = 3;
        {more}
    }}
    """


def message_class(directory: Path, order: str) -> type[Any]:
    """The class of shop.Order, as a producer's compiler makes it."""
    (directory / "shop").mkdir(parents=True)
    (directory / "shop/money.proto").write_text(MONEY_PROTOBUF)
    (directory / "shop/order.proto").write_text(order)
    subprocess.run(
        [
            sys.executable,
            *shlex.split(
                "-m grpc_tools.protoc -I. --include_imports"
                " --descriptor_set_out=set shop/order.proto"
            ),
        ],
        cwd=directory,
        check=True,
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((directory / "set").read_bytes()).file:
        pool.Add(file)
    made: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return made


COLUMNS = "id UInt64, at DateTime64(3, 'UTC'), amount Decimal(18, 2)"
AT = "2026-11-24T10:00:00Z"


def test_avro_schemas_of_a_registry_evolve_while_the_feed_runs(registered: Registered) -> None:
    tables = registered.tables
    registered.client.register_schema("shop.Money", Schema(MONEY_AVRO, "AVRO"))
    create_topic(registered.broker.kafka, "avro", 1)
    tables(
        *shlex.split("create avro.orders --topic avro --input-format avro --columns"),
        COLUMNS,
        "--path",
        "amount=price.amount",
    )
    first = {"id": 1, "at": 1795514400000, "price": {"amount": Decimal("9.99")}}
    registered.produce_avro("avro", order_avro(), first)
    tables.await_fed("avro.orders", 1)

    tables.sql("ALTER TABLE avro.orders ADD COLUMN note Nullable(String)")
    registered.produce_avro("avro", order_avro(NOTE_AVRO), {**first, "id": 2, "note": "new"})
    registered.produce_avro("avro", order_avro(), {**first, "id": 3})  # a producer of before
    tables.await_fed("avro.orders", 3)

    assert registered.versions("avro-value") == [1, 2]
    assert tables.sql("SELECT * FROM avro.orders ORDER BY id") == [
        {"id": n, "at": "2026-11-24 10:00:00.000", "amount": 9.99, "note": note}
        for n, note in ((1, None), (2, "new"), (3, None))
    ]
    assert tables.sql("SELECT * FROM brokerhouse.dead_letters WHERE feed = 'avro.orders'") == []


def test_protobuf_schemas_of_a_registry_evolve_while_the_feed_runs(
    registered: Registered, tmp_path: Path
) -> None:
    tables = registered.tables
    create_topic(registered.broker.kafka, "protobuf", 1)
    tables(
        *shlex.split("create protobuf.orders --topic protobuf --input-format protobuf --columns"),
        COLUMNS,
        "--path",
        "amount=price.amount",
    )
    old = message_class(tmp_path / "old", order_protobuf())
    new = message_class(tmp_path / "new", order_protobuf("optional string note = 4;"))
    first = {"id": 1, "at": AT, "price": {"amount": "9.99"}}
    registered.produce_protobuf("protobuf", old, first)
    tables.await_fed("protobuf.orders", 1)

    tables.sql("ALTER TABLE protobuf.orders ADD COLUMN note Nullable(String)")
    registered.produce_protobuf("protobuf", new, {**first, "id": 2, "note": "new"})
    registered.produce_protobuf("protobuf", old, {**first, "id": 3})
    tables.await_fed("protobuf.orders", 3)

    assert registered.versions("protobuf-value") == [1, 2]
    assert registered.versions("shop/money.proto") == [1]
    assert tables.sql("SELECT * FROM protobuf.orders ORDER BY id") == [
        {"id": n, "at": "2026-11-24 10:00:00.000", "amount": 9.99, "note": note}
        for n, note in ((1, None), (2, "new"), (3, None))
    ]
    assert tables.sql("SELECT * FROM brokerhouse.dead_letters WHERE feed = 'protobuf.orders'") == []


def test_a_feed_waits_for_a_registry_that_was_killed(registered: Registered) -> None:
    tables = registered.tables
    schema = '{"type": "record", "name": "Only", "fields": [{"name": "id", "type": "long"}]}'
    create_topic(registered.broker.kafka, "waiting", 1)
    tables(
        *shlex.split("create waiting.t --topic waiting --input-format avro --columns 'id UInt64'"),
    )
    tables("pause", "waiting.t")
    registered.produce("waiting", AvroSerializer(registered.client, schema), {"id": 7})
    registered.registry.kill()
    logged = registered.broker.log_size()
    tables("resume", "waiting.t")
    until(
        lambda: "avro cannot be decoded" in registered.broker.log(logged),
        "the feed has asked for the schema",
    )
    # It learns its schemas from the broker again.
    [journal] = tables.sql(f"SELECT count() AS n FROM messages WHERE topic = '{JOURNAL}'")
    assert journal["n"] > 0
    registered.registry.start()
    tables.await_fed("waiting.t", 1)

    assert tables.sql("SELECT id FROM waiting.t") == [{"id": 7}]
    assert tables.sql("SELECT * FROM brokerhouse.dead_letters WHERE feed = 'waiting.t'") == []
