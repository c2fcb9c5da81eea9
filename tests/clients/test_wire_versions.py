"""Every version of every API, byte for byte, and what the protocol says that answers mean.

Real clients use one version each, the newest that both know. Here every version that is advertised
is asked for, with content, and its answer has to decode exactly and mean the same in all of them.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from protocol import errors
from protocol._records import check_crc, parse_headers
from protocol.compression import compress
from protocol.versions import APIS, ApiKey
from tests.conftest import OwnBrokers
from tests.support import samples
from tests.support.broker_process import BrokerProcess
from tests.support.member import Member
from tests.support.record_batches import Batch, Record, batch_of, encode_records, stored
from tests.support.samples import (
    ASSIGNMENT,
    NO_GROUP,
    NOBODY,
    NOWHERE,
    OFFSETS_GROUP,
    STATIC_MEMBER,
    SUBSCRIPTION,
    TIME_MS,
    Target,
)
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

NO_ID = UUID(int=0)
INT64_MAX = 2**63 - 1
PRODUCE, FETCH, LIST, EPOCHS = 13, 17, 11, 4  # the versions where nothing depends on one
NAMED_PRODUCE, NAMED_FETCH = 12, 12  # the last with topic names
BY_NAME_OR_ID = pytest.mark.parametrize("version", [12, 13], ids=["by name", "by id"])
ALL_OPERATIONS = {3, 4, 5, 6, 7, 8, 10, 11}
GROUP_OPERATIONS = {3, 6, 8, 10, 11}
NOT_ASKED = None  # as the client's decoder hands out the field's default
UNKNOWN_MEMBER = errors.UnknownMemberId.code


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker) as connection:
        yield connection


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return samples.create_topic(wire, topic)


@pytest.fixture(scope="module")
def known(broker: BrokerProcess) -> Target:
    """A topic that holds `samples.small_batch` once, and of which a group has read one record."""
    with Wire(broker) as wire:
        target = samples.create_topic(wire, "wire-versions")
        assert write(wire, target, samples.small_batch()) == 0
        commit = samples.commit(OFFSETS_GROUP, (target, {0: 1}), metadata="a note")
        (topic,) = wire.ask(commit, 9).topics
        assert [partition.error_code for partition in topic.partitions] == [0]
    return target


def write(wire: Wire, target: Target, records: bytes, version: int = PRODUCE) -> int:
    """The base offset."""
    partition = produced(wire, target, records, version)
    assert partition.error_code == 0, partition.error_message
    return int(partition.base_offset)


def produced(wire: Wire, target: Target, records: bytes, version: int = PRODUCE) -> Any:
    answer = wire.ask(samples.produce(target, records), version)
    return answer.responses[0].partition_responses[0]


def read(wire: Wire, target: Target, offset: int, version: int = FETCH, **limits: int) -> Any:
    """The answer for the one partition."""
    answer = wire.ask(samples.fetch(target, offset, **limits), version)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def batches(records: bytes) -> list[Any]:
    """Headers of the batches of a fetched partition, each with a CRC that is right."""
    headers = parse_headers(bytes(records))
    for batch in headers:
        check_crc(bytes(records), batch)
    return headers


def offsets_of(partition: Any) -> list[int]:
    return [batch.base_offset for batch in batches(partition.records)]


def listed(wire: Wire, target: Target, timestamp: int, version: int = LIST) -> tuple[int, int, int]:
    """(error, timestamp, offset)."""
    found = wire.ask(samples.list_offsets(target, timestamp), version).topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset


# --- every version ---


class Meaning:
    """One check per API: what the answer to `samples.sample` must say in this version."""

    def __init__(self, broker: BrokerProcess, target: Target, version: int) -> None:
        self.broker = broker
        self.target = target
        self.version = version

    def check(self, key: ApiKey, answer: Any) -> None:
        if key is not ApiKey.Produce and self.version >= _THROTTLE_SINCE.get(key, 99):
            assert answer.throttle_time_ms == 0
        _MEANINGS[key](self, answer)

    def produce(self, answer: Any) -> None:
        (topic,) = answer.responses
        (partition,) = topic.partition_responses
        if self.version >= 13:
            assert topic.topic_id == self.target.topic_id
        else:
            assert topic.name == self.target.name
        assert (partition.index, partition.error_code) == (0, 0)
        assert partition.base_offset >= 2
        assert partition.log_append_time_ms == -1
        if self.version >= 5:
            assert partition.log_start_offset == 0
        if self.version >= 8:
            assert partition.record_errors == []
            assert partition.error_message is None

    def fetch(self, answer: Any) -> None:
        (topic,) = answer.responses
        (partition,) = topic.partitions
        if self.version >= 13:
            assert topic.topic_id == self.target.topic_id
        else:
            assert topic.topic == self.target.name
        if self.version >= 7:
            assert (answer.error_code, answer.session_id) == (0, 0)
        assert (partition.partition_index, partition.error_code) == (0, 0)
        assert partition.high_watermark == partition.last_stable_offset >= 2
        if self.version >= 5:
            assert partition.log_start_offset == 0
        assert not partition.aborted_transactions
        if self.version >= 11:
            assert partition.preferred_read_replica == -1
        first = batches(partition.records)[0]
        assert (first.base_offset, first.count) == (0, 2)
        sent = samples.small_batch()
        assert bytes(partition.records)[21 : len(sent)] == sent[21:]

    def list_offsets(self, answer: Any) -> None:
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == (self.target.name, 0)
        assert (partition.error_code, partition.timestamp) == (0, -1)
        assert partition.offset >= 2
        if self.version >= 4:
            assert partition.leader_epoch == 0

    def metadata(self, answer: Any) -> None:
        (node,) = answer.brokers
        assert f"{node.host}:{node.port}" == self.broker.kafka
        if self.version >= 1:
            assert answer.controller_id == node.node_id
        if self.version >= 2:
            assert len(answer.cluster_id) == 22
        if 8 <= self.version <= 10:
            assert answer.authorized_operations
        if self.version >= 13:
            assert answer.error_code == 0
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (0, self.target.name)
        if self.version >= 1:
            assert topic.is_internal is False
        if self.version >= 8:
            assert topic.authorized_operations == ALL_OPERATIONS
        if self.version >= 10:
            assert topic.topic_id == self.target.topic_id
        (partition,) = topic.partitions
        assert (partition.error_code, partition.partition_index) == (0, 0)
        assert partition.leader_id == node.node_id
        assert partition.replica_nodes == partition.isr_nodes == [node.node_id]
        if self.version >= 5:
            assert partition.offline_replicas == []
        if self.version >= 7:
            assert partition.leader_epoch == 0

    def api_versions(self, answer: Any) -> None:
        assert answer.error_code == 0
        assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [
            (int(api.key), api.advertised_min, api.max_version) for api in APIS.values()
        ]

    def find_coordinator(self, answer: Any) -> None:
        found = answer.coordinators if self.version >= 4 else [answer]
        assert [item.error_code for item in found] == [0] * len(found)
        assert {item.node_id for item in found} == {1}
        assert {f"{item.host}:{item.port}" for item in found} == {self.broker.kafka}
        if self.version >= 4:
            assert [item.key for item in found] == ["group", "other"]

    def offset_commit(self, answer: Any) -> None:
        (topic,) = answer.topics
        (partition,) = topic.partitions
        self._is_the_topic(topic)
        assert (partition.partition_index, partition.error_code) == (0, 0)

    def offset_fetch(self, answer: Any) -> None:
        topics = answer.topics
        if 2 <= self.version < 8:
            assert answer.error_code == 0
        elif self.version >= 8:
            ours, others = answer.groups
            assert (ours.group_id, ours.error_code) == (OFFSETS_GROUP, 0)
            assert (others.group_id, others.error_code, others.topics) == (NO_GROUP, 0, [])
            topics = ours.topics
        (topic,) = topics
        self._is_the_topic(topic)
        first, second = topic.partitions
        assert (first.partition_index, first.error_code) == (0, 0)
        assert (first.committed_offset, first.metadata) == (1, "a note")
        assert (second.partition_index, second.error_code) == (1, 0)
        assert (second.committed_offset, second.metadata) == (-1, "")
        if self.version >= 5:
            assert first.committed_leader_epoch == second.committed_leader_epoch == -1

    def delete_records(self, answer: Any) -> None:
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert topic.name == self.target.name
        assert (partition.partition_index, partition.error_code) == (0, 0)
        assert partition.low_watermark == 0

    def offset_delete(self, answer: Any) -> None:
        assert answer.error_code == 0
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == (self.target.name, 1)
        assert partition.error_code == errors.UnknownTopicOrPartition.code

    def _is_the_topic(self, topic: Any) -> None:
        if self.version >= 10:
            assert topic.topic_id == self.target.topic_id
        else:
            assert topic.name == self.target.name

    def join_group(self, answer: Any) -> None:
        if self.version == 0:
            assert (answer.error_code, answer.member_id) == (UNKNOWN_MEMBER, NOBODY)
        elif self.version == 4:
            assert answer.error_code == errors.MemberIdRequired.code
            assert answer.member_id.startswith("wire-")
        else:
            assert answer.error_code == 0
            assert answer.generation_id >= 1
            assert answer.protocol_name == "range"
            members = {member.member_id: member.metadata for member in answer.members}
            leads = answer.leader == answer.member_id
            assert members.get(answer.member_id) == (SUBSCRIPTION if leads else None)
            if self.version >= 7:
                assert answer.protocol_type == "consumer"
            return
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        assert not answer.protocol_name

    def sync_group(self, answer: Any) -> None:
        assert (answer.error_code, answer.assignment) == (UNKNOWN_MEMBER, b"")
        if self.version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == (None, None)

    def heartbeat(self, answer: Any) -> None:
        assert answer.error_code == UNKNOWN_MEMBER

    def leave_group(self, answer: Any) -> None:
        if self.version < 3:
            assert answer.error_code == UNKNOWN_MEMBER
            return
        assert answer.error_code == 0
        nobody, static = answer.members
        assert (nobody.member_id, nobody.group_instance_id) == (NOBODY, None)
        assert nobody.error_code == UNKNOWN_MEMBER
        assert (static.member_id, static.group_instance_id) == ("", STATIC_MEMBER)
        assert static.error_code in (0, UNKNOWN_MEMBER)

    def list_groups(self, answer: Any) -> None:
        assert answer.error_code == 0
        (ours,) = (group for group in answer.groups if group.group_id == OFFSETS_GROUP)
        assert ours.protocol_type == ""
        if self.version >= 4:
            assert ours.group_state == "Empty"
            assert {group.group_state for group in answer.groups} <= {"Empty", "Stable"}
        if self.version >= 5:
            assert ours.group_type == "classic"

    def describe_groups(self, answer: Any) -> None:
        ours, none = answer.groups
        assert (ours.group_id, ours.error_code) == (OFFSETS_GROUP, 0)
        assert (ours.group_state, ours.members) == ("Empty", [])
        assert (none.group_id, none.group_state, none.members) == (NO_GROUP, "Dead", [])
        assert {ours.protocol_type, ours.protocol_data} == {""}
        if self.version >= 3:
            assert ours.authorized_operations == GROUP_OPERATIONS
        if self.version < 6:
            assert none.error_code == 0
        else:
            assert ours.error_message is None
            assert none.error_code == errors.GroupIdNotFound.code
            assert NO_GROUP in none.error_message
            assert none.authorized_operations == NOT_ASKED

    def delete_groups(self, answer: Any) -> None:
        (result,) = answer.results
        assert (result.group_id, result.error_code) == (NO_GROUP, errors.GroupIdNotFound.code)

    def create_topics(self, answer: Any) -> None:
        plain, assigned = answer.topics
        assert (plain.name, plain.error_code, plain.error_message) == (NOWHERE, 0, None)
        assert (assigned.name, assigned.error_code) == (NOWHERE + "-assigned", 0)
        if self.version >= 5:
            assert (plain.num_partitions, plain.replication_factor) == (3, 1)
            assert (assigned.num_partitions, assigned.replication_factor) == (1, 1)
            configs = {config.name: config.value for config in plain.configs}
            assert configs["retention.ms"] == "1000"
        if self.version >= 7:
            assert plain.topic_id in (NO_ID, None)  # nothing was made

    def delete_topics(self, answer: Any) -> None:
        if self.version < 6:
            assert [(item.name, item.error_code) for item in answer.responses] == [(NOWHERE, 3)]
            return
        named, by_id = answer.responses
        assert (named.name, named.error_code) == (NOWHERE, 3)
        assert (by_id.name, by_id.topic_id, by_id.error_code) == (None, UUID(int=7), 100)
        assert named.error_message
        assert by_id.error_message

    def init_producer_id(self, answer: Any) -> None:
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        assert answer.producer_id >= 0

    def epochs(self, answer: Any) -> None:
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert (topic.topic, partition.partition) == (self.target.name, 0)
        assert (partition.error_code, partition.leader_epoch) == (0, 0)
        assert partition.end_offset >= 2

    def describe_configs(self, answer: Any) -> None:
        topic, node = answer.results
        assert (topic.error_code, topic.resource_name) == (0, self.target.name)
        (config,) = topic.configs
        assert (config.name, config.value) == ("retention.ms", "604800000")
        assert (config.read_only, config.config_source, config.is_sensitive) == (False, 5, False)
        if self.version >= 3:
            assert config.config_type == 5
            assert config.documentation
        assert (node.error_code, node.resource_name) == (0, "1")
        assert {"node.id", "message.max.bytes"} <= {config.name for config in node.configs}

    def altered(self, answer: Any) -> None:
        (resource,) = answer.responses
        assert (resource.error_code, resource.error_message) == (0, None)
        assert (resource.resource_type, resource.resource_name) == (2, self.target.name)

    def log_dirs(self, answer: Any) -> None:
        if self.version >= 3:
            assert answer.error_code == 0
        (directory,) = answer.results
        assert (directory.error_code, directory.log_dir) == (0, str(self.broker.data_dir))
        (topic,) = directory.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == (self.target.name, 0)
        assert partition.partition_size >= len(b"keyvalue")
        if self.version >= 4:
            assert 0 < directory.usable_bytes < directory.total_bytes

    def create_partitions(self, answer: Any) -> None:
        (topic,) = answer.results
        assert (topic.name, topic.error_code) == (self.target.name, 0)
        assert topic.error_message is None

    def cluster(self, answer: Any) -> None:
        (node,) = answer.brokers
        assert f"{node.host}:{node.port}" == self.broker.kafka
        assert (answer.error_code, answer.error_message) == (0, None)
        assert answer.controller_id == node.broker_id
        assert len(answer.cluster_id) == 22
        if self.version >= 1:
            assert answer.endpoint_type == 1
        if self.version >= 2:
            assert node.is_fenced is False

    def config_resources(self, answer: Any) -> None:
        assert answer.error_code == 0
        named = {(item.resource_name, item.resource_type) for item in answer.config_resources}
        if self.version == 0:
            assert named == set()  # client metrics, of which there are none
        else:
            assert {(self.target.name, 2), ("1", 4)} <= named

    def topic_partitions(self, answer: Any) -> None:
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (0, self.target.name)
        assert topic.topic_id == self.target.topic_id
        (partition,) = topic.partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
        assert answer.next_cursor is None


_MEANINGS: Mapping[ApiKey, Callable[[Meaning, Any], None]] = {
    ApiKey.Produce: Meaning.produce,
    ApiKey.Fetch: Meaning.fetch,
    ApiKey.ListOffsets: Meaning.list_offsets,
    ApiKey.Metadata: Meaning.metadata,
    ApiKey.ApiVersions: Meaning.api_versions,
    ApiKey.OffsetCommit: Meaning.offset_commit,
    ApiKey.OffsetFetch: Meaning.offset_fetch,
    ApiKey.FindCoordinator: Meaning.find_coordinator,
    ApiKey.JoinGroup: Meaning.join_group,
    ApiKey.Heartbeat: Meaning.heartbeat,
    ApiKey.LeaveGroup: Meaning.leave_group,
    ApiKey.SyncGroup: Meaning.sync_group,
    ApiKey.DescribeGroups: Meaning.describe_groups,
    ApiKey.ListGroups: Meaning.list_groups,
    ApiKey.CreateTopics: Meaning.create_topics,
    ApiKey.DeleteTopics: Meaning.delete_topics,
    ApiKey.DeleteRecords: Meaning.delete_records,
    ApiKey.InitProducerId: Meaning.init_producer_id,
    ApiKey.OffsetForLeaderEpoch: Meaning.epochs,
    ApiKey.DescribeConfigs: Meaning.describe_configs,
    ApiKey.AlterConfigs: Meaning.altered,
    ApiKey.DescribeLogDirs: Meaning.log_dirs,
    ApiKey.CreatePartitions: Meaning.create_partitions,
    ApiKey.DeleteGroups: Meaning.delete_groups,
    ApiKey.IncrementalAlterConfigs: Meaning.altered,
    ApiKey.OffsetDelete: Meaning.offset_delete,
    ApiKey.DescribeCluster: Meaning.cluster,
    ApiKey.ListConfigResources: Meaning.config_resources,
    ApiKey.DescribeTopicPartitions: Meaning.topic_partitions,
}
_THROTTLE_SINCE = {
    ApiKey.ListOffsets: 2,
    ApiKey.Metadata: 3,
    ApiKey.OffsetCommit: 3,
    ApiKey.OffsetFetch: 3,
    ApiKey.FindCoordinator: 1,
    ApiKey.JoinGroup: 2,
    ApiKey.Heartbeat: 1,
    ApiKey.LeaveGroup: 1,
    ApiKey.SyncGroup: 1,
    ApiKey.DescribeGroups: 1,
    ApiKey.ListGroups: 1,
    ApiKey.ApiVersions: 1,
    ApiKey.DeleteGroups: 0,
    ApiKey.DeleteRecords: 0,
    ApiKey.OffsetDelete: 0,
}
EVERY_VERSION = [
    pytest.param(key, version, id=f"{key.name}-{version}")
    for key, version in samples.every_version()
]


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_is_answered_in_that_version(
    broker: BrokerProcess, wire: Wire, known: Target, key: ApiKey, version: int
) -> None:
    Meaning(broker, known, version).check(
        key, wire.ask(samples.sample(key, version, known), version)
    )


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_says_what_is_wrong(wire: Wire, key: ApiKey, version: int) -> None:
    """The same requests about a topic that is not there are answered too, and say so."""
    nowhere = Target("no such topic", UUID(int=7))  # with spaces, or Metadata would make it
    answer = wire.ask(samples.sample(key, version, nowhere), version)
    about_a_topic = {
        ApiKey.Produce,
        ApiKey.Fetch,
        ApiKey.ListOffsets,
        ApiKey.Metadata,
        ApiKey.OffsetCommit,
        ApiKey.OffsetDelete,
        ApiKey.OffsetForLeaderEpoch,
        ApiKey.DescribeConfigs,
        ApiKey.AlterConfigs,
        ApiKey.IncrementalAlterConfigs,
        ApiKey.CreatePartitions,
        ApiKey.DeleteRecords,
        ApiKey.DescribeTopicPartitions,
    }
    if key in about_a_topic:
        assert set(_error_codes(answer.to_dict(json=False))) & {3, 17, 100}


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "error_code":
                yield inner
            else:
                yield from _error_codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _error_codes(inner)


def test_answers_come_in_the_order_of_the_requests(wire: Wire, target: Target) -> None:
    """A slow one in the middle holds up those behind it and lets none of them pass."""
    requests: list[tuple[ApiMessage, int]] = [
        (samples.produce(target, samples.small_batch()), PRODUCE),
        (samples.fetch(target, 2, max_wait_ms=300, min_bytes=1), FETCH),
        (samples.produce(target, samples.small_batch()), PRODUCE),
        (ApiVersionsRequest(client_software_name="w", client_software_version="1"), 3),
        (samples.list_offsets(target, -1), LIST),
        (samples.produce(target, samples.small_batch()), PRODUCE),
    ]
    ids = [wire.send_request(request, version) for request, version in requests]
    answers = [
        wire.receive_response(request, version, correlation_id)
        for (request, version), correlation_id in zip(requests, ids, strict=True)
    ]
    assert answers[1].responses[0].partitions[0].high_watermark == 2
    assert answers[4].topics[0].partitions[0].offset == 4
    assert answers[5].responses[0].partition_responses[0].base_offset == 4


# --- Metadata ---


class TestMetadata:
    @pytest.mark.parametrize("version", range(1, 14))
    def test_null_means_all_topics(self, wire: Wire, known: Target, version: int) -> None:
        answer = wire.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), version)
        assert known.name in {topic.name for topic in answer.topics}

    @pytest.mark.parametrize("version", range(14))
    def test_an_empty_list_means_none_except_in_version_0(
        self, wire: Wire, known: Target, version: int
    ) -> None:
        answer = wire.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), version)
        assert bool(answer.topics) is (version == 0)

    @pytest.mark.parametrize("version", range(14))
    def test_a_topic_is_made_by_asking_for_it_where_the_client_allows_it(
        self, wire: Wire, topic: str, version: int
    ) -> None:
        asked = MetadataRequest.MetadataRequestTopic(topic_id=None, name=topic)

        def code(allowed: bool) -> int:
            request = MetadataRequest(topics=[asked], allow_auto_topic_creation=allowed)
            return int(wire.ask(request, version).topics[0].error_code)

        if version >= 4:
            assert code(allowed=False) == errors.UnknownTopicOrPartition.code
        assert code(allowed=True) == 0
        assert code(allowed=False) == 0


# --- Produce ---


class TestProduce:
    @pytest.mark.parametrize("acks", [1, -1])
    def test_what_is_acknowledged_can_be_read(self, wire: Wire, target: Target, acks: int) -> None:
        request = samples.produce(target, samples.small_batch(), acks=acks)
        assert wire.ask(request, PRODUCE).responses[0].partition_responses[0].error_code == 0
        assert read(wire, target, 0).high_watermark == 2

    @pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
    def test_acks_0_is_not_answered_and_stored(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        wire.send_request(samples.produce(target, samples.small_batch(), acks=0), version)
        answer = wire.ask(samples.fetch(target, 0, max_wait_ms=10_000, min_bytes=1), FETCH)
        assert answer.responses[0].partitions[0].high_watermark == 2

    @pytest.mark.parametrize("acks", [2, 7, -2, 2**15 - 1, -(2**15)])
    def test_other_acks_are_refused(self, wire: Wire, target: Target, acks: int) -> None:
        request = samples.produce(target, samples.small_batch(), acks=acks)
        partition = wire.ask(request, PRODUCE).responses[0].partition_responses[0]
        assert partition.error_code == errors.InvalidRequiredAcks.code
        assert listed(wire, target, -1) == (0, -1, 0)

    def test_each_partition_fails_or_succeeds_for_itself(self, wire: Wire, target: Target) -> None:
        request = samples.produce(target, samples.small_batch())
        data = ProduceRequest.TopicProduceData.PartitionProduceData
        for index in (-1, 1, 2**31 - 1):
            request.topic_data[0].partition_data.append(
                data(index=index, records=samples.small_batch())
            )
        other = samples.produce(Target(NOWHERE, UUID(int=7)), samples.small_batch())
        request.topic_data += other.topic_data
        for version, unknown in ((NAMED_PRODUCE, 3), (PRODUCE, 100)):
            ours, theirs = wire.ask(request, version).responses
            codes = [(item.index, item.error_code) for item in ours.partition_responses]
            assert codes == [(0, 0), (-1, 3), (1, 3), (2**31 - 1, 3)]
            assert [item.error_code for item in theirs.partition_responses] == [unknown]

    def test_a_batch_is_measured_against_what_the_topic_takes(self, wire: Wire, topic: str) -> None:
        small = samples.create_topic(wire, topic, configs={"max.message.bytes": "200"})
        fits = batch_of(Record(value=bytes(100)))
        assert len(fits.data) <= 200
        assert write(wire, small, fits.data) == 0
        partition = produced(wire, small, batch_of(Record(value=bytes(200))).data)
        assert partition.error_code == errors.MessageTooLarge.code
        payload = encode_records([Record(value=bytes(5000))])
        assert write(wire, small, Batch(compress(4, payload), 1, attributes=4).data) == 1

    def test_zstd_needs_version_7(self, wire: Wire, target: Target) -> None:
        payload = encode_records([Record()])
        data = Batch(compress(4, payload), 1, attributes=4).data
        code = produced(wire, target, data, 6).error_code
        assert code == errors.UnsupportedCompressionType.code
        assert write(wire, target, data, 7) == 0

    @pytest.mark.parametrize("version", [3, 12])
    def test_transactions_are_refused(self, wire: Wire, target: Target, version: int) -> None:
        batch = replace(batch_of(Record()), attributes=0x10, producer_id=1, producer_epoch=0)
        request = samples.produce(target, replace(batch, base_sequence=0).data)
        request.transactional_id = "transaction"
        partition = wire.ask(request, version).responses[0].partition_responses[0]
        assert partition.error_code != 0
        assert listed(wire, target, -1) == (0, -1, 0)


class TestTimestamps:
    def test_the_brokers_time_is_set_told_and_stored_where_the_topic_wants_it(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            configs = {"message.timestamp.type": "LogAppendTime"}
            target = samples.create_topic(wire, topic, configs=configs)
            before_ms = time.time_ns() // 1_000_000
            partition = produced(wire, target, batch_of(Record(0), Record(-7), Record(9)).data)
            after_ms = time.time_ns() // 1_000_000
            appended_ms = partition.log_append_time_ms
            assert before_ms <= appended_ms <= after_ms
            warm = read(wire, target, 0)
        broker.restart()
        with Wire(broker) as wire:
            cold = read(wire, target, 0)
            assert listed(wire, target, appended_ms) == (0, appended_ms, 0)
            assert listed(wire, target, appended_ms + 1) == (0, -1, -1)
        for answer in (warm, cold):
            (batch,) = batches(answer.records)
            assert (batch.timestamp_type, batch.max_timestamp) == (1, appended_ms)
            rows = _rows(answer.records)
            assert {(row.timestamp_ms, row.timestamp_type) for row in rows} == {(appended_ms, 1)}
        (row,) = broker.sql(
            "SELECT groupUniqArray((timestamp_ms, timestamp_type)) AS kinds FROM messages"
        )
        assert row["kinds"] == [[appended_ms, "LogAppendTime"]]

    def test_any_int64_comes_back_from_the_tail_and_from_the_table(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        extremes = [-(2**63), -(2**63) + 1, -(2**31), -2, -1, 0, 1, 2**31, 2**53 + 1]
        extremes += [2**62, INT64_MAX - 1, INT64_MAX]
        broker = own_broker()
        with Wire(broker) as wire:
            configs = {
                "message.timestamp.after.max.ms": str(INT64_MAX),
                "message.timestamp.before.max.ms": str(INT64_MAX),
            }
            target = samples.create_topic(wire, topic, configs=configs)
            for at in extremes:
                data = batch_of(Record(), base_timestamp=at, max_timestamp=at).data
                write(wire, target, data)
            warm = [row.timestamp_ms for row in _rows(read(wire, target, 0).records)]
        broker.restart()
        with Wire(broker) as wire:
            cold = [row.timestamp_ms for row in _rows(read(wire, target, 0).records)]
            assert listed(wire, target, -3) == (0, INT64_MAX, len(extremes) - 1)
        assert warm == cold == extremes

    def test_a_timestamp_too_far_from_now_is_refused(self, wire: Wire, topic: str) -> None:
        configs = {
            "message.timestamp.after.max.ms": "3600000",
            "message.timestamp.before.max.ms": "3600000",
        }
        target = samples.create_topic(wire, topic, configs=configs)
        now_ms = time.time_ns() // 1_000_000
        for at, code in (
            (now_ms + 3_500_000, 0),
            (now_ms - 3_500_000, 0),
            (-1, 0),
            (now_ms + 3_700_000, errors.InvalidTimestamp.code),
            (now_ms - 3_700_000, errors.InvalidTimestamp.code),
            (0, errors.InvalidTimestamp.code),
            (INT64_MAX, errors.InvalidTimestamp.code),
            (-(2**63), errors.InvalidTimestamp.code),
        ):
            data = batch_of(Record(), base_timestamp=at, max_timestamp=at).data
            assert produced(wire, target, data).error_code == code, at


def _rows(records: bytes) -> list[Any]:
    data = bytes(records)
    rows = []
    for batch in batches(data):
        part = data[batch.start : batch.end]
        (epoch,) = struct.unpack_from(">i", part, 12)
        rows += stored(
            Batch(
                part[61:],
                batch.count,
                attributes=batch.attributes,
                base_timestamp=batch.base_timestamp,
                max_timestamp=batch.max_timestamp,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
            ),
            batch.base_offset,
            epoch,
        )
    return rows


# --- idempotent producers ---


class Producer:
    """An idempotent producer that can be told to misbehave."""

    def __init__(self, wire: Wire, target: Target) -> None:
        self.wire = wire
        self.target = target
        answer = wire.ask(InitProducerIdRequest(transactional_id=None, producer_id=-1), 4)
        self.producer_id = answer.producer_id

    def batch(self, sequence: int, count: int = 2, epoch: int = 0) -> bytes:
        records = [Record(value=b"%d" % (sequence + number)) for number in range(count)]
        return batch_of(
            *records,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        ).data

    def send(self, sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, int]:
        """(error, base offset)."""
        answer = produced(self.wire, self.target, self.batch(sequence, count, epoch))
        return answer.error_code, answer.base_offset


@pytest.fixture
def producer(wire: Wire, target: Target) -> Producer:
    return Producer(wire, target)


GAP = (errors.OutOfOrderSequenceNumber.code, -1)
FENCED = (errors.InvalidProducerEpoch.code, -1)


class TestIdempotence:
    def test_producer_ids_are_given_once(self, wire: Wire) -> None:
        request = InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        ids = [wire.ask(request, 4).producer_id for _ in range(50)]
        assert len(set(ids)) == 50

    def test_a_batch_that_comes_again_is_answered_as_before(self, producer: Producer) -> None:
        assert [producer.send(sequence) for sequence in (0, 2, 4)] == [(0, 0), (0, 2), (0, 4)]
        assert [producer.send(sequence) for sequence in (4, 0, 2)] == [(0, 4), (0, 0), (0, 2)]
        assert producer.send(6) == (0, 6)

    def test_the_last_five_batches_are_known(self, producer: Producer) -> None:
        for sequence in range(0, 14, 2):
            assert producer.send(sequence) == (0, sequence)
        for sequence in range(4, 14, 2):
            assert producer.send(sequence) == (0, sequence)
        assert producer.send(2) == GAP

    def test_a_sequence_that_does_not_follow_is_refused(self, producer: Producer) -> None:
        assert producer.send(0) == (0, 0)
        for sequence in (1, 3, 4, 2**31 - 1):
            assert producer.send(sequence) == GAP
        assert producer.send(0, count=1) == GAP, "a part of a batch is another batch"
        assert producer.send(2) == (0, 2)

    def test_a_newer_epoch_begins_at_0_and_fences_the_older(self, producer: Producer) -> None:
        assert producer.send(0) == (0, 0)
        assert producer.send(2, epoch=1) == GAP
        assert producer.send(0, epoch=1) == (0, 2)
        assert producer.send(2, epoch=0) == FENCED
        assert producer.send(0, epoch=0) == FENCED
        assert producer.send(2, epoch=1) == (0, 4)

    def test_sequences_wrap_after_the_largest_int32(self, producer: Producer) -> None:
        last = 2**31 - 1
        assert producer.send(last - 1) == (0, 0)
        assert producer.send(0) == (0, 2)
        assert producer.send(2, count=5) == (0, 4)
        assert producer.send(last - 1) == (0, 0)

    def test_a_batch_may_wrap_within_itself(self, producer: Producer) -> None:
        assert producer.send(2**31 - 2, count=4) == (0, 0)
        assert producer.send(2**31 - 2, count=4) == (0, 0)
        assert producer.send(2) == (0, 4)

    def test_producers_do_not_know_each_other(self, wire: Wire, target: Target) -> None:
        one, other = Producer(wire, target), Producer(wire, target)
        assert [one.send(0), other.send(0), one.send(2), other.send(2)] == [
            (0, 0),
            (0, 2),
            (0, 4),
            (0, 6),
        ]

    def test_five_in_flight_may_be_sent_twice(self, producer: Producer) -> None:
        """As a client does that lost its connection and does not know what has arrived."""
        wire, version = producer.wire, PRODUCE
        requests = [
            samples.produce(producer.target, producer.batch(sequence))
            for sequence in (0, 2, 4, 6, 8, 0, 2, 4, 6, 8)
        ]
        ids = [wire.send_request(request, version) for request in requests]
        found = [
            wire.receive_response(request, version, correlation_id)
            .responses[0]
            .partition_responses[0]
            for request, correlation_id in zip(requests, ids, strict=True)
        ]
        assert [item.error_code for item in found] == [0] * 10
        assert [item.base_offset for item in found] == [0, 2, 4, 6, 8] * 2
        assert listed(wire, producer.target, -1) == (0, -1, 10)

    def test_what_follows_a_gap_in_flight_is_refused_too(self, producer: Producer) -> None:
        wire = producer.wire
        requests = [
            samples.produce(producer.target, producer.batch(sequence)) for sequence in (0, 4, 6, 2)
        ]
        ids = [wire.send_request(request, PRODUCE) for request in requests]
        codes = [
            wire.receive_response(request, PRODUCE, correlation_id)
            .responses[0]
            .partition_responses[0]
            .error_code
            for request, correlation_id in zip(requests, ids, strict=True)
        ]
        assert codes == [0, GAP[0], GAP[0], 0]

    def test_a_restart_forgets_nothing(self, own_broker: OwnBrokers, topic: str) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            target = samples.create_topic(wire, topic)
            producer, wrapped = Producer(wire, target), Producer(wire, target)
            for sequence in (0, 2, 4):
                producer.send(sequence)
            assert producer.send(0, epoch=3) == (0, 6)
            assert producer.send(2, epoch=3) == (0, 8)
            assert wrapped.send(2**31 - 2, count=4) == (0, 10)
        broker.kill()
        broker.start()
        with Wire(broker) as wire:
            producer.wire = wrapped.wire = wire
            assert producer.send(2, epoch=3) == (0, 8)
            assert producer.send(0, epoch=3) == (0, 6)
            assert producer.send(6, epoch=3) == GAP
            assert producer.send(6, epoch=0) == FENCED
            assert producer.send(4, epoch=3) == (0, 14)
            assert wrapped.send(2**31 - 2, count=4) == (0, 10)
            assert wrapped.send(3) == GAP
            assert wrapped.send(2) == (0, 16)
            fresh = Producer(wire, target)
            assert fresh.producer_id not in (producer.producer_id, wrapped.producer_id)
            assert fresh.send(0) == (0, 18)


# --- ListOffsets and leader epochs ---


@pytest.fixture
def timed(wire: Wire, target: Target) -> Target:
    """Timestamps +0 +10 +20 | +5 +30 +30 | +7, at offsets 0 to 6."""
    for deltas in ((0, 10, 20), (5, 30, 30), (7,)):
        records = [Record(delta) for delta in deltas]
        write(wire, target, batch_of(*records, max_timestamp=TIME_MS + max(deltas)).data)
    return target


class TestListOffsets:
    def test_by_timestamp_the_first_offset_at_or_after_it(self, wire: Wire, timed: Target) -> None:
        for asked, found, offset in ((0, 0, 0), (1, 10, 1), (10, 10, 1), (11, 20, 2), (21, 30, 4)):
            assert listed(wire, timed, TIME_MS + asked) == (0, TIME_MS + found, offset)
        assert listed(wire, timed, 0) == (0, TIME_MS, 0)
        assert listed(wire, timed, TIME_MS + 31) == (0, -1, -1)
        assert listed(wire, timed, INT64_MAX) == (0, -1, -1)

    def test_the_ends_and_the_largest_timestamp(self, wire: Wire, timed: Target) -> None:
        assert listed(wire, timed, -1) == (0, -1, 7)
        assert listed(wire, timed, -2) == (0, -1, 0)
        assert listed(wire, timed, -3) == (0, TIME_MS + 30, 4)
        assert listed(wire, timed, -4) == (0, -1, 0)
        assert listed(wire, timed, -5) == (0, -1, -1)

    def test_an_empty_partition(self, wire: Wire, target: Target) -> None:
        assert listed(wire, target, -1) == (0, -1, 0)
        assert listed(wire, target, -2) == (0, -1, 0)
        assert listed(wire, target, -3) == (0, -1, -1)
        assert listed(wire, target, 0) == (0, -1, -1)

    @pytest.mark.parametrize(("asked", "since"), [(-3, 7), (-4, 8), (-5, 9)])
    def test_special_timestamps_need_the_version_that_has_them(
        self, wire: Wire, timed: Target, asked: int, since: int
    ) -> None:
        for version in range(1, 12):
            code = listed(wire, timed, asked, version)[0]
            assert code == (0 if version >= since else errors.UnsupportedVersion.code), version

    @pytest.mark.parametrize("version", range(4, 12))
    def test_a_leader_epoch_that_is_not_ours(self, wire: Wire, timed: Target, version: int) -> None:
        request = samples.list_offsets(timed, -1)
        for epoch, code in ((-1, 0), (0, 0), (1, errors.UnknownLeaderEpoch.code)):
            request.topics[0].partitions[0].current_leader_epoch = epoch
            assert wire.ask(request, version).topics[0].partitions[0].error_code == code

    @pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1])
    def test_a_partition_that_is_not_there(self, wire: Wire, timed: Target, partition: int) -> None:
        answer = wire.ask(samples.list_offsets(timed, -1, partition), LIST)
        assert answer.topics[0].partitions[0].error_code == errors.UnknownTopicOrPartition.code


class TestLeaderEpochs:
    def ask(self, wire: Wire, target: Target, epoch: int, current: int = -1) -> tuple[int, ...]:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        asked = topic.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[topic(topic=target.name, partitions=[asked])]
        )
        found = wire.ask(request, EPOCHS).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    def test_the_epoch_ends_at_the_high_watermark(self, wire: Wire, timed: Target) -> None:
        assert self.ask(wire, timed, 0) == (0, 0, 7)

    def test_an_epoch_that_never_was_has_no_end(self, wire: Wire, timed: Target) -> None:
        assert self.ask(wire, timed, 5) == (0, -1, -1)

    def test_a_leader_epoch_that_is_not_ours(self, wire: Wire, timed: Target) -> None:
        assert self.ask(wire, timed, 0, current=0) == (0, 0, 7)
        code = errors.UnknownLeaderEpoch.code
        assert self.ask(wire, timed, 0, current=1) == (code, -1, -1)


# --- Fetch ---


class TestFetch:
    @BY_NAME_OR_ID
    def test_a_batch_is_found_by_any_of_its_offsets(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        for count in (1, 3, 2):
            write(wire, target, batch_of(*[Record()] * count).data)
        for offset, first in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 4)):
            assert offsets_of(read(wire, target, offset, version))[0] == first
        end = read(wire, target, 6, version)
        assert (end.error_code, bytes(end.records or b""), end.high_watermark) == (0, b"", 6)

    @BY_NAME_OR_ID
    def test_what_cannot_be_read(self, wire: Wire, target: Target, version: int) -> None:
        write(wire, target, samples.small_batch())
        for offset in (3, -1, -2, INT64_MAX, -(2**63)):
            assert read(wire, target, offset, version).error_code == errors.OffsetOutOfRange.code
        for partition in (1, -1, 2**31 - 1):
            code = read(wire, target, 0, version, partition=partition).error_code
            assert code == errors.UnknownTopicOrPartition.code
        for epoch, expected in ((0, 0), (1, errors.UnknownLeaderEpoch.code)):
            assert read(wire, target, 0, version, leader_epoch=epoch).error_code == expected
        unknown = {12: errors.UnknownTopicOrPartition.code, 13: errors.UnknownTopicId.code}
        for topic_id in (UUID(int=7), NO_ID):
            nowhere = Target(NOWHERE, topic_id)
            assert read(wire, nowhere, 0, version).error_code == unknown[version]

    def test_limits_are_kept_and_one_batch_always_comes(self, wire: Wire, target: Target) -> None:
        size = 0
        for _ in range(10):
            data = batch_of(Record(value=bytes(1000))).data
            size = len(data)
            write(wire, target, data)

        def count(**limits: int) -> int:
            return len(offsets_of(read(wire, target, 0, **limits)))

        assert count() == 10
        for limit, expected in ((0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2)):
            assert count(partition_max_bytes=limit) == expected
            assert count(max_bytes=limit) == expected
        assert count(max_bytes=-1) == count(partition_max_bytes=-1) == 1
        assert count(max_bytes=5 * size, partition_max_bytes=3 * size) == 3

    def test_the_first_partition_with_something_gets_its_batch(
        self, wire: Wire, topic: str
    ) -> None:
        target = samples.create_topic(wire, topic, partitions=3)
        for partition in (1, 2):
            request = samples.produce(target, samples.small_batch(), partition=partition)
            wire.ask(request, PRODUCE)
        request = samples.fetch(target, 0, partition=0, max_bytes=1)
        for partition in (1, 2):
            more = samples.fetch(target, 0, partition=partition)
            request.topics[0].partitions += more.topics[0].partitions
        found = wire.ask(request, FETCH).responses[0].partitions
        assert [len(offsets_of(item)) for item in found] == [0, 1, 0]

    @pytest.mark.parametrize("version", [4, 7, 17])
    def test_isolation_levels(self, wire: Wire, target: Target, version: int) -> None:
        write(wire, target, samples.small_batch())
        uncommitted = read(wire, target, 0, version, isolation_level=0)
        committed = read(wire, target, 0, version, isolation_level=1)
        assert uncommitted.aborted_transactions is None
        assert committed.aborted_transactions == []
        assert uncommitted.last_stable_offset == committed.last_stable_offset == 2

    def test_the_cold_log_is_the_same_log(self, own_broker: OwnBrokers, topic: str) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            target = samples.create_topic(wire, topic)
            for number in range(200):
                write(wire, target, batch_of(Record(number, b"%d" % number, bytes(500))).data)
            warm = _rows(read(wire, target, 0).records)
        broker.restart()
        with Wire(broker) as wire:
            cold = _rows(read(wire, target, 0).records)
            assert cold == warm
            assert len(cold) == 200
            assert _rows(read(wire, target, 150).records)[-1].offset == 199
            position = rounds = 0
            while position < 200:
                found = read(wire, target, position, partition_max_bytes=1, max_bytes=1)
                position = batches(found.records)[-1].base_offset
                position += batches(found.records)[-1].last_offset_delta + 1
                rounds += 1
            assert position == 200


class TestLongPolls:
    def test_nothing_comes_after_max_wait(self, wire: Wire, target: Target) -> None:
        began = time.monotonic()
        found = read(wire, target, 0, max_wait_ms=300, min_bytes=1)
        assert 0.29 < time.monotonic() - began < 5
        assert (found.error_code, found.high_watermark) == (0, 0)

    @pytest.mark.parametrize(
        "limits",
        [{"max_wait_ms": 0, "min_bytes": 1}, {"max_wait_ms": 30_000, "min_bytes": 0}],
        ids=["no time to wait", "no bytes to wait for"],
    )
    def test_there_is_nothing_to_wait_for(
        self, wire: Wire, target: Target, limits: dict[str, int]
    ) -> None:
        began = time.monotonic()
        assert read(wire, target, 0, **limits).high_watermark == 0
        assert time.monotonic() - began < 5

    def test_an_error_is_told_at_once(self, wire: Wire, target: Target) -> None:
        began = time.monotonic()
        found = read(wire, target, 5, max_wait_ms=30_000, min_bytes=1)
        assert found.error_code == errors.OffsetOutOfRange.code
        assert time.monotonic() - began < 5

    def test_an_append_wakes_those_who_wait_for_it(
        self, broker: BrokerProcess, wire: Wire, topic: str
    ) -> None:
        target = samples.create_topic(wire, topic, partitions=2)
        waiting = samples.fetch(target, 0, max_wait_ms=30_000, min_bytes=1)
        waiting.topics[0].partitions += samples.fetch(target, 0, partition=1).topics[0].partitions
        with Wire(broker) as poller, Wire(broker) as other:
            poll = poller.send_request(waiting, FETCH)
            elsewhere = samples.fetch(target, 0, partition=1, max_wait_ms=30_000, min_bytes=1)
            other.send_request(elsewhere, FETCH)
            assert poller.is_silent_for(0.1)
            began = time.monotonic()
            write(wire, target, samples.small_batch())
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions
            assert time.monotonic() - began < 5
            assert other.is_silent_for(0.1), "woken by another partition"
        assert [len(offsets_of(item)) for item in found] == [1, 0]

    def test_min_bytes_are_gathered(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        size = len(samples.small_batch())
        waiting = samples.fetch(target, 0, max_wait_ms=30_000, min_bytes=3 * size)
        with Wire(broker) as poller:
            poll = poller.send_request(waiting, FETCH)
            for _ in range(2):
                write(wire, target, samples.small_batch())
            assert poller.is_silent_for(0.1)
            write(wire, target, samples.small_batch())
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions[0]
        assert offsets_of(found) == [0, 2, 4]

    def test_what_there_is_comes_after_max_wait(self, wire: Wire, target: Target) -> None:
        write(wire, target, samples.small_batch())
        assert offsets_of(read(wire, target, 0, max_wait_ms=200, min_bytes=1 << 20)) == [0]

    def test_deleting_the_topic_ends_the_wait(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        waiting = samples.fetch(target, 0, max_wait_ms=30_000, min_bytes=1)
        with Wire(broker) as poller:
            poll = poller.send_request(waiting, FETCH)
            assert poller.is_silent_for(0.1)
            state = DeleteTopicsRequest.DeleteTopicState(name=target.name, topic_id=None)
            wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=10_000), 6)
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions[0]
        assert found.error_code in (3, 100)

    def test_a_long_poll_holds_up_no_other_connection(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        pollers = [Wire(broker) for _ in range(50)]
        for poller in pollers:
            poller.send_request(samples.fetch(target, 0, max_wait_ms=30_000, min_bytes=1), FETCH)
        began = time.monotonic()
        wire.ask(ApiVersionsRequest(), 0)
        assert time.monotonic() - began < 5
        write(wire, target, samples.small_batch())
        for poller in pollers:
            poller.receive()
            poller.close()


class Session:
    """A fetch session as a consumer keeps it."""

    def __init__(self, wire: Wire, version: int) -> None:
        self.wire = wire
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self,
        *wanted: FetchRequest,
        forgotten: tuple[Target, list[int]] | None = None,
        max_wait_ms: int = 0,
    ) -> Any:
        """The next fetch of the session; it names only what is new or changed."""
        request = samples.fetch(Target("", NO_ID), 0, max_wait_ms=max_wait_ms, min_bytes=1)
        request.topics = [topic for each in wanted for topic in each.topics]
        request.session_id, request.session_epoch = self.session_id, self.epoch
        if forgotten is not None:
            target, partitions = forgotten
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(
                    topic=target.name, topic_id=target.topic_id, partitions=partitions
                )
            ]
        answer = self.wire.ask(request, self.version)
        if answer.error_code == 0:
            self.session_id = answer.session_id
            self.epoch += 1
        return answer

    def told(self, answer: Any) -> list[tuple[int, int, int]]:
        """(partition, error, number of batches)."""
        assert answer.error_code == 0
        return [
            (item.partition_index, item.error_code, len(offsets_of(item)))
            for topic in answer.responses
            for item in topic.partitions
        ]


SESSION_VERSIONS = pytest.mark.parametrize("version", [7, 12, 13, 18])


class TestFetchSessions:
    @pytest.fixture
    def target(self, wire: Wire, topic: str) -> Target:
        return samples.create_topic(wire, topic, partitions=3)

    def begin(self, wire: Wire, target: Target, version: int) -> Session:
        session = Session(wire, version)
        answer = session.fetch(*(samples.fetch(target, 0, partition=index) for index in range(3)))
        assert session.session_id > 0
        assert session.told(answer) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
        return session

    def append(self, wire: Wire, target: Target, partition: int) -> None:
        wire.ask(samples.produce(target, samples.small_batch(), partition=partition), PRODUCE)

    @SESSION_VERSIONS
    def test_only_news_are_told(self, wire: Wire, target: Target, version: int) -> None:
        session = self.begin(wire, target, version)
        assert session.told(session.fetch()) == []
        self.append(wire, target, 1)
        assert session.told(session.fetch()) == [(1, 0, 1)]
        moved = samples.fetch(target, 2, partition=1)
        assert session.told(session.fetch(moved)) == []
        assert session.told(session.fetch()) == []

    @SESSION_VERSIONS
    def test_partitions_are_added_moved_and_forgotten(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = Session(wire, version)
        session.fetch(samples.fetch(target, 0, partition=0))
        for partition in range(3):
            self.append(wire, target, partition)
        moved, added = samples.fetch(target, 2), samples.fetch(target, 0, partition=2)
        assert session.told(session.fetch(moved, added)) == [(0, 0, 0), (2, 0, 1)]
        assert session.told(session.fetch(forgotten=(target, [0, 2, 99]))) == []
        self.append(wire, target, 0)
        assert session.told(session.fetch()) == []

    def test_an_error_is_told_again_and_again(self, wire: Wire, target: Target) -> None:
        session = Session(wire, 12)
        session.fetch(samples.fetch(target, 5))
        assert session.told(session.fetch()) == [(0, 1, 0)]
        assert session.told(session.fetch()) == [(0, 1, 0)]

    @SESSION_VERSIONS
    def test_a_wrong_epoch_or_id_is_refused(self, wire: Wire, target: Target, version: int) -> None:
        session = self.begin(wire, target, version)
        for epoch in (2, 5, 2**31 - 1, -2):
            session.epoch = epoch
            code = session.fetch().error_code
            assert code == errors.InvalidFetchSessionEpoch.code
        session.epoch, session_id = 1, session.session_id
        session.session_id = session_id % (2**31 - 1) + 1
        assert session.fetch().error_code == errors.FetchSessionIdNotFound.code
        session.session_id = session_id
        assert session.told(session.fetch()) == []

    def test_a_session_keeps_to_names_or_to_ids(self, wire: Wire, target: Target) -> None:
        session = self.begin(wire, target, 12)
        session.version = 13
        assert session.fetch().error_code == errors.FetchSessionTopicIdError.code

    @SESSION_VERSIONS
    def test_a_session_ends_by_its_final_epoch(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = self.begin(wire, target, version)
        self.append(wire, target, 0)
        last = samples.fetch(target, 0, session_id=session.session_id, session_epoch=-1)
        answer = wire.ask(last, version)
        assert answer.session_id == 0
        assert session.told(answer) == [(0, 0, 1)]
        assert session.fetch().error_code == errors.FetchSessionIdNotFound.code

    def test_epoch_0_begins_anew(self, wire: Wire, target: Target) -> None:
        session = self.begin(wire, target, 13)
        before, session.epoch = session.session_id, 0
        answer = session.fetch(samples.fetch(target, 0))
        assert session.told(answer) == [(0, 0, 0)]
        assert session.session_id not in (0, before)

    def test_a_long_poll_within_a_session(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        with Wire(broker) as poller:
            session = self.begin(poller, target, 13)
            answers: list[Any] = []
            polling = threading.Thread(
                target=lambda: answers.append(session.fetch(max_wait_ms=30_000))
            )
            polling.start()
            self.append(wire, target, 2)
            polling.join(20)
            assert [session.told(answer) for answer in answers] == [[(2, 0, 1)]]

    def test_without_room_a_consumer_is_served_without_a_session(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(fetch_sessions_max="2")
        with Wire(broker) as wire:
            target = samples.create_topic(wire, topic, partitions=3)
            kept = [self.begin(wire, target, 13) for _ in range(2)]
            refused = Session(wire, 13)
            answer = refused.fetch(samples.fetch(target, 0))
            assert (answer.session_id, refused.told(answer)) == (0, [(0, 0, 0)])
            for session in kept:
                assert session.told(session.fetch()) == []
            wire.ask(samples.fetch(target, 0, session_id=kept[0].session_id, session_epoch=-1), 13)
            self.begin(wire, target, 13)


# --- groups ---


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose groups begin at once."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("groups") / "data", {"group_initial_rebalance_delay_ms": "0"}
    )
    process.start()
    yield process
    process.stop()


def version_of(key: ApiKey, era: int) -> int:
    return min(max(era, APIS[key].min_version), APIS[key].max_version)


class TestGroups:
    """`era`: the version of every request, or the nearest that its API has."""

    @pytest.fixture
    def wires(self, group_broker: BrokerProcess) -> Iterator[tuple[Wire, Wire, Wire]]:
        with Wire(group_broker) as one, Wire(group_broker) as two, Wire(group_broker) as three:
            yield one, two, three

    @pytest.mark.parametrize("era", range(11))
    def test_two_members_from_their_first_request_to_their_last(
        self, wires: tuple[Wire, Wire, Wire], topic: str, era: int
    ) -> None:
        tool = wires[2]
        target = samples.create_topic(tool, topic)
        names = ("one", "two") if era >= 5 else (None, None)
        first, second = (
            Member(wire, topic, era=era, instance_id=name)
            for wire, name in zip(wires[:2], names, strict=True)
        )
        first.settle()
        assert (first.generation, first.heartbeat(), first.commit(target, 3)) == (1, 0, 0)
        second.begin_join()
        while first.heartbeat() == 0:
            pass
        assert first.heartbeat() == errors.RebalanceInProgress.code
        first.send_join()
        joined = first.receive_join()
        assert joined.generation_id == second.receive_join().generation_id == 2
        assert (first.leads, second.leads) == (True, False)
        assert {
            (member.member_id, member.group_instance_id if era >= 5 else None, member.metadata)
            for member in joined.members
        } == {
            (first.member_id, names[0], SUBSCRIPTION),
            (second.member_id, names[1], SUBSCRIPTION),
        }
        second.send_sync()
        answer = first.sync({first.member_id: ASSIGNMENT, second.member_id: b"the rest"})
        assert (answer.error_code, answer.assignment) == (0, ASSIGNMENT)
        answer = second.receive_sync()
        assert (answer.error_code, answer.assignment) == (0, b"the rest")
        if era >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        self.is_described(tool, era, first, second)
        assert self.listed(tool, era)[topic] == ("consumer", "Stable" if era >= 4 else "")
        assert (second.commit(target, 7), self.fetched(tool, era, topic, target)) == (0, 7)
        assert self.deleted(tool, era, topic) == errors.NonEmptyGroup.code
        assert (first.leave(), first.heartbeat(), second.leave()) == (0, UNKNOWN_MEMBER, 0)
        assert self.listed(tool, era)[topic] == ("consumer", "Empty" if era >= 4 else "")
        assert self.deleted(tool, era, topic) == 0
        assert topic not in self.listed(tool, era)
        assert self.fetched(tool, era, topic, target) == -1

    def is_described(self, wire: Wire, era: int, *members: Member) -> None:
        version = version_of(ApiKey.DescribeGroups, era)
        group_id = members[0].group_id
        for asked, operations in ((True, GROUP_OPERATIONS), (False, NOT_ASKED)):
            request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=asked)
            (group,) = wire.ask(request, version).groups
            assert (group.error_code, group.group_id, group.group_state) == (0, group_id, "Stable")
            assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
            if version >= 3:
                assert group.authorized_operations == operations
        assert {
            (
                shown.member_id,
                shown.group_instance_id if version >= 4 else None,
                shown.client_id,
                shown.client_host,
                shown.member_metadata,
                shown.member_assignment,
            )
            for shown in group.members
        } == {
            (
                member.member_id,
                member.instance_id if version >= 4 else None,
                "wire",
                "/127.0.0.1",
                SUBSCRIPTION,
                assignment,
            )
            for member, assignment in zip(members, (ASSIGNMENT, b"the rest"), strict=True)
        }

    def listed(self, wire: Wire, era: int) -> dict[str, tuple[str, str]]:
        request = ListGroupsRequest(states_filter=[], types_filter=[])
        answer = wire.ask(request, version_of(ApiKey.ListGroups, era))
        assert answer.error_code == 0
        return {group.group_id: (group.protocol_type, group.group_state) for group in answer.groups}

    def fetched(self, wire: Wire, era: int, group_id: str, target: Target) -> int:
        version = version_of(ApiKey.OffsetFetch, era)
        answer = wire.ask(samples.offset_fetch(version, {group_id: [(target, [0])]}), version)
        (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
        (partition,) = topic.partitions
        assert partition.error_code == 0
        return int(partition.committed_offset)

    def deleted(self, wire: Wire, era: int, group_id: str) -> int:
        request = DeleteGroupsRequest(groups_names=[group_id])
        (result,) = wire.ask(request, version_of(ApiKey.DeleteGroups, era)).results
        assert result.group_id == group_id
        return int(result.error_code)

    @pytest.mark.parametrize("version", range(10))
    def test_from_version_4_on_a_member_is_given_its_id_first(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        member = Member(wires[0], topic, era=version)
        answer = member.try_join()
        if version < 4:
            assert (answer.error_code, answer.leader) == (0, answer.member_id)
            return
        assert answer.error_code == errors.MemberIdRequired.code
        assert answer.member_id.startswith("wire-")
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        assert answer.protocol_name == ("" if version < 7 else None)
        assert member.try_join().error_code == 0

    @pytest.mark.parametrize("version", range(5, 10))
    def test_a_static_leader_that_comes_back_computes_no_assignment(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        before, after = (Member(wire, topic, era=version, instance_id="only") for wire in wires[:2])
        before.settle()
        answer = after.join()
        assert answer.generation_id == before.generation
        assert answer.member_id.startswith("only-")
        assert answer.member_id != before.member_id
        if version >= 9:
            assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
            assert [member.member_id for member in answer.members] == [answer.member_id]
        else:
            assert (answer.leader, answer.members) == (before.member_id, [])
        assert after.sync().assignment == ASSIGNMENT
        assert (after.heartbeat(), before.heartbeat()) == (0, errors.FencedInstanceId.code)

    @pytest.mark.parametrize("version", [4, 5])
    def test_groups_are_selected_by_their_state(
        self, wires: tuple[Wire, Wire, Wire], topic: str, version: int
    ) -> None:
        wire = wires[0]
        Member(wire, f"{topic}-stable").settle()
        Member(wire, f"{topic}-completing").join()
        target = samples.create_topic(wire, topic)
        wire.ask(samples.commit(f"{topic}-empty", (target, {0: 1})), 9)

        def found(*states: str) -> set[str]:
            request = ListGroupsRequest(states_filter=list(states), types_filter=[])
            names = {group.group_id for group in wire.ask(request, version).groups}
            return {name.removeprefix(f"{topic}-") for name in names if name.startswith(topic)}

        assert found() == {"stable", "completing", "empty"}
        assert found("Stable") == {"stable"}
        assert found("STABLE", " empty ") == {"stable", "empty"}
        assert found("completingrebalance", "Dead") == {"completing"}
        assert found("Nonsense") == found("") == set()

    def test_groups_are_selected_by_their_type(
        self, wires: tuple[Wire, Wire, Wire], topic: str
    ) -> None:
        wire = wires[0]
        Member(wire, topic).settle()

        def found(*types: str) -> bool:
            request = ListGroupsRequest(states_filter=[], types_filter=list(types))
            return topic in {group.group_id for group in wire.ask(request, 5).groups}

        assert found()
        assert found("classic")
        assert found("Consumer", "CLASSIC")
        assert not found("consumer")
        assert not found("share", "nonsense", "")
