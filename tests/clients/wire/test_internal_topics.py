"""`__consumer_offsets` and `__transaction_state`: what each API answers, beside what Kafka answers.

Kafka's answers are those of Apache Kafka 4.3.1 once the topic exists there. Where this broker
answers something else, the row says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest

from tests.support import messages
from tests.support.messages import Target
from tests.support.one_partition import NO_ID
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition")

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
TOPIC = 2
UNKNOWN, INVALID, DENIED, EXISTS, NOT_NEEDED = 3, 17, 29, 36, 84
PARTITIONS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """`error` finds the error code in the answer of `request`."""

    api: str
    version: int
    request: Callable[[Target], ApiMessage]
    error: Callable[[Any], int]
    kafka: int
    offsets: int
    transactions: int = UNKNOWN
    why_not: str = ""


def metadata(target: Target) -> ApiMessage:
    topic = MetadataRequest.MetadataRequestTopic(name=target.name, topic_id=None)
    return MetadataRequest(topics=[topic], allow_auto_topic_creation=False)


def describe_partitions(target: Target) -> ApiMessage:
    topic = DescribeTopicPartitionsRequest.TopicRequest(name=target.name)
    return DescribeTopicPartitionsRequest(topics=[topic], response_partition_limit=10, cursor=None)


def delete_records(target: Target) -> ApiMessage:
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = topic.DeleteRecordsPartition(partition_index=0, offset=-1)
    return DeleteRecordsRequest(
        topics=[topic(name=target.name, partitions=[partition])], timeout_ms=1000
    )


def delete_topics(target: Target) -> ApiMessage:
    topic = DeleteTopicsRequest.DeleteTopicState(name=target.name, topic_id=None)
    return DeleteTopicsRequest(topics=[topic], timeout_ms=1000)


def create_topics(target: Target) -> ApiMessage:
    topic = CreateTopicsRequest.CreatableTopic(
        name=target.name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)


def create_partitions(target: Target) -> ApiMessage:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(
        name=target.name, count=PARTITIONS + 1, assignments=None
    )
    return CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)


def describe_configs(target: Target) -> ApiMessage:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=target.name, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


def alter_configs(target: Target) -> ApiMessage:
    resource = AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", value="1000")
    return AlterConfigsRequest(
        resources=[resource(resource_type=TOPIC, resource_name=target.name, configs=[config])],
        validate_only=False,
    )


def incremental_alter_configs(target: Target) -> ApiMessage:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    return IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=TOPIC, resource_name=target.name, configs=[config])],
        validate_only=False,
    )


def elect_leaders(target: Target) -> ApiMessage:
    topic = ElectLeadersRequest.TopicPartitions(topic=target.name, partitions=[0])
    return ElectLeadersRequest(election_type=0, topic_partitions=[topic], timeout_ms=1000)


def reassign(target: Target) -> ApiMessage:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=0, replicas=[1])
    return AlterPartitionReassignmentsRequest(
        timeout_ms=1000, topics=[topic(name=target.name, partitions=[partition])]
    )


def describe_producers(target: Target) -> ApiMessage:
    topic = DescribeProducersRequest.TopicRequest(name=target.name, partition_indexes=[0])
    return DescribeProducersRequest(topics=[topic])


def leader_epoch(target: Target) -> ApiMessage:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-2, topics=[topic(topic=target.name, partitions=[partition])]
    )


READ_ONLY = "It is made from the committed offsets of groups, so nothing can be set."
NO_DELETING = "Kafka deletes the committed offsets of all groups."
ONE_FOR_EACH_SLOT = "A group could no longer be found in its partition."

TABLE = (
    Row("Metadata", 12, metadata, lambda found: found.topics[0].error_code, 0, 0),
    Row(
        "DescribeTopicPartitions",
        0,
        describe_partitions,
        lambda found: found.topics[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "Produce",
        12,
        lambda target: messages.produce(target, messages.small_batch()),
        lambda found: found.responses[0].partition_responses[0].error_code,
        kafka=INVALID,
        offsets=INVALID,
    ),
    Row(
        "Fetch",
        12,
        lambda target: messages.fetch(target, 0),
        lambda found: found.responses[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "ListOffsets",
        7,
        lambda target: messages.list_offsets(target, -2),
        lambda found: found.topics[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "OffsetForLeaderEpoch",
        4,
        leader_epoch,
        lambda found: found.topics[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "OffsetCommit",
        9,
        lambda target: messages.commit("internal-topics", (target, {0: 1})),
        lambda found: found.topics[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "DeleteRecords",
        2,
        delete_records,
        lambda found: found.topics[0].partitions[0].error_code,
        kafka=INVALID,
        offsets=INVALID,
    ),
    Row(
        "DeleteTopics",
        6,
        delete_topics,
        lambda found: found.responses[0].error_code,
        kafka=0,
        offsets=INVALID,
        why_not=NO_DELETING,
    ),
    Row(
        "CreateTopics",
        7,
        create_topics,
        lambda found: found.topics[0].error_code,
        kafka=EXISTS,
        offsets=EXISTS,
        transactions=INVALID,
    ),
    Row(
        "CreatePartitions",
        3,
        create_partitions,
        lambda found: found.results[0].error_code,
        kafka=0,
        offsets=INVALID,
        why_not=ONE_FOR_EACH_SLOT,
    ),
    Row("DescribeConfigs", 4, describe_configs, lambda found: found.results[0].error_code, 0, 0),
    Row(
        "AlterConfigs",
        2,
        alter_configs,
        lambda found: found.responses[0].error_code,
        kafka=0,
        offsets=INVALID,
        why_not=READ_ONLY,
    ),
    Row(
        "IncrementalAlterConfigs",
        1,
        incremental_alter_configs,
        lambda found: found.responses[0].error_code,
        kafka=0,
        offsets=INVALID,
        why_not=READ_ONLY,
    ),
    Row(
        "ElectLeaders",
        2,
        elect_leaders,
        lambda found: found.replica_election_results[0].partition_result[0].error_code,
        kafka=NOT_NEEDED,
        offsets=NOT_NEEDED,
    ),
    Row(
        "AlterPartitionReassignments",
        0,
        reassign,
        lambda found: found.responses[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
    Row(
        "DescribeProducers",
        0,
        describe_producers,
        lambda found: found.topics[0].partitions[0].error_code,
        kafka=0,
        offsets=0,
    ),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.api))
@pytest.mark.parametrize("name", [OFFSETS, TRANSACTIONS])
def test_an_api_answers_about_an_internal_topic_as_the_table_says(
    wire: Wire, row: Row, name: str
) -> None:
    topic_id = wire.ask(metadata(Target(name, NO_ID)), 12).topics[0].topic_id
    answer = wire.ask(row.request(Target(name, topic_id or NO_ID)), row.version)
    assert row.error(answer) == (row.offsets if name == OFFSETS else row.transactions)
    assert (row.offsets == row.kafka) == (not row.why_not)


@pytest.mark.parametrize("name", [OFFSETS, TRANSACTIONS, "__share_group_state"])
def test_an_internal_topic_cannot_be_part_of_a_clients_transaction(
    wire: Wire, target: Target, name: str
) -> None:
    """As in Kafka: denied, and nothing else of the request is done."""
    producer = wire.ask(messages.init_producer(target.name), 4)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=target.name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[topic(name=one, partitions=[0]) for one in (name, target.name)],
    )
    found = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in wire.ask(request, 3).results_by_topic_v3_and_below
    }
    assert found == {name: DENIED, target.name: 55}


def test_every_list_of_all_topics_has_the_offsets_topic_as_internal(wire: Wire) -> None:
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    for version in range(1, 14):
        topics = {topic.name: topic for topic in wire.ask(everything, version).topics}
        assert topics[OFFSETS].is_internal
        assert len(topics[OFFSETS].partitions) == PARTITIONS
        assert TRANSACTIONS not in topics
    described = DescribeTopicPartitionsRequest(
        topics=[], response_partition_limit=2000, cursor=None
    )
    listed = {topic.name: topic.is_internal for topic in wire.ask(described, 0).topics}
    assert listed[OFFSETS]
    (directory,) = wire.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert OFFSETS in {topic.name for topic in directory.topics}


def test_the_offsets_topic_has_the_configs_that_kafka_gives_it(wire: Wire) -> None:
    (found,) = wire.ask(describe_configs(Target(OFFSETS, NO_ID)), 4).results
    own = {entry.name: entry.value for entry in found.configs if entry.config_source == 1}
    assert own == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
