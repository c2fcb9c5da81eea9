"""Builders of the requests that tests send, and how a test creates a topic.

Each builder has parameters for what tests vary, and fills in the rest. `Wire.ask` sends the
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import (
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from tests.support.record_batches import Record, batch_of
from tests.support.wire import Wire

TIME_MS = 1_700_000_000_000
"""The timestamp of batches made by `tests.support.record_batches`, unless a test sets another."""
NOWHERE = "there-is-no-such-topic"
NO_GROUP = "there-is-no-such-group"
NOBODY = "nobody"
SUBSCRIPTION = b"\0\1\0\0\0\1\0\6events\xff\xff\xff\xff\0\0\0\0"
"""A member's subscription to the topic "events", in version 1 of the consumer protocol."""
ASSIGNMENT = b"\0\1\0\0\0\1\0\6events\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
"""An assignment of partition 0 of the topic "events"."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that a request names."""

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
    last_fetched_epoch: int = -1,
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
                        last_fetched_epoch=last_fetched_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="rack",
    )


def init_producer(transactional_id: str, timeout_ms: int = 600_000) -> InitProducerIdRequest:
    """A new instance of a transactional producer."""
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )


def end_transaction(
    transactional_id: str, producer_id: int, epoch: int, *, commit: bool
) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=commit,
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
    """`members`: (member id, instance id). Versions before 3 send only the first."""
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
    """`topics`: each topic with an offset per partition."""
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


def transactional_commit(
    transactional_id: str,
    producer: tuple[int, int],
    group_id: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str | None = "",
) -> TxnOffsetCommitRequest:
    """`producer`: its id and epoch. `offsets`: by partition."""
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    producer_id, epoch = producer
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            topic_class(
                name=topic,
                partitions=[
                    topic_class.TxnOffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        committed_metadata=metadata,
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )


def offset_fetch(
    version: int, groups: Mapping[str, Sequence[tuple[Target, Sequence[int]]] | None]
) -> OffsetFetchRequest:
    """For each group the partitions of topics, or None for all. Before version 8: one group."""
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


def delete_records(
    target: Target, offset: int, partition: int = 0, *more: tuple[int, int]
) -> DeleteRecordsRequest:
    """`more`: other (partition, offset) pairs of the same topic."""
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


def end_offset(records: bytes) -> int:
    """The offset after the last one."""
    end = 0
    while records:
        size = 12 + int.from_bytes(records[8:12], "big")
        end = int.from_bytes(records[:8], "big") + int.from_bytes(records[23:27], "big") + 1
        records = records[size:]
    return end
