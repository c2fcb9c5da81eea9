"""OffsetCommit (8), versions 2 to 10: stores how far a group has read partitions.

    v2 how long to keep the offsets, until v4; v3 throttle time; v6 leader epoch
    v7 static members (KIP-345); v8 flexible
    v9 a group that does not exist is GROUP_ID_NOT_FOUND; before, it is ILLEGAL_GENERATION
    v10 topics by id instead of by name (KIP-848)

Who may commit, in which state of the group: `coordinator.commit_rules`.

A partition that cannot be committed does not stop the others. An error of the group is the error of
every partition. An empty group id is a group like any other, as in Kafka.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE, and
those of the group: GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
REBALANCE_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.group_offsets import BY_ID, GROUP_DECIDES, look_for_topics
from brokerhouse.broker.api.topic_lookup import find_readable_topic, has_partition
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.messages import Committer, OffsetCommit
from brokerhouse.protocol.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from brokerhouse.protocol.response_bodies import AnsweredTopic, offset_commit_body

_KEEP_BY_DEFAULT = -1
_EXPIRE_MAX_MS = 4_102_444_800_000
"""The year 2100: ClickHouse's DateTime64 can hold it, and it is late enough for "never"."""
_GROUP_NOT_FOUND_SINCE = 9


async def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> bytes:
    await look_for_topics(ctx, request.topics)
    commits: list[OffsetCommit] = []
    expire_time_ms = _expire_time_ms(ctx, request)
    answers = [
        AnsweredTopic(topic.name, topic.topic_id, _collect(ctx, topic, expire_time_ms, commits))
        for topic in request.topics
    ]
    if any(code in GROUP_DECIDES for topic in answers for _, code in topic.partitions):
        try:
            await _commit(ctx, request, commits)
        except KafkaError as error:
            known = _as_known(error, ctx.version)
            answers = [_refused(topic, known) for topic in answers]
    return offset_commit_body(ctx.version, answers)


def _collect(
    ctx: RequestContext,
    asked: OffsetCommitRequest.OffsetCommitRequestTopic,
    expire_time_ms: int | None,
    commits: list[OffsetCommit],
) -> list[tuple[int, int]]:
    """Add what can be committed of a topic to `commits`. Index and error code of each partition.

    Any offset and leader epoch is stored, as by Kafka: only the group knows what they mean.
    """
    try:
        topic = find_readable_topic(ctx, asked.topic_id if ctx.version >= BY_ID else asked.name)
    except KafkaError as error:
        return [(one.partition_index, error.code) for one in asked.partitions]
    name, topic_id = topic.name, topic.topic_id
    metadata_max = ctx.broker.settings.offset_metadata_max_bytes
    answers = []
    for one in asked.partitions:
        index, metadata = one.partition_index, one.committed_metadata or ""
        if not has_partition(topic, index):
            code = UnknownTopicOrPartition.code
        elif len(metadata) > metadata_max:
            # Characters, as Kafka counts them, though the setting is called so.
            code = OffsetMetadataTooLarge.code
        else:
            code = 0
            commits.append(
                OffsetCommit(
                    name,
                    topic_id,
                    index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    metadata,
                    expire_time_ms,
                )
            )
        answers.append((index, code))
    return answers


def _refused(topic: AnsweredTopic, error: KafkaError) -> AnsweredTopic:
    """The error of the group takes the place of each code that it decides about."""
    return topic._replace(
        partitions=[
            (index, error.code if code in GROUP_DECIDES else code)
            for index, code in topic.partitions
        ]
    )


async def _commit(
    ctx: RequestContext, request: OffsetCommitRequest, commits: list[OffsetCommit]
) -> None:
    """Raises the error of the group."""
    await ctx.broker.groups.coordinator_of(request.group_id).commit(
        request.group_id,
        Committer(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            client=ctx.client,
        ),
        commits,
    )


def _as_known(error: KafkaError, version: int) -> KafkaError:
    """The error as this version of the request knows it."""
    if isinstance(error, GroupIdNotFound) and version < _GROUP_NOT_FOUND_SINCE:
        return IllegalGeneration(error.message)
    return error


def _expire_time_ms(ctx: RequestContext, request: OffsetCommitRequest) -> int | None:
    if ctx.version > 4 or request.retention_time_ms == _KEEP_BY_DEFAULT:
        return None
    expire_ms: int = wall_ms() + request.retention_time_ms
    return max(0, min(expire_ms, _EXPIRE_MAX_MS))


API = Api(OffsetCommitRequest, OffsetCommitResponse, versions=(2, 10), handler=offset_commit)
