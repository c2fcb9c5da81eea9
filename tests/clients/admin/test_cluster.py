"""DescribeCluster and DescribeLogDirs; an empty request of every API."""

from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.admin_requests import (
    MISMATCHED_ENDPOINT_TYPE,
    UNSUPPORTED_ENDPOINT_TYPE,
    AdminWire,
    DescribeLogDirs,
    create,
    metadata,
    new_topic,
)
from tests.support.broker_process import BrokerProcess


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_every_version(
    wire: AdminWire, broker: BrokerProcess, version: int
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


def test_a_request_for_controllers_is_refused(wire: AdminWire) -> None:
    for endpoint_type, code in ((2, MISMATCHED_ENDPOINT_TYPE), (9, UNSUPPORTED_ENDPOINT_TYPE)):
        answer = wire.ask(ApiKey.DescribeCluster, 1, endpoint_type=endpoint_type)
        assert (answer.error_code, list(answer.brokers)) == (code, [])
        assert answer.error_message


@pytest.mark.one_broker("says what the only broker there is says of itself")
@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_are_described_in_every_version(
    wire: AdminWire, broker: BrokerProcess, topic: str, version: int
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


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ],
)
def test_an_empty_request_in_every_advertised_version_is_answered(
    wire: AdminWire, key: ApiKey, version: int
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
