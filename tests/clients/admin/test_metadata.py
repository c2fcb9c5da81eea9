"""ApiVersions, Metadata and DescribeTopicPartitions, in every version."""

import struct
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.conftest import OwnBrokers
from tests.support.admin_requests import (
    INVALID_REQUEST,
    INVALID_TOPIC,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    AdminWire,
    DescribeTopicPartitions,
    asked,
    codes,
    create,
    metadata,
    new_topic,
)
from tests.support.broker_process import BrokerProcess
from tests.support.on_demand import made_on_demand
from tests.support.waiting import until


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_served_in_every_version(wire: AdminWire, version: int) -> None:
    named = {"client_software_name": "wire", "client_software_version": "1.0"}
    answer = wire.ask(ApiKey.ApiVersions, version, **(named if version >= 3 else {}))
    listed = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert listed == {key: (api.advertised_min, api.max_version) for key, api in APIS.items()}
    assert answer.error_code == 0


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    wire: AdminWire,
) -> None:
    wire.send(struct.pack(">hhih", ApiKey.ApiVersions, 99, 7, 4) + b"next" + b"\x00\xff\xff")
    frame = wire.receive()
    assert struct.unpack(">ih", frame[:6]) == (7, UNSUPPORTED_VERSION)
    answer = APIS[ApiKey.ApiVersions].response.decode(frame, version=0, header=True)
    listed = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert listed[ApiKey.ApiVersions] == (0, 4)
    assert wire.ask(ApiKey.ApiVersions, 2).error_code == 0, "the connection goes on"


@pytest.mark.parametrize("name", [b"", b"-x", b"a b", "ä".encode()])
def test_api_versions_refuses_a_client_without_a_proper_name(wire: AdminWire, name: bytes) -> None:
    def compact(text: bytes) -> bytes:
        return bytes([len(text) + 1]) + text

    header = struct.pack(">hhih", ApiKey.ApiVersions, 3, 7, -1) + b"\x00"
    wire.send(header + compact(name) + compact(b"1.0") + b"\x00")
    assert struct.unpack(">ih", wire.receive()[:6]) == (7, INVALID_REQUEST)


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(14))
def test_metadata_describes_a_topic_in_every_version(
    wire: AdminWire, broker: BrokerProcess, topic: str, version: int
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


def test_metadata_lists_all_topics_or_none(wire: AdminWire, topic: str) -> None:
    create(wire, new_topic(topic))
    assert topic in {row.name for row in metadata(wire, None).topics}
    assert topic in {row.name for row in wire.ask(ApiKey.Metadata, 0, topics=[]).topics}
    assert list(metadata(wire, []).topics) == []


def test_all_topics_are_described_as_librdkafka_asks_for_them(wire: AdminWire, topic: str) -> None:
    """It leaves three bytes of a count behind, and Kafka reads no further than the message ends."""
    create(wire, new_topic(topic))
    header = struct.pack(">hhih", ApiKey.Metadata, 13, 7, 1) + b"x" + b"\x00"
    wire.send(header + b"\x00\x00\x00\x00\x01\x00\x00")
    answer = APIS[ApiKey.Metadata].response.decode(wire.receive(), version=13, header=True)
    assert topic in {row.name for row in answer.topics}


def test_metadata_finds_topics_by_their_id(wire: AdminWire, topic: str) -> None:
    [made] = create(wire, new_topic(topic))
    unknown = uuid.uuid4()
    known = asked(None, topic_id=made.topic_id)
    answer = metadata(wire, known + asked(None, topic_id=unknown))
    found = {row.topic_id: (row.error_code, row.name) for row in answer.topics}
    assert found == {made.topic_id: (0, topic), unknown: (UNKNOWN_TOPIC_ID, None)}


def test_metadata_refuses_topic_ids_before_version_12(wire: AdminWire, topic: str) -> None:
    answer = metadata(wire, asked(topic, topic_id=uuid.uuid4()), 11)
    assert codes(answer.topics) == [INVALID_REQUEST]


def test_metadata_creates_a_topic_only_if_the_request_allows_it(
    wire: AdminWire, topic: str
) -> None:
    assert codes(metadata(wire, asked(topic)).topics) == [UNKNOWN_TOPIC_OR_PARTITION]
    [made] = made_on_demand(
        lambda: metadata(wire, asked(topic), allow_auto_topic_creation=True).topics,
        lambda topics: codes(topics)[0],
    )
    assert [p.leader_id > 0 for p in made.partitions] == [True]
    assert metadata(wire, asked(topic)).topics[0].topic_id == made.topic_id


@pytest.mark.test_all
def test_one_request_creates_thousands_of_topics_while_other_clients_are_answered(
    own_broker: OwnBrokers, topic: str
) -> None:
    process = own_broker()
    names = [f"{topic}-{n}" for n in range(2000)]

    def make() -> bool:
        wire = AdminWire(process.kafka)
        made = metadata(wire, asked(*names), allow_auto_topic_creation=True).topics
        wire.close()
        return set(codes(made)) == {0}

    with ThreadPoolExecutor(1) as aside:
        made = aside.submit(until, make, "every topic is made")
        wire = AdminWire(process.kafka)
        answers = 0
        while not made.done():
            assert codes(metadata(wire, asked(f"{topic}-unknown")).topics) == [
                UNKNOWN_TOPIC_OR_PARTITION
            ]
            answers += 1
    made.result()
    assert answers > 1
    listed = {row.name: row.topic_id for row in metadata(wire, None).topics}
    assert listed.keys() == {*names, "__consumer_offsets"}
    wire.close()
    # A stored change is a block of the table.
    stored = process.sql(
        "SELECT max(max_block_number) AS last FROM system.parts WHERE table = 'topic_versions'"
    )
    assert int(stored[0]["last"]) <= 5


def test_metadata_creates_no_topic_if_the_setting_forbids_it(
    configured: BrokerProcess, topic: str
) -> None:
    wire = AdminWire(configured.kafka)
    answer = metadata(wire, asked(topic, "a b"), allow_auto_topic_creation=True)
    assert codes(answer.topics) == [UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC]
    wire.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_metadata_creates_no_topic_with_a_name_that_kafka_refuses(
    wire: AdminWire, name: str
) -> None:
    answer = metadata(wire, asked(name), allow_auto_topic_creation=True)
    assert codes(answer.topics) == [INVALID_TOPIC]


def test_metadata_has_authorized_operations_when_they_are_asked_for(
    wire: AdminWire, topic: str
) -> None:
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


def test_partitions_are_described_page_by_page(wire: AdminWire, topic: str) -> None:
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


def test_a_cursor_outside_what_was_asked_for_is_refused(wire: AdminWire, topic: str) -> None:
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
