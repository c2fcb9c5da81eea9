"""What admin clients ask: byte for byte over a socket, and through the admin clients people use."""

import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry
from confluent_kafka.admin._config import ConfigResource as ConfluentResource
from confluent_kafka.cimpl import KafkaException, NewPartitions, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.protocol.api_message import ApiMessage

from broker.api import APIS
from protocol.versions import ApiKey
from storage.topic_configs import TOPIC_CONFIGS
from tests.conftest import OwnBrokers
from tests.support.broker_process import BrokerProcess

LIMIT_S = 30.0
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ID = uuid.UUID(int=0)

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
UNKNOWN_TOPIC_ID = 100
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115

CreateTopics = APIS[ApiKey.CreateTopics].request
DeleteTopics = APIS[ApiKey.DeleteTopics].request
CreatePartitions = APIS[ApiKey.CreatePartitions].request
Metadata = APIS[ApiKey.Metadata].request
DescribeConfigs = APIS[ApiKey.DescribeConfigs].request
AlterConfigs = APIS[ApiKey.AlterConfigs].request
IncrementalAlterConfigs = APIS[ApiKey.IncrementalAlterConfigs].request
DescribeTopicPartitions = APIS[ApiKey.DescribeTopicPartitions].request
DescribeLogDirs = APIS[ApiKey.DescribeLogDirs].request


