"""Several listeners: a client gets the addresses that belong to the one it is connected to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from tests.support import messages
from tests.support.adapters import CLIENTS, GetClient
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import Cluster
from tests.support.cluster_view import metadata, topic_on_all
from tests.support.records import Record
from tests.support.server_process import ServerProcessError, free_port
from tests.support.waiting import LIMIT_S
from tests.support.wire import Wire


class At(NamedTuple):
    kafka: str


@pytest.fixture(scope="module")
def two_listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """INSIDE is advertised as it is, OUTSIDE by another name of the same host."""
    port = free_port()
    process = BrokerProcess(
        tmp_path_factory.mktemp("listeners") / "data",
        {"advertised": f"OUTSIDE://localhost:{port}", "rack": "r1"},
    )
    process.kafka = f"INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:{port}"
    process.start()
    yield process
    process.stop()


def addresses(wire: Wire, group: str) -> set[tuple[str, int]]:
    """Of all brokers, in each answer that has them."""
    everything = [
        *wire.ask(MetadataRequest(topics=None), 12).brokers,
        *wire.ask(DescribeClusterRequest(endpoint_type=1), 1).brokers,
        *wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators,
    ]
    return {(one.host, one.port) for one in everything}


def test_each_listener_answers_with_its_own_addresses(two_listeners: BrokerProcess) -> None:
    for address, host in zip(
        two_listeners.kafka.split(","), ("127.0.0.1", "localhost"), strict=True
    ):
        with Wire(At(address)) as wire:
            assert addresses(wire, "group") == {(host, int(address.rpartition(":")[2]))}
            target = messages.create_topic(wire, f"topic-of-{host}")
        (topic,) = metadata(At(address), target.name).topics
        assert [one.leader_id for one in topic.partitions] == [1]


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_of_both_listeners_share_a_topic(
    two_listeners: BrokerProcess, client: GetClient, topic: str, name: str
) -> None:
    inside, outside = two_listeners.kafka.split(",")
    sent = [Record(value=b"by way of the other", key=b"k") for _ in range(3)]
    client(name).create_topic(inside, topic, 1)
    client(name).produce(outside, topic, sent)
    read = client(name).read_from_offset(inside, topic, 0, 3)
    assert [one.value for one in read] == [one.value for one in sent]


def test_a_broker_describes_its_listeners_as_kafka_does(two_listeners: BrokerProcess) -> None:
    inside, outside = two_listeners.kafka.split(",")
    port = outside.rpartition(":")[2]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": inside})
    found = admin.describe_configs([resource])[resource].result(LIMIT_S)
    assert found["listeners"].value == f"INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:{port}"
    assert found["advertised.listeners"].value == f"INSIDE://{inside},OUTSIDE://localhost:{port}"


def test_a_listener_on_all_addresses_must_be_advertised(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.kafka = "INSIDE://127.0.0.1:0,OUTSIDE://0.0.0.0:0"
    with pytest.raises(ServerProcessError, match="give --advertised OUTSIDE://HOST:PORT"):
        process.start()


@pytest.mark.test_all
def test_brokers_of_a_cluster_are_reached_from_outside(cluster: Cluster, topic: str) -> None:
    target = topic_on_all(cluster, topic, 8)
    inside = {broker.kafka for broker in cluster.brokers}
    outside = {broker.outside for broker in cluster.brokers}
    for broker in cluster.brokers:
        for address, expected in ((broker.kafka, inside), (broker.outside, outside)):
            answer = metadata(At(address), target.name)
            assert {f"{one.host}:{one.port}" for one in answer.brokers} == expected
            leaders = {one.leader_id for one in answer.topics[0].partitions}
            assert leaders == {one.node_id for one in answer.brokers}
