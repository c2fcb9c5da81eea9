"""OffsetFetch (9), versions 1 to 10: the committed offsets of groups.

    v2 null means all topics; an error code for the whole answer; v3 throttle time; v5 leader epoch
    v6 flexible; v7 require-stable (KIP-447); v8 several groups (KIP-709)
    v9 member id and epoch, which groups of the type `classic` do not use
    v10 topics by id (KIP-848)

A partition without a committed offset has offset -1 and no error, whether or not the group and the
topic exist. A partition that is requested twice is answered once. An empty group id is a group
like any other, as in Kafka.

Errors of a group: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS (also if the answer is full: the
client repeats the request for this group). Errors of a partition: UNKNOWN_TOPIC_ID (version 10),
UNSTABLE_OFFSET_COMMIT (a transaction that is open may change it, and the client wants it stable).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.group_offsets import BY_ID, look_for_topics
from brokerhouse.broker.api.topic_lookup import NO_ID, readable_topic
from brokerhouse.broker.log.topic import Topic
from brokerhouse.coordinator.messages import CommittedOffset, TopicPartition
from brokerhouse.protocol.errors import (
    CoordinatorLoadInProgress,
    KafkaError,
    UnknownTopicId,
    UnstableOffsetCommit,
)

_STABLE_SINCE = 7
_SEVERAL_GROUPS = 8
_PARTITION_BYTES = 40  # of a fetched partition, without its metadata


async def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if ctx.version < _SEVERAL_GROUPS:
        topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
        await look_for_topics(ctx, request.topics or ())
        try:
            fetched = _fetched(ctx, request.group_id, request.topics, _wants_stable(ctx, request))
        except KafkaError as error:
            return _refused_before_several_groups(request, error)
        return OffsetFetchResponse(
            throttle_time_ms=0,
            topics=fetched.answer(topic_class, topic_class.OffsetFetchResponsePartition),
            error_code=0,
        )
    by_id = ctx.version >= BY_ID
    room = ctx.broker.response_memory.room
    answered_in_full: set[str] = set()
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = []
    for asked in request.groups:
        if asked.topics is None:
            if asked.group_id in answered_in_full:
                continue
            answered_in_full.add(asked.group_id)
        await look_for_topics(ctx, asked.topics or ())
        try:
            fetched = _fetched(ctx, asked.group_id, asked.topics, _wants_stable(ctx, request))
        except KafkaError as error:
            groups.append(_refused(asked.group_id, error.code))
            continue
        room -= fetched.size
        if room >= 0 or not groups:
            groups.append(_group_answer(asked.group_id, fetched, by_id=by_id))
        else:  # the answer is full: the client repeats the request for this group
            groups.append(_refused(asked.group_id, CoordinatorLoadInProgress.code))
        await asyncio.sleep(0)  # let other connections continue while this one fetches many groups
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


def _group_answer(
    group_id: str, fetched: _FetchedOffsets, *, by_id: bool
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
    """Version 1 has no error code for the whole answer, so each partition carries it."""
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


_UNSTABLE = CommittedOffset(NO_ID, -1, -1, "", 0, None)
"""Stands for an offset that an open transaction may change."""


def _error_code(committed: CommittedOffset | None) -> int:
    return UnstableOffsetCommit.code if committed is _UNSTABLE else 0


@dataclass(frozen=True, slots=True)
class _NamedTopic:
    """A topic in a request and its answer: by name or by id, as the version says."""

    name: str
    topic_id: UUID
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class _FetchedOffsets:
    """What a group has committed for the requested partitions."""

    topics: Mapping[_NamedTopic, Mapping[int, CommittedOffset | None]]

    @property
    def size(self) -> int:
        """The approximate size of the answer, in bytes."""
        return sum(
            _PARTITION_BYTES + (len(committed.metadata) if committed is not None else 0)
            for partitions in self.topics.values()
            for committed in partitions.values()
        )

    def answer(self, topic_class: Any, partition_class: Any, *, by_id: bool = False) -> list[Any]:
        """As objects of the classes that this version of the response has."""
        return [
            topic_class(
                **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
                partitions=[
                    partition_class(
                        partition_index=index,
                        committed_offset=-1 if committed is None else committed.offset,
                        committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
                        metadata="" if committed is None else committed.metadata,
                        error_code=topic.error_code or _error_code(committed),
                    )
                    for index, committed in partitions.items()
                ],
            )
            for topic, partitions in self.topics.items()
        ]


def _wants_stable(ctx: RequestContext, request: OffsetFetchRequest) -> bool:
    """Whether the client waits for transactions that may change an offset (KIP-447)."""
    return bool(ctx.version >= _STABLE_SINCE and request.require_stable)


def _fetched(
    ctx: RequestContext, group_id: str, asked: Sequence[Any] | None, wants_stable: bool
) -> _FetchedOffsets:
    coordinator = ctx.broker.groups.coordinator_of(group_id)
    offsets = coordinator.offsets.get(group_id)
    unstable = coordinator.pending.unstable(group_id) if wants_stable else ()
    found: defaultdict[_NamedTopic, dict[int, CommittedOffset | None]] = defaultdict(dict)
    by_id = ctx.version >= BY_ID
    if asked is None:
        for (name, index), committed in offsets.items():
            topic = readable_topic(ctx, name)
            if topic is not None and topic.topic_id == committed.topic_id:
                found[_NamedTopic(name, topic.topic_id)][index] = committed
        for name, index in unstable:
            topic = readable_topic(ctx, name)
            if topic is not None:
                found[_NamedTopic(name, topic.topic_id)][index] = _UNSTABLE
        return _FetchedOffsets(found)
    for item in asked:
        if by_id:
            topic = readable_topic(ctx, item.topic_id)
            named = _NamedTopic("", item.topic_id, UnknownTopicId.code if topic is None else 0)
        else:
            topic = readable_topic(ctx, item.name)
            named = _NamedTopic(item.name, NO_ID)
        for index in item.partition_indexes:
            is_unstable = topic is not None and (topic.name, index) in unstable
            found[named][index] = _UNSTABLE if is_unstable else _committed(offsets, topic, index)
    return _FetchedOffsets(found)


def _committed(
    offsets: Mapping[TopicPartition, CommittedOffset], topic: Topic | None, index: int
) -> CommittedOffset | None:
    """None also if the offset was committed for a deleted topic of the same name."""
    if topic is None:
        return None
    committed = offsets.get((topic.name, index))
    return committed if committed is not None and committed.topic_id == topic.topic_id else None


API = Api(OffsetFetchRequest, OffsetFetchResponse, versions=(1, 10), handler=offset_fetch)
