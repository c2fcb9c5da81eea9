"""One sound request of every API, with something in every field that matters.

Tests cut them, spoil them, and send them in every version. They change nothing that lasts except
by Produce: topics are made, deleted and altered with `validate_only`, or under a name that is not
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from protocol.versions import APIS, ApiKey
from tests.faults.wire import Wire
from tests.unit.record_batches import Record, batch_of

TIME_MS = 1_700_000_000_000
"""Of batches made by `tests.unit.record_batches`, where nothing else is said."""
TOPIC_TYPE = 2
BROKER_TYPE = 4
NOWHERE = "there-is-no-such-topic"


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that requests are about."""

    name: str
    topic_id: UUID


def create_topic(
    wire: Wire, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> Target:
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[
                    topic.CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
        ],
        timeout_ms=10_000,
        validate_only=False,
    )
    (created,) = wire.ask(request, 7).topics
    assert created.error_code == 0, created.error_message
    return Target(name, created.topic_id)


def produce(
    target: Target,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            topic(
                name=target.name,
                topic_id=target.topic_id,
                partition_data=[topic.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


def fetch(
    target: Target,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    isolation_level: int = 0,
) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            topic(
                topic=target.name,
                topic_id=target.topic_id,
                partitions=[
                    topic.FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="rack",
    )


def list_offsets(target: Target, timestamp: int, partition: int = 0) -> ListOffsetsRequest:
    topic = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[
            topic(
                name=target.name,
                partitions=[
                    topic.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
                    )
                ],
            )
        ],
        timeout_ms=10_000,
    )


def _metadata(target: Target, version: int) -> ApiMessage:
    topic = MetadataRequest.MetadataRequestTopic
    asked = topic(topic_id=target.topic_id, name=None) if version >= 12 else topic(name=target.name)
    return MetadataRequest(
        topics=[asked],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def _create_topics(target: Target, version: int) -> ApiMessage:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[
            topic(
                name=NOWHERE,
                num_partitions=3,
                replication_factor=1,
                assignments=[],
                configs=[topic.CreatableTopicConfig(name="retention.ms", value="1000")],
            ),
            topic(
                name=NOWHERE + "-assigned",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
                configs=[],
            ),
        ],
        timeout_ms=10_000,
        validate_only=True,
    )


def _delete_topics(target: Target, version: int) -> ApiMessage:
    return DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequest.DeleteTopicState(name=NOWHERE, topic_id=None),
            DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=UUID(int=7)),
        ],
        topic_names=[NOWHERE],
        timeout_ms=10_000,
    )


def _create_partitions(target: Target, version: int) -> ApiMessage:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(
        topics=[
            topic(
                name=target.name,
                count=2,
                assignments=[topic.CreatePartitionsAssignment(broker_ids=[1])],
            )
        ],
        timeout_ms=10_000,
        validate_only=True,
    )


def _epochs(target: Target, version: int) -> ApiMessage:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topic(topic=target.name, partitions=[asked])]
    )


def _describe_configs(target: Target, version: int) -> ApiMessage:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(
                resource_type=TOPIC_TYPE,
                resource_name=target.name,
                configuration_keys=["retention.ms"],
            ),
            resource(resource_type=BROKER_TYPE, resource_name="1", configuration_keys=None),
        ],
        include_synonyms=True,
        include_documentation=True,
    )


def _alter_configs(target: Target, version: int) -> ApiMessage:
    resource = AlterConfigsRequest.AlterConfigsResource
    changed = [resource.AlterableConfig(name="retention.ms", value="12345")]
    return AlterConfigsRequest(
        resources=[resource(resource_type=TOPIC_TYPE, resource_name=target.name, configs=changed)],
        validate_only=True,
    )


def _incremental(target: Target, version: int) -> ApiMessage:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig
    changed = [
        config(name="cleanup.policy", config_operation=2, value="compact"),
        config(name="retention.ms", config_operation=1, value=None),
    ]
    return IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=TOPIC_TYPE, resource_name=target.name, configs=changed)],
        validate_only=True,
    )


def _log_dirs(target: Target, version: int) -> ApiMessage:
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(topics=[topic(topic=target.name, partitions=[0])])


def _topic_partitions(target: Target, version: int) -> ApiMessage:
    request = DescribeTopicPartitionsRequest
    return request(
        topics=[request.TopicRequest(name=target.name)],
        response_partition_limit=10,
        cursor=request.Cursor(topic_name=target.name, partition_index=0),
    )


def small_batch() -> bytes:
    return batch_of(
        Record(0, b"key", b"value", ((b"name", b"content"), (b"empty", None))), Record(5, None, b"")
    ).data


_SAMPLES: Mapping[ApiKey, Callable[[Target, int], ApiMessage]] = {
    ApiKey.Produce: lambda target, version: produce(target, small_batch()),
    ApiKey.Fetch: lambda target, version: fetch(target, 0, partition_max_bytes=10_000),
    ApiKey.ListOffsets: lambda target, version: list_offsets(target, -1),
    ApiKey.Metadata: _metadata,
    ApiKey.ApiVersions: lambda target, version: ApiVersionsRequest(
        client_software_name="wire", client_software_version="1.0"
    ),
    ApiKey.FindCoordinator: lambda target, version: FindCoordinatorRequest(
        key="group", key_type=0, coordinator_keys=["group", "other"]
    ),
    ApiKey.CreateTopics: _create_topics,
    ApiKey.DeleteTopics: _delete_topics,
    ApiKey.InitProducerId: lambda target, version: InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    ),
    ApiKey.OffsetForLeaderEpoch: _epochs,
    ApiKey.DescribeConfigs: _describe_configs,
    ApiKey.AlterConfigs: _alter_configs,
    ApiKey.DescribeLogDirs: _log_dirs,
    ApiKey.CreatePartitions: _create_partitions,
    ApiKey.IncrementalAlterConfigs: _incremental,
    ApiKey.DescribeCluster: lambda target, version: DescribeClusterRequest(
        include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=True
    ),
    ApiKey.ListConfigResources: lambda target, version: ListConfigResourcesRequest(
        resource_types=[TOPIC_TYPE, BROKER_TYPE]
    ),
    ApiKey.DescribeTopicPartitions: _topic_partitions,
}


def sample(key: ApiKey, version: int, target: Target) -> ApiMessage:
    """A request that is answered without an error."""
    return _SAMPLES[key](target, version)


def every_version() -> list[tuple[ApiKey, int]]:
    """All that is served."""
    return [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]
