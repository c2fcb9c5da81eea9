"""Offsets that groups commit.

OffsetCommit (8), versions 2-10
    v2 how long to keep the offsets, until v4; v3 throttle time; v6 leader epoch; v7 static members
    (KIP-345); v8 flexible; v9 a group that is not there is GROUP_ID_NOT_FOUND; v10 topics by id
    instead of by name (KIP-848).
    A partition that cannot be committed does not stop the others. What the group refuses, it
    refuses for all of them.

OffsetFetch (9), versions 1-10
    v2 null means all topics, an error code for the whole answer; v3 throttle time; v5 leader
    epoch; v6 flexible; v7 require-stable (KIP-447); v8 several groups (KIP-709); v9 member id and
    epoch, which mean nothing to groups of the type `classic`; v10 topics by id (KIP-848).
    Nothing committed is offset -1 and no error, whether or not the group and the topic are there.
    What is asked for twice is answered once. Until transactions come, every offset is stable.

OffsetDelete (47), version 0

An empty group id keeps offsets as any other does, as in Kafka; only OffsetDelete refuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from broker.api.groups import client_of
from coordinator.messages import (
    CommittedOffset,
    Committer,
    OffsetCommit,
    TopicPartition,
)
from protocol.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    OffsetMetadataTooLarge,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from broker.api.context import RequestContext
    from broker.log.topic import Topic

_BY_ID = 10  # the version from which OffsetCommit and OffsetFetch name topics by id
_SEVERAL_GROUPS = 8
_KEEP_BY_DEFAULT = -1
_EXPIRE_MAX_MS = 4_102_444_800_000
"""The year 2100: within what ClickHouse's DateTime64 holds, and late enough for "never"."""
_PARTITION_BYTES = 40  # of a fetched partition, beside its metadata
_NO_ID = UUID(int=0)


# --- OffsetCommit ---


@dataclass(slots=True)
class _Asked:
    """One partition of a request, and what becomes of it."""

    partition: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topic: Topic | None
    error: KafkaError | None


async def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    await _look_for(ctx, request.topics)
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
) -> _Asked:
    try:
        if ctx.header.api_version >= _BY_ID:
            topic = _by_id(ctx, asked.topic_id)
            _check_partition(topic, partition.partition_index)
        else:
            topic = _find(ctx, asked.name, partition.partition_index)
    except KafkaError as error:
        return _Asked(partition, None, error)
    return _Asked(partition, topic, None)


async def _commit(ctx: RequestContext, request: OffsetCommitRequest, found: list[_Asked]) -> None:
    """Hands on what can be committed; leaves in `found` what becomes of each."""
    if not found:
        return
    expire_time_ms = _expire_time_ms(ctx, request)
    commits: dict[TopicPartition, OffsetCommit] = {}  # of a partition that comes twice, the last
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
                client=client_of(ctx),
            ),
            list(commits.values()),
            group_must_exist_error=(
                GroupIdNotFound if ctx.header.api_version >= 9 else IllegalGeneration
            ),
        )
    except KafkaError as error:
        for one in found:
            one.error = error


def _offset_commit(
    topic: Topic,
    asked: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition,
    expire_time_ms: int | None,
) -> OffsetCommit:
    """Any offset and leader epoch is taken, as by Kafka: what they mean is the group's affair."""
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
    if ctx.header.api_version > 4 or request.retention_time_ms == _KEEP_BY_DEFAULT:
        return None
    now_ms = time.time_ns() // 1_000_000
    expire_ms: int = now_ms + request.retention_time_ms
    return max(0, min(expire_ms, _EXPIRE_MAX_MS))


# --- OffsetFetch ---


async def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if ctx.header.api_version < _SEVERAL_GROUPS:
        topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
        await _look_for(ctx, request.topics or ())
        try:
            fetched = _fetched(ctx, request.group_id, request.topics)
        except KafkaError as error:
            return _refused_before_several_groups(request, error)
        return OffsetFetchResponse(
            throttle_time_ms=0,
            topics=fetched.answer(topic_class, topic_class.OffsetFetchResponsePartition),
            error_code=0,
        )
    by_id = ctx.header.api_version >= _BY_ID
    room = ctx.broker.in_flight.response_room
    wholly: set[str] = set()
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = []
    for asked in request.groups:
        if asked.topics is None:
            if asked.group_id in wholly:
                continue
            wholly.add(asked.group_id)
        await _look_for(ctx, asked.topics or ())
        try:
            fetched = _fetched(ctx, asked.group_id, asked.topics)
        except KafkaError as error:
            groups.append(_refused(asked.group_id, error.code))
            continue
        room -= fetched.size
        if room >= 0 or not groups:
            groups.append(_group_answer(asked.group_id, fetched, by_id=by_id))
        else:  # past the size that an answer may have: the client asks for this group again
            groups.append(_refused(asked.group_id, CoordinatorLoadInProgress.code))
        await asyncio.sleep(0)  # others go on while many groups are asked for
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


def _group_answer(
    group_id: str, fetched: _Fetched, *, by_id: bool
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    topic_class = group.OffsetFetchResponseTopics
    return group(
        group_id=group_id,
        topics=fetched.answer(topic_class, topic_class.OffsetFetchResponsePartitions, by_id=by_id),
        error_code=0,
    )


def _refused(group_id: str, error_code: int) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    return OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group_id, topics=[], error_code=error_code
    )


