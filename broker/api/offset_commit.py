"""OffsetCommit (8), versions 2 to 10: stores how far a group has read partitions.

    v2 how long to keep the offsets, until v4; v3 throttle time; v6 leader epoch
    v7 static members (KIP-345); v8 flexible
    v9 a group that does not exist is GROUP_ID_NOT_FOUND, before ILLEGAL_GENERATION
    v10 topics by id instead of by name (KIP-848)

A partition that cannot be committed does not stop the others. An error of the group is the error of
every partition. An empty group id is a group like any other, as in Kafka.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE, and
those of the group: GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
REBALANCE_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from broker.api.context import Api, RequestContext
from broker.api.group_offsets import BY_ID, look_for_topics
from broker.api.topic_lookup import check_partition, find_topic
from broker.log.topic import Topic
from common.clock import wall_ms
from coordinator.messages import Committer, OffsetCommit, TopicPartition
from protocol.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    OffsetMetadataTooLarge,
)

_KEEP_BY_DEFAULT = -1
_EXPIRE_MAX_MS = 4_102_444_800_000
"""The year 2100: ClickHouse's DateTime64 can hold it, and it is late enough for "never"."""


@dataclass(slots=True)
class _AskedCommit:
    """One partition of a request, and its error if it cannot be committed."""

    partition: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topic: Topic | None
    error: KafkaError | None


async def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    await look_for_topics(ctx, request.topics)
    asked = [
        [_located(ctx, topic, partition) for partition in topic.partitions]
        for topic in request.topics
    ]
    await _commit(ctx, request, [one for topic in asked for one in topic if one.error is None])
    answer = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            answer(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    answer.OffsetCommitResponsePartition(
                        partition_index=one.partition.partition_index,
                        error_code=0 if one.error is None else one.error.code,
                    )
                    for one in partitions
                ],
            )
            for topic, partitions in zip(request.topics, asked, strict=True)
        ],
    )


def _located(
    ctx: RequestContext,
    asked: OffsetCommitRequest.OffsetCommitRequestTopic,
    partition: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition,
) -> _AskedCommit:
    try:
        topic = find_topic(ctx, asked.topic_id if ctx.version >= BY_ID else asked.name)
        check_partition(topic, partition.partition_index)
    except KafkaError as error:
        return _AskedCommit(partition, None, error)
    return _AskedCommit(partition, topic, None)


async def _commit(
    ctx: RequestContext, request: OffsetCommitRequest, found: list[_AskedCommit]
) -> None:
    """Commit what can be committed; sets the errors of the others in `found`."""
    if not found:
        return
    expire_time_ms = _expire_time_ms(ctx, request)
    commits: dict[TopicPartition, OffsetCommit] = {}  # the last one, if a partition comes twice
    for one in found:
        assert one.topic is not None
        commit = _offset_commit(one.topic, one.partition, expire_time_ms)
        # Characters, as Kafka counts them, though its setting is called offset.metadata.max.bytes.
        if len(commit.metadata) > ctx.broker.settings.offset_metadata_max_bytes:
            one.error = OffsetMetadataTooLarge("the metadata of an offset is too large")
        else:
            commits[commit.topic, commit.partition] = commit
    try:
        await ctx.broker.groups.coordinator_of(request.group_id).commit(
            request.group_id,
            Committer(
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                generation=request.generation_id_or_member_epoch,
                client=ctx.client,
            ),
            list(commits.values()),
            group_must_exist_error=GroupIdNotFound if ctx.version >= 9 else IllegalGeneration,
        )
    except KafkaError as error:
        for one in found:
            one.error = error


def _offset_commit(
    topic: Topic,
    asked: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition,
    expire_time_ms: int | None,
) -> OffsetCommit:
    """Any offset and leader epoch is stored, as by Kafka: only the group knows what they mean."""
    return OffsetCommit(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=asked.partition_index,
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        expire_time_ms=expire_time_ms,
    )


def _expire_time_ms(ctx: RequestContext, request: OffsetCommitRequest) -> int | None:
    if ctx.version > 4 or request.retention_time_ms == _KEEP_BY_DEFAULT:
        return None
    expire_ms: int = wall_ms() + request.retention_time_ms
    return max(0, min(expire_ms, _EXPIRE_MAX_MS))


API = Api(OffsetCommitRequest, OffsetCommitResponse, versions=(2, 10), handler=offset_commit)
