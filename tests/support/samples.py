"""One sound request of every API, with something in every field that matters.

Tests cut them, spoil them, and send them in every version. They change nothing that lasts except
by Produce, OffsetCommit and JoinGroup: topics are made, deleted and altered with `validate_only`,
or under a name that is not there. Two groups are theirs: one with offsets and no members, one with
members that come and go within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from protocol.versions import APIS, ApiKey
from tests.support.record_batches import Record, batch_of
from tests.support.wire import Wire

TIME_MS = 1_700_000_000_000
"""Of batches made by `tests.support.record_batches`, where nothing else is said."""
TOPIC_TYPE = 2
BROKER_TYPE = 4
NOWHERE = "there-is-no-such-topic"
NO_GROUP = "there-is-no-such-group"
OFFSETS_GROUP = "samples-offsets"
MEMBERS_GROUP = "samples-members"
STATIC_MEMBER = "samples-static"
NOBODY = "nobody"
SUBSCRIPTION = b"\0\1\0\0\0\1\0\6events\xff\xff\xff\xff\0\0\0\0"
"""To the topic "events", in version 1 of the consumer protocol."""
ASSIGNMENT = b"\0\1\0\0\0\1\0\6events\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
"""Of its partition 0."""


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


def join(
    group_id: str,
    *,
    member_id: str = "",
    instance_id: str | None = None,
    protocol_type: str = "consumer",
    protocols: Sequence[tuple[str, bytes]] = (("range", SUBSCRIPTION),),
    session_timeout_ms: int = 30_000,
    rebalance_timeout_ms: int = 30_000,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in protocols
        ],
        reason="as a sample",
    )


def sync(
    group_id: str,
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] = MappingProxyType({}),
    *,
    instance_id: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=to, assignment=assignment)
            for to, assignment in assignments.items()
        ],
    )


def heartbeat(
    group_id: str, member_id: str, generation: int, instance_id: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
    )


def leave(group_id: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    """`members`: (member id, instance id); versions before 3 have the first alone."""
    return LeaveGroupRequest(
        group_id=group_id,
        member_id=members[0][0] if members else "",
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member_id, group_instance_id=instance_id, reason="as a sample"
            )
            for member_id, instance_id in members
        ],
    )


def commit(
    group_id: str,
    *topics: tuple[Target, Mapping[int, int]],
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    """`topics`: each with the offset of each partition."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=[
            topic(
                name=target.name,
                topic_id=target.topic_id,
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                    for partition, offset in offsets.items()
                ],
            )
            for target, offsets in topics
        ],
    )


def offset_fetch(
    version: int, groups: Mapping[str, Sequence[tuple[Target, Sequence[int]]] | None]
) -> OffsetFetchRequest:
    """Per group the partitions of topics, or None for all; before version 8 there is one group."""
    if version < 8:
        ((group_id, topics),) = groups.items()
        topic = OffsetFetchRequest.OffsetFetchRequestTopic
        asked = [topic(name=to.name, partition_indexes=list(which)) for to, which in topics or ()]
        return OffsetFetchRequest(
            group_id=group_id, topics=None if topics is None else asked, require_stable=True
        )
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        groups=[
            group(
                group_id=group_id,
                member_id=None,
                member_epoch=-1,
                topics=None
                if topics is None
                else [
                    group.OffsetFetchRequestTopics(
                        name=target.name, topic_id=target.topic_id, partition_indexes=list(indexes)
                    )
                    for target, indexes in topics
                ],
            )
            for group_id, topics in groups.items()
        ],
        require_stable=True,
    )


def offset_delete(group_id: str, *topics: tuple[str, Sequence[int]]) -> OffsetDeleteRequest:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    return OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                ],
            )
            for name, indexes in topics
        ],
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


def _offset_commit(target: Target, version: int) -> ApiMessage:
    return commit(OFFSETS_GROUP, (target, {0: 1}), metadata="a note", retention_ms=3_600_000)


def _offset_fetch(target: Target, version: int) -> ApiMessage:
    groups: dict[str, Sequence[tuple[Target, Sequence[int]]] | None] = {
        OFFSETS_GROUP: [(target, [0, 1])]
    }
    if version >= 8:
        groups[NO_GROUP] = None
    return offset_fetch(version, groups)


def _join(target: Target, version: int) -> ApiMessage:
    """Short of time: nobody in the group waits for those who do not come back.

    Version 0 has no rebalance time-out of its own, so there it is a member that is not known.
    """
    return join(
        MEMBERS_GROUP,
        member_id=NOBODY if version == 0 else "",
        instance_id=STATIC_MEMBER if version >= 5 else None,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=10,
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


def delete_records(
    target: Target, offset: int, partition: int = 0, *more: tuple[int, int]
) -> DeleteRecordsRequest:
    """`more`: further (partition, offset) of the topic."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=[
            topic(
                name=target.name,
                partitions=[
                    topic.DeleteRecordsPartition(partition_index=index, offset=to)
                    for index, to in ((partition, offset), *more)
                ],
            )
        ],
        timeout_ms=10_000,
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
    ApiKey.OffsetCommit: _offset_commit,
    ApiKey.OffsetFetch: _offset_fetch,
    ApiKey.JoinGroup: _join,
    ApiKey.SyncGroup: lambda target, version: sync(MEMBERS_GROUP, NOBODY, 1, {NOBODY: ASSIGNMENT}),
    ApiKey.Heartbeat: lambda target, version: heartbeat(MEMBERS_GROUP, NOBODY, 1),
    ApiKey.LeaveGroup: lambda target, version: leave(
        MEMBERS_GROUP, (NOBODY, None), ("", STATIC_MEMBER)
    ),
    ApiKey.ListGroups: lambda target, version: ListGroupsRequest(
        states_filter=["empty", "Stable"], types_filter=["Classic"]
    ),
    ApiKey.DescribeGroups: lambda target, version: DescribeGroupsRequest(
        groups=[OFFSETS_GROUP, NO_GROUP], include_authorized_operations=True
    ),
    ApiKey.DeleteGroups: lambda target, version: DeleteGroupsRequest(groups_names=[NO_GROUP]),
    ApiKey.OffsetDelete: lambda target, version: offset_delete(OFFSETS_GROUP, (target.name, [1])),
    ApiKey.FindCoordinator: lambda target, version: FindCoordinatorRequest(
        key="group", key_type=0, coordinator_keys=["group", "other"]
    ),
    ApiKey.CreateTopics: _create_topics,
    ApiKey.DeleteTopics: _delete_topics,
    ApiKey.DeleteRecords: lambda target, version: delete_records(target, 0),
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
    """A request that is answered without an error, except by groups to members that nobody is."""
    return _SAMPLES[key](target, version)


def every_version() -> list[tuple[ApiKey, int]]:
    """All that is served."""
    return [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]