def _refused_before_several_groups(
    request: OffsetFetchRequest, error: KafkaError
) -> OffsetFetchResponse:
    """Version 1 has no error code of its own for the whole: each partition carries it."""
    topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
    return OffsetFetchResponse(
        throttle_time_ms=0,
        topics=[
            topic_class(
                name=topic.name,
                partitions=[
                    topic_class.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=-1,
                        committed_leader_epoch=-1,
                        metadata="",
                        error_code=error.code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
        error_code=error.code,
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """A topic in a request and its answer: named or by id, as the version has it."""

    name: str
    topic_id: UUID
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What a group has committed for the partitions asked for."""

    topics: Mapping[_Named, Mapping[int, CommittedOffset | None]]

    @property
    def size(self) -> int:
        """About the bytes that the answer takes."""
        return sum(
            _PARTITION_BYTES + (len(committed.metadata) if committed is not None else 0)
            for partitions in self.topics.values()
            for committed in partitions.values()
        )

    def answer(self, topic_class: Any, partition_class: Any, *, by_id: bool = False) -> list[Any]:
        """As objects of the classes that a version of the response has."""
        return [
            topic_class(
                **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
                partitions=[
                    partition_class(
                        partition_index=index,
                        committed_offset=-1 if committed is None else committed.offset,
                        committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
                        metadata="" if committed is None else committed.metadata,
                        error_code=topic.error_code,
                    )
                    for index, committed in partitions.items()
                ],
            )
            for topic, partitions in self.topics.items()
        ]


def _fetched(ctx: RequestContext, group_id: str, asked: Sequence[Any] | None) -> _Fetched:
    offsets = ctx.broker.groups.coordinator_of(group_id).offsets.get(group_id)
    found: defaultdict[_Named, dict[int, CommittedOffset | None]] = defaultdict(dict)
    by_id = ctx.header.api_version >= _BY_ID
    if asked is None:
        for (name, index), committed in offsets.items():
            topic = ctx.broker.topics.get(name)
            if topic is not None and topic.topic_id == committed.topic_id:
                found[_Named(name, topic.topic_id)][index] = committed
        return _Fetched(found)
    for item in asked:
        if by_id:
            topic = ctx.broker.topics.by_id(item.topic_id)
            named = _Named("", item.topic_id, UnknownTopicId.code if topic is None else 0)
        else:
            topic = ctx.broker.topics.get(item.name)
            named = _Named(item.name, _NO_ID)
        for index in item.partition_indexes:
            found[named][index] = _committed(offsets, topic, index)
    return _Fetched(found)


def _committed(
    offsets: Mapping[TopicPartition, CommittedOffset], topic: Topic | None, index: int
) -> CommittedOffset | None:
    """None also for what was committed to another topic of that name, deleted meanwhile."""
    if topic is None:
        return None
    committed = offsets.get((topic.name, index))
    return committed if committed is not None and committed.topic_id == topic.topic_id else None


# --- OffsetDelete ---


async def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            outcomes[topic.name, partition.partition_index] = _absence(
                ctx, topic.name, partition.partition_index
            )
    there = [partition for partition, error in outcomes.items() if error is None]
    # Also for none: what is wrong with the group comes before all else.
    coordinator = ctx.broker.groups.coordinator_of(request.group_id)
    errors = await coordinator.delete_offsets(request.group_id, there)
    outcomes.update(zip(there, errors, strict=True))
    answer = OffsetDeleteResponse.OffsetDeleteResponseTopic
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (name, index), error in outcomes.items():
        by_topic[name].append(
            answer.OffsetDeleteResponsePartition(
                partition_index=index, error_code=0 if error is None else error.code
            )
        )
    return OffsetDeleteResponse(
        throttle_time_ms=0,
        error_code=0,
        topics=[answer(name=name, partitions=answers) for name, answers in by_topic.items()],
    )


def _absence(ctx: RequestContext, name: str, index: int) -> KafkaError | None:
    try:
        _find(ctx, name, index)
    except UnknownTopicOrPartition as error:
        return error
    return None


# --- topics ---


async def _look_for(ctx: RequestContext, topics: Sequence[Any]) -> None:
    """A topic that another broker has just made: clients take it ill if it is not known."""
    catalog = ctx.broker.topics
    by_id = ctx.header.api_version >= _BY_ID
    if any(
        (catalog.by_id(topic.topic_id) if by_id else catalog.get(topic.name)) is None
        for topic in topics
    ):
        await catalog.look_again()


def _find(ctx: RequestContext, name: str, index: int) -> Topic:
    topic = ctx.broker.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    _check_partition(topic, index)
    return topic


def _by_id(ctx: RequestContext, topic_id: UUID) -> Topic:
    topic = ctx.broker.topics.by_id(topic_id)
    if topic is None:
        raise UnknownTopicId(f"there is no topic with the id {topic_id}")
    return topic


def _check_partition(topic: Topic, index: int) -> None:
    if not 0 <= index < topic.partitions:
        raise UnknownTopicOrPartition(f"{topic.name} has no partition {index}")