class Wire:
    """One connection that speaks whatever version it is told to."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self._correlation_id = 0

    def ask(self, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        """Send one request in `version` (the newest unless given) and decode its answer."""
        api = APIS[key]
        version = api.max_version if version is None else version
        self._correlation_id += 1
        request = api.request(version=version, **fields)
        request.with_header(correlation_id=self._correlation_id, client_id="wire")
        self._socket.sendall(bytes(request.encode(header=True, framed=True)))
        answer = api.response.decode(self.receive(), version=version, header=True)
        assert answer.header.correlation_id == self._correlation_id
        return answer

    def send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    connection = Wire(broker.kafka)
    yield connection
    connection.close()


@pytest.fixture
def confluent(broker: BrokerProcess) -> ConfluentAdmin:
    return ConfluentAdmin({"bootstrap.servers": broker.kafka})


@pytest.fixture
def kafka_python(broker: BrokerProcess) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield admin
    admin.close()


def new_topic(name: str, partitions: int = -1, factor: int = -1, **more: Any) -> Any:
    """A topic for CreateTopics; `configs` as a dict, `assignments` as lists of broker ids."""
    return CreateTopics.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopics.CreatableTopic.CreatableReplicaAssignment(
                partition_index=index, broker_ids=brokers
            )
            for index, brokers in more.get("assignments", [])
        ],
        configs=[
            CreateTopics.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in more.get("configs", {}).items()
        ],
    )


def create(wire: Wire, *topics: Any, version: int = 7, validate_only: bool = False) -> list[Any]:
    answer = wire.ask(
        ApiKey.CreateTopics,
        version,
        topics=list(topics),
        timeout_ms=10_000,
        validate_only=validate_only,
    )
    return list(answer.topics)


def codes(results: list[Any]) -> list[int]:
    return [result.error_code for result in results]


def asked(*names: str | None, topic_id: uuid.UUID | None = None) -> list[Any]:
    return [Metadata.MetadataRequestTopic(name=name, topic_id=topic_id) for name in names]


def metadata(wire: Wire, topics: list[Any] | None, version: int = 13, **fields: Any) -> Any:
    fields.setdefault("allow_auto_topic_creation", False)
    return wire.ask(ApiKey.Metadata, version, topics=topics, **fields)


def describe(wire: Wire, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Any:
    resource = DescribeConfigs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return wire.ask(ApiKey.DescribeConfigs, resources=[resource], **more).results[0]


def values(wire: Wire, topic: str) -> dict[str, str]:
    """The overrides of a topic."""
    configs = describe(wire, TOPIC, topic).configs
    return {entry.name: entry.value for entry in configs if entry.config_source == 1}


def alter(
    wire: Wire, kind: int, name: str, *steps: tuple[str, int, str | None], **more: Any
) -> Any:
    resource = IncrementalAlterConfigs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigs.AlterConfigsResource.AlterableConfig(
                name=key, config_operation=operation, value=value
            )
            for key, operation, value in steps
        ],
    )
    more.setdefault("validate_only", False)
    return wire.ask(ApiKey.IncrementalAlterConfigs, resources=[resource], **more).responses[0]


# ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_served_in_every_version(wire: Wire, version: int) -> None:
    named = {"client_software_name": "wire", "client_software_version": "1.0"}
    answer = wire.ask(ApiKey.ApiVersions, version, **(named if version >= 3 else {}))
    listed = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert listed == {key: (api.advertised_min, api.max_version) for key, api in APIS.items()}
    assert answer.error_code == 0


def test_a_version_of_api_versions_that_is_not_known_is_answered_in_version_0(wire: Wire) -> None:
    wire.send(struct.pack(">hhih", ApiKey.ApiVersions, 99, 7, 4) + b"next" + b"\x00\xff\xff")
    frame = wire.receive()
    assert struct.unpack(">ih", frame[:6]) == (7, UNSUPPORTED_VERSION)
    answer = APIS[ApiKey.ApiVersions].response.decode(frame, version=0, header=True)
    listed = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert listed[ApiKey.ApiVersions] == (0, 4)
    assert wire.ask(ApiKey.ApiVersions, 2).error_code == 0, "the connection goes on"


@pytest.mark.parametrize("name", [b"", b"-x", b"a b", "ä".encode()])
def test_a_client_without_a_proper_name_is_told_so(wire: Wire, name: bytes) -> None:
    def compact(text: bytes) -> bytes:
        return bytes([len(text) + 1]) + text

    header = struct.pack(">hhih", ApiKey.ApiVersions, 3, 7, -1) + b"\x00"
    wire.send(header + compact(name) + compact(b"1.0") + b"\x00")
    assert struct.unpack(">ih", wire.receive()[:6]) == (7, INVALID_REQUEST)


# Metadata


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(14))
def test_metadata_describes_a_topic_in_every_version(
    wire: Wire, broker: BrokerProcess, topic: str, version: int
) -> None:
    [made] = create(wire, new_topic(topic, 3))
    answer = (
        metadata(wire, asked(topic), version)
        if version >= 4
        else wire.ask(ApiKey.Metadata, version, topics=asked(topic))
    )
    host, port = broker.kafka.rsplit(":", 1)
    [node] = answer.brokers
    assert (node.node_id, node.host, node.port) == (1, host, int(port))
    [described] = answer.topics
    assert (described.error_code, described.name) == (0, topic)
    assert [p.partition_index for p in described.partitions] == [0, 1, 2]
    for partition in described.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [1]
    if version >= 1:
        assert answer.controller_id == 1
        assert described.is_internal is False
    if version >= 2:
        assert len(answer.cluster_id) == 22
    if version >= 10:
        assert described.topic_id == made.topic_id


def test_metadata_of_all_topics_and_of_none(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    assert topic in {row.name for row in metadata(wire, None).topics}
    assert topic in {row.name for row in wire.ask(ApiKey.Metadata, 0, topics=[]).topics}
    assert list(metadata(wire, []).topics) == []


def test_all_topics_are_described_as_librdkafka_asks_for_them(wire: Wire, topic: str) -> None:
    """It leaves three bytes of a count behind, and Kafka reads no further than the message ends."""
    create(wire, new_topic(topic))
    header = struct.pack(">hhih", ApiKey.Metadata, 13, 7, 1) + b"x" + b"\x00"
    wire.send(header + b"\x00\x00\x00\x00\x01\x00\x00")
    answer = APIS[ApiKey.Metadata].response.decode(wire.receive(), version=13, header=True)
    assert topic in {row.name for row in answer.topics}


def test_metadata_by_topic_id(wire: Wire, topic: str) -> None:
    [made] = create(wire, new_topic(topic))
    unknown = uuid.uuid4()
    known = asked(None, topic_id=made.topic_id)
    answer = metadata(wire, known + asked(None, topic_id=unknown))
    found = {row.topic_id: (row.error_code, row.name) for row in answer.topics}
    assert found == {made.topic_id: (0, topic), unknown: (UNKNOWN_TOPIC_ID, None)}


def test_metadata_refuses_topic_ids_before_version_12(wire: Wire, topic: str) -> None:
    answer = metadata(wire, asked(topic, topic_id=uuid.uuid4()), 11)
    assert codes(answer.topics) == [INVALID_REQUEST]


def test_a_topic_is_made_when_it_is_asked_for_with_leave(wire: Wire, topic: str) -> None:
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]
    [made] = metadata(wire, asked(topic), allow_auto_topic_creation=True).topics
    assert made.error_code == 0
    assert [p.leader_id > 0 for p in made.partitions] == [True]
    assert metadata(wire, asked(topic)).topics[0].topic_id == made.topic_id


def test_no_topic_is_made_where_the_setting_says_so(own_broker: OwnBrokers, topic: str) -> None:
    wire = Wire(own_broker(auto_create_topics="false").kafka)
    answer = metadata(wire, asked(topic, "a b"), allow_auto_topic_creation=True)
    assert codes(answer.topics) == [UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC]
    wire.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_no_topic_is_made_under_a_name_that_kafka_refuses(wire: Wire, name: str) -> None:
    answer = metadata(wire, asked(name), allow_auto_topic_creation=True)
    assert codes(answer.topics) == [INVALID_TOPIC]


def test_authorized_operations_are_told_when_asked_for(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    plain = metadata(wire, asked(topic), 10)
    assert plain.authorized_operations is None
    assert plain.topics[0].authorized_operations is None
    full = metadata(
        wire,
        asked(topic),
        10,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert full.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    assert full.authorized_operations == {5, 7, 8, 9, 10, 11, 12}


# DescribeTopicPartitions


def test_partitions_are_described_page_by_page(wire: Wire, topic: str) -> None:
    create(wire, new_topic(f"{topic}-a", 3), new_topic(f"{topic}-b", 2))
    names = [f"{topic}-b", f"{topic}-a", f"{topic}-missing"]
    topics = [DescribeTopicPartitions.TopicRequest(name=name) for name in names]
    seen: list[tuple[str, int, list[int]]] = []
    cursor = None
    while True:
        page = wire.ask(
            ApiKey.DescribeTopicPartitions,
            topics=topics,
            response_partition_limit=2,
            cursor=cursor,
        )
        seen += [
            (row.name, row.error_code, [p.partition_index for p in row.partitions])
            for row in page.topics
        ]
        if page.next_cursor is None:
            break
        cursor = DescribeTopicPartitions.Cursor(
            topic_name=page.next_cursor.topic_name,
            partition_index=page.next_cursor.partition_index,
        )
    assert seen == [
        (f"{topic}-a", 0, [0, 1]),
        (f"{topic}-a", 0, [2]),
        (f"{topic}-b", 0, [0]),
        (f"{topic}-b", 0, [1]),
        (f"{topic}-missing", UNKNOWN_TOPIC_OR_PARTITION, []),
    ]


def test_a_cursor_outside_what_was_asked_for_is_refused(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    for cursor in (
        DescribeTopicPartitions.Cursor(topic_name="another", partition_index=0),
        DescribeTopicPartitions.Cursor(topic_name=topic, partition_index=-1),
    ):
        answer = wire.ask(
            ApiKey.DescribeTopicPartitions,
            topics=[DescribeTopicPartitions.TopicRequest(name=topic)],
            response_partition_limit=10,
            cursor=cursor,
        )
        assert codes(answer.topics) == [INVALID_REQUEST]


# CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made_in_every_version(wire: Wire, topic: str, version: int) -> None:
    configs = {"retention.ms": "1000"}
    [made] = create(wire, new_topic(topic, 4, 1, configs=configs), version=version)
    assert (made.name, made.error_code, made.error_message) == (topic, 0, None)
    [described] = metadata(wire, asked(topic)).topics
    assert len(described.partitions) == 4
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (4, 1)
        shown = {entry.name: (entry.value, entry.config_source) for entry in made.configs}
        assert shown.keys() == TOPIC_CONFIGS.keys()
        assert shown["retention.ms"] == ("1000", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert made.topic_id == described.topic_id


def test_partitions_default_to_the_setting(own_broker: OwnBrokers, topic: str) -> None:
    wire = Wire(own_broker(num_partitions="3").kafka)
    create(wire, new_topic(topic))
    made_on_demand = metadata(wire, asked(f"{topic}-2"), allow_auto_topic_creation=True)
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 3
    assert len(made_on_demand.topics[0].partitions) == 3
    wire.close()


def test_validate_only_makes_nothing(wire: Wire, topic: str) -> None:
    [checked] = create(wire, new_topic(topic, 2), validate_only=True)
    assert (checked.error_code, checked.num_partitions) == (0, 2)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]
    [refused] = create(wire, new_topic(topic, 0), validate_only=True)
    assert refused.error_code == INVALID_PARTITIONS


def test_each_topic_of_a_request_stands_for_itself(wire: Wire, topic: str) -> None:
    create(wire, new_topic(f"{topic}.old"))
    wanted = {
        f"{topic}-good": (new_topic(f"{topic}-good"), 0),
        f"{topic}.old": (new_topic(f"{topic}.old"), TOPIC_ALREADY_EXISTS),
        f"{topic}_old": (new_topic(f"{topic}_old"), INVALID_TOPIC),
        "a b": (new_topic("a b"), INVALID_TOPIC),
        "__cluster_metadata": (new_topic("__cluster_metadata"), INVALID_REQUEST),
        f"{topic}-rf0": (new_topic(f"{topic}-rf0", 1, 0), INVALID_REPLICATION_FACTOR),
        f"{topic}-rf3": (new_topic(f"{topic}-rf3", 1, 3), INVALID_REPLICATION_FACTOR),
        f"{topic}-p0": (new_topic(f"{topic}-p0", 0, 1), INVALID_PARTITIONS),
        f"{topic}-p-2": (new_topic(f"{topic}-p-2", -2, 1), INVALID_PARTITIONS),
        f"{topic}-c1": (new_topic(f"{topic}-c1", configs={"no.such": "1"}), INVALID_CONFIG),
        f"{topic}-c2": (new_topic(f"{topic}-c2", configs={"retention.ms": "x"}), INVALID_CONFIG),
        f"{topic}-c3": (new_topic(f"{topic}-c3", configs={"retention.ms": None}), INVALID_CONFIG),
    }
    results = create(wire, *(row for row, _ in wanted.values()))
    assert {r.name: r.error_code for r in results} == {n: c for n, (_, c) in wanted.items()}
    assert all(r.error_message for r in results if r.error_code)


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_partitions_may_be_assigned_to_the_broker_there_is(wire: Wire, topic: str) -> None:
    rows = {
        "good": ([(1, [1]), (0, [1])], 0),
        "gap": ([(0, [1]), (2, [1])], INVALID_REPLICA_ASSIGNMENT),
        "twice": ([(0, [1]), (0, [1])], INVALID_REPLICA_ASSIGNMENT),
        "nobody": ([(0, [])], INVALID_REPLICA_ASSIGNMENT),
        "stranger": ([(0, [7])], INVALID_REPLICA_ASSIGNMENT),
        "same": ([(0, [1, 1])], INVALID_REPLICA_ASSIGNMENT),
    }
    results = create(
        wire, *(new_topic(f"{topic}-{n}", assignments=a) for n, (a, _) in rows.items())
    )
    assert codes(results) == [code for _, code in rows.values()]
    assert results[0].num_partitions == 2
    [mixed] = create(wire, new_topic(f"{topic}-mixed", 1, -1, assignments=[(0, [1])]))
    assert mixed.error_code == INVALID_REQUEST


def test_a_topic_twice_in_a_request_is_refused(wire: Wire, topic: str) -> None:
    [result] = create(wire, new_topic(topic, 1), new_topic(topic, 2))
    assert (result.name, result.error_code) == (topic, INVALID_REQUEST)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]


def test_a_request_for_too_many_partitions_is_refused_as_a_whole(wire: Wire, topic: str) -> None:
    results = create(wire, new_topic(topic, 1), new_topic(f"{topic}-2", 10_000))
    assert codes(results) == [POLICY_VIOLATION] * 2
    assert "10000 at most" in results[0].error_message


def test_topics_and_their_configs_outlive_the_broker(own_broker: OwnBrokers, topic: str) -> None:
    process = own_broker()
    wire = Wire(process.kafka)
    [made] = create(wire, new_topic(topic, 3, configs={"retention.ms": "77"}))
    alter(wire, TOPIC, topic, ("cleanup.policy", APPEND, "compact"))
    wire.close()
    process.restart()
    wire = Wire(process.kafka)
    [described] = metadata(wire, asked(topic)).topics
    assert (described.topic_id, len(described.partitions)) == (made.topic_id, 3)
    assert values(wire, topic) == {"retention.ms": "77", "cleanup.policy": "delete,compact"}
    wire.close()


# DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_by_name_in_every_version(wire: Wire, topic: str, version: int) -> None:
    create(wire, new_topic(topic))
    named = (
        {"topics": [DeleteTopics.DeleteTopicState(name=topic, topic_id=None)]}
        if version >= 6
        else {"topic_names": [topic]}
    )
    [result] = wire.ask(ApiKey.DeleteTopics, version, timeout_ms=1000, **named).responses
    assert (result.name, result.error_code) == (topic, 0)
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]


def delete(wire: Wire, *topics: tuple[str | None, uuid.UUID | None]) -> list[Any]:
    states = [DeleteTopics.DeleteTopicState(name=name, topic_id=id_) for name, id_ in topics]
    return list(wire.ask(ApiKey.DeleteTopics, topics=states, timeout_ms=1000).responses)


def test_a_topic_is_deleted_by_id_and_made_again_under_another(wire: Wire, topic: str) -> None:
    [first] = create(wire, new_topic(topic))
    [gone] = delete(wire, (None, first.topic_id))
    assert (gone.name, gone.topic_id, gone.error_code) == (topic, first.topic_id, 0)
    [second] = create(wire, new_topic(topic))
    assert second.topic_id != first.topic_id
    assert codes(delete(wire, (None, first.topic_id))) == [UNKNOWN_TOPIC_ID]
    assert codes(metadata(wire, asked(topic)).topics) == [0]


def test_topics_to_delete_are_named_once_and_clearly(wire: Wire, topic: str) -> None:
    [made] = create(wire, new_topic(topic))
    assert codes(delete(wire, (f"{topic}-x", None))) == [UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(delete(wire, (None, None))) == [INVALID_REQUEST]
    assert codes(delete(wire, (topic, made.topic_id))) == [INVALID_REQUEST]
    assert codes(delete(wire, (topic, None), (topic, None))) == [INVALID_REQUEST]
    both_ways = delete(wire, (topic, None), (None, made.topic_id))
    assert codes(both_ways) == [INVALID_REQUEST] * 2
    assert codes(metadata(wire, asked(topic)).topics) == [0]


# CreatePartitions


def grow(
    wire: Wire, version: int, *rows: tuple[str, int, Any], validate: bool = False
) -> list[Any]:
    topics = [
        CreatePartitions.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [
                CreatePartitions.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=ids)
                for ids in assignments
            ],
        )
        for name, count, assignments in rows
    ]
    answer = wire.ask(
        ApiKey.CreatePartitions, version, topics=topics, timeout_ms=1000, validate_only=validate
    )
    return list(answer.results)


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows_in_every_version(wire: Wire, topic: str, version: int) -> None:
    create(wire, new_topic(topic, 2))
    assert codes(grow(wire, version, (topic, 5, None), validate=True)) == [0]
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 2
    assert codes(grow(wire, version, (topic, 5, None))) == [0]
    assert len(metadata(wire, asked(topic)).topics[0].partitions) == 5


def test_a_topic_only_grows(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic, 2))
    for count in (2, 1, 0, -1):
        [result] = grow(wire, 3, (topic, count, None))
        assert result.error_code == INVALID_PARTITIONS
        assert "has 2 partitions" in result.error_message
    assert codes(grow(wire, 3, (f"{topic}-x", 2, None))) == [UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(grow(wire, 3, (topic, 3, None), (topic, 4, None))) == [INVALID_REQUEST]
    assert codes(grow(wire, 3, (topic, 10_003, None))) == [POLICY_VIOLATION]


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_new_partitions_are_assigned_to_the_broker_there_is(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic, 1))
    assert codes(grow(wire, 3, (topic, 3, [[1]]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], [2]]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], []]))) == [INVALID_REPLICA_ASSIGNMENT]
    assert codes(grow(wire, 3, (topic, 3, [[1], [1]]))) == [0]


# DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_configs_of_a_topic_are_described_in_every_version(
    wire: Wire, topic: str, version: int
) -> None:
    create(wire, new_topic(topic, configs={"max.message.bytes": "5000"}))
    fields: dict[str, Any] = {"include_synonyms": True}
    if version >= 3:
        fields["include_documentation"] = True
    result = describe(wire, TOPIC, topic, version=version, **fields)
    assert result.error_code == 0
    found = {entry.name: entry for entry in result.configs}
    assert found.keys() == TOPIC_CONFIGS.keys()
    entry = found["max.message.bytes"]
    assert (entry.value, entry.config_source, entry.read_only) == ("5000", 1, False)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("max.message.bytes", "5000", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    if version >= 3:
        assert entry.config_type == 3
        assert "batch" in entry.documentation


def test_only_the_configs_asked_for_are_described(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    result = describe(wire, TOPIC, topic, ["retention.ms", "no.such"])
    assert [entry.name for entry in result.configs] == ["retention.ms"]
    assert result.configs[0].documentation is None
    assert list(result.configs[0].synonyms) == []


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_configs_of_what_is_not_there_are_refused(wire: Wire, topic: str) -> None:
    for kind, name, code in (
        (TOPIC, topic, UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", INVALID_TOPIC),
        (BROKER, "2", INVALID_REQUEST),
        (BROKER, "one", INVALID_REQUEST),
        (8, "1", INVALID_REQUEST),
        (99, "1", INVALID_REQUEST),
    ):
        result = describe(wire, kind, name)
        assert (result.error_code, list(result.configs)) == (code, [])
        assert result.error_message


def test_configs_of_the_broker_are_its_settings_and_hide_secrets(own_broker: OwnBrokers) -> None:
    process = own_broker(
        message_max_bytes="2000000", sql_user="writer", sql_password="hush", num_partitions="2"
    )
    wire = Wire(process.kafka)
    result = describe(wire, BROKER, "1", include_synonyms=True, include_documentation=True)
    found = {entry.name: entry for entry in result.configs}
    assert all(entry.read_only for entry in found.values())
    for name, value, source in (
        ("node.id", "1", 5),
        ("broker.id", "1", 5),
        ("message.max.bytes", "2000000", 4),
        ("num.partitions", "2", 4),
        ("auto.create.topics.enable", "true", 5),
        ("socket.request.max.bytes", "104857600", 5),
        ("log.dirs", str(process.data_dir.resolve()), 4),
        ("advertised.listeners", f"PLAINTEXT://{process.kafka}", 5),
        ("log.retention.ms", "604800000", 5),
        ("brokerhouse.sql_user", "writer", 4),
    ):
        assert (found[name].value, found[name].config_source) == (value, source), name
    secret = found["brokerhouse.sql_password"]
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 9)
    assert all(synonym.value is None for synonym in secret.synonyms)
    assert "hush" not in str(result)
    # What the broker is set to is what a topic gets, and says where it comes from.
    create(wire, new_topic("t"))
    [entry] = describe(wire, TOPIC, "t", ["max.message.bytes"], include_synonyms=True).configs
    assert (entry.value, entry.config_source) == ("2000000", 4)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("message.max.bytes", "2000000", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    assert list(describe(wire, BROKER, "").configs) == []
    wire.close()


# AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_overrides(wire: Wire, topic: str, version: int) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1", "segment.ms": "2"}))

    def replace(validate_only: bool, **configs: str | None) -> int:
        resource = AlterConfigs.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[
                AlterConfigs.AlterConfigsResource.AlterableConfig(
                    name=name.replace("_", "."), value=value
                )
                for name, value in configs.items()
            ],
        )
        answer = wire.ask(
            ApiKey.AlterConfigs, version, resources=[resource], validate_only=validate_only
        )
        return int(answer.responses[0].error_code)

    assert replace(True, flush_ms="5") == 0
    assert values(wire, topic) == {"retention.ms": "1", "segment.ms": "2"}
    assert replace(False, flush_ms="-5") == INVALID_CONFIG
    assert replace(False, flush_ms=None) == INVALID_REQUEST
    assert values(wire, topic) == {"retention.ms": "1", "segment.ms": "2"}
    assert replace(False, flush_ms="5") == 0
    assert values(wire, topic) == {"flush.ms": "5"}


@pytest.mark.parametrize("version", range(2))
def test_configs_are_set_deleted_appended_and_subtracted(
    wire: Wire, topic: str, version: int
) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1"}))

    def after(*steps: tuple[str, int, str | None]) -> dict[str, str]:
        assert alter(wire, TOPIC, topic, *steps, version=version).error_code == 0
        return values(wire, topic)

    assert after(("segment.ms", SET, "9"), ("cleanup.policy", APPEND, "compact")) == {
        "retention.ms": "1",
        "segment.ms": "9",
        "cleanup.policy": "delete,compact",
    }
    assert after(("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")) == {
        "segment.ms": "9",
        "cleanup.policy": "compact",
    }
    assert after(("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, "ignored")) == {
        "cleanup.policy": "compact"
    }
    assert after(("flush.ms", DELETE, None)) == {"cleanup.policy": "compact"}


def test_a_change_that_is_wrong_changes_nothing(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic, configs={"retention.ms": "1"}))
    good = ("segment.ms", SET, "9")
    for steps, code in (
        ([good, ("no.such", SET, "1")], INVALID_CONFIG),
        ([good, ("retention.ms", SET, "soon")], INVALID_CONFIG),
        ([good, ("retention.ms", APPEND, "1")], INVALID_CONFIG),
        ([good, ("cleanup.policy", APPEND, "forget")], INVALID_CONFIG),
        ([good, ("retention.ms", SET, None)], INVALID_REQUEST),
        ([good, good], INVALID_REQUEST),
        ([good, ("retention.ms", 9, "1")], INVALID_REQUEST),
    ):
        result = alter(wire, TOPIC, topic, *steps)
        assert result.error_code == code, steps
        assert result.error_message
    assert alter(wire, TOPIC, topic, good, validate_only=True).error_code == 0
    assert values(wire, topic) == {"retention.ms": "1"}


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_only_topics_that_there_are_can_be_altered(wire: Wire, topic: str) -> None:
    good = ("segment.ms", SET, "9")
    assert alter(wire, TOPIC, topic, good).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert alter(wire, TOPIC, "", good).error_code == INVALID_REQUEST
    assert alter(wire, TOPIC, "a b", good).error_code == INVALID_TOPIC
    assert alter(wire, BROKER, "2", good).error_code == INVALID_REQUEST
    for name in ("1", ""):
        result = alter(wire, BROKER, name, ("message.max.bytes", SET, "9"))
        assert result.error_code == INVALID_REQUEST
        assert "restart it" in result.error_message
    assert alter(wire, 99, "x", good).error_code == INVALID_REQUEST


def test_a_resource_twice_in_a_request_is_refused_both_times(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    rows = IncrementalAlterConfigs.AlterConfigsResource
    resource = rows(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[rows.AlterableConfig(name="flush.ms", config_operation=SET, value="1")],
    )
    answer = wire.ask(
        ApiKey.IncrementalAlterConfigs, resources=[resource, resource], validate_only=False
    )
    assert codes(answer.responses) == [INVALID_REQUEST] * 2
    assert values(wire, topic) == {}


# ListConfigResources, DescribeCluster, DescribeLogDirs


@pytest.mark.one_broker("says what the only broker there is says of itself")
def test_what_has_configs_is_listed(wire: Wire, topic: str) -> None:
    create(wire, new_topic(topic))
    assert list(wire.ask(ApiKey.ListConfigResources, 0).config_resources) == []

    def listed(*types: int) -> set[tuple[int, str]]:
        answer = wire.ask(ApiKey.ListConfigResources, 1, resource_types=list(types))
        assert answer.error_code == 0
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    assert {(TOPIC, topic), (BROKER, "1")} <= listed()
    assert listed(BROKER) == {(BROKER, "1")}
    assert listed(16, 32) == set()
    refused = wire.ask(ApiKey.ListConfigResources, 1, resource_types=[99])
    assert refused.error_code == UNSUPPORTED_VERSION


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_every_version(
    wire: Wire, broker: BrokerProcess, version: int
) -> None:
    answer = wire.ask(
        ApiKey.DescribeCluster, version, include_cluster_authorized_operations=version > 0
    )
    host, port = broker.kafka.rsplit(":", 1)
    [node] = answer.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (1, host, int(port), None)
    assert (answer.error_code, answer.controller_id) == (0, 1)
    assert answer.cluster_id == metadata(wire, []).cluster_id
    operations = None if version == 0 else {5, 7, 8, 9, 10, 11, 12}
    assert answer.authorized_operations == operations


def test_controllers_are_not_to_be_found_here(wire: Wire) -> None:
    for endpoint_type, code in ((2, MISMATCHED_ENDPOINT_TYPE), (9, UNSUPPORTED_ENDPOINT_TYPE)):
        answer = wire.ask(ApiKey.DescribeCluster, 1, endpoint_type=endpoint_type)
        assert (answer.error_code, list(answer.brokers)) == (code, [])
        assert answer.error_message


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_are_described_in_every_version(
    wire: Wire, broker: BrokerProcess, topic: str, version: int
) -> None:
    create(wire, new_topic(topic, 3))
    one = DescribeLogDirs.DescribableLogDirTopic(topic=topic, partitions=[1, 7])
    [directory] = wire.ask(ApiKey.DescribeLogDirs, version, topics=[one]).results
    assert (directory.error_code, directory.log_dir) == (0, str(broker.data_dir.resolve()))
    [described] = directory.topics
    [partition] = described.partitions
    assert (described.name, partition.partition_index) == (topic, 1)
    assert (partition.partition_size, partition.offset_lag) == (0, 0)
    assert partition.is_future_key is False
    if version >= 4:
        assert 0 < directory.usable_bytes <= directory.total_bytes
    [everything] = wire.ask(ApiKey.DescribeLogDirs, version, topics=None).results
    sizes = {row.name: len(row.partitions) for row in everything.topics}
    assert sizes[topic] == 3


# Every version of every API takes an empty request


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ],
)
def test_every_version_that_is_advertised_is_answered(
    wire: Wire, key: ApiKey, version: int
) -> None:
    fields: dict[str, Any] = {}
    if key == ApiKey.Fetch:
        fields = {"max_wait_ms": 0, "replica_id": -1, "max_bytes": 1, "session_epoch": -1}
    if key == ApiKey.Produce:
        fields = {"acks": 1}
    if key == ApiKey.ApiVersions and version >= 3:
        fields = {"client_software_name": "wire", "client_software_version": "1.0"}
    answer: ApiMessage = wire.ask(key, version, **fields)
    assert answer is not None


# Clients that people use


def outcome(future: Any) -> Any:
    """What an admin future ends with: its value, or the name of its error."""
    try:
        return future.result(LIMIT_S)
    except KafkaException as error:
        return error.args[0].name()


@pytest.mark.each_change
def test_confluent_makes_changes_describes_and_deletes(
    broker: BrokerProcess, confluent: ConfluentAdmin, topic: str
) -> None:
    made = confluent.create_topics(
        [
            NewTopic(topic, 3, 1, config={"retention.ms": "5"}),
            NewTopic(f"{topic}-rf", 1, 3),
            NewTopic(f"{topic}-assigned", 2, replica_assignment=[[1], [1]]),
        ]
    )
    assert {name: outcome(future) for name, future in made.items()} == {
        topic: None,
        f"{topic}-rf": "INVALID_REPLICATION_FACTOR",
        f"{topic}-assigned": None,
    }
    [grown] = confluent.create_partitions([NewPartitions(topic, 5)]).values()
    assert outcome(grown) is None
    change = ConfluentResource(
        ConfluentResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    [changed] = confluent.incremental_alter_configs([change]).values()
    assert outcome(changed) is None
    broker.await_topic(topic)
    resource = ConfluentResource(ConfluentResource.Type.TOPIC, topic)
    configs = outcome(confluent.describe_configs([resource])[resource])
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "604800000"
    described = outcome(confluent.describe_topics(TopicCollection([topic]))[topic])
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3, 4]
    assert topic in confluent.list_topics(timeout=LIMIT_S).topics
    cluster = outcome(confluent.describe_cluster(include_authorized_operations=True))
    assert 1 in [node.id for node in cluster.nodes]
    deleted = confluent.delete_topics([topic, f"{topic}-assigned", f"{topic}-x"])
    assert {name: outcome(future) for name, future in deleted.items()} == {
        topic: None,
        f"{topic}-assigned": None,
        f"{topic}-x": "UNKNOWN_TOPIC_OR_PART",
    }


@pytest.mark.each_change
def test_kafka_python_makes_changes_describes_and_deletes(
    broker: BrokerProcess, kafka_python: Any, topic: str
) -> None:
    kafka_python.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "5"}}})
    kafka_python.create_partitions({topic: 4})
    broker.await_topic(topic)
    [described] = kafka_python.describe_topics([topic])
    assert len(described["partitions"]) == 4
    assert topic in kafka_python.list_topics()
    assert kafka_python.describe_cluster()["brokers"][0]["broker_id"] == 1
    kafka_python.delete_topics([topic])
    broker.await_topic(topic)
    assert topic not in kafka_python.list_topics()
