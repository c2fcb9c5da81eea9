"""Making topics, deleting them, and giving them more partitions.

CreateTopics (19), versions 2-7
    v4 partitions and replication factor may be -1 (KIP-464); v5 flexible, configs in the answer
    (KIP-525); v6 may be throttled (KIP-599, never is); v7 topic id in the answer.
DeleteTopics (20), versions 1-6
    v4 flexible; v5 error message; v6 by topic id as well.
CreatePartitions (37), versions 0-3
    v2 flexible; v3 may be throttled (KIP-599, never is).

Each topic of a request succeeds or fails by itself, as in Kafka. Rows have no replicas of their
own here, ClickHouse replicates them, so a replication factor is 1 and an assignment names one
broker, which need not become the leader: slots decide that. The answer waits for the catalog and
not for `timeout_ms`: what was made is told.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from broker import topic_names
from broker.api.config_entries import topic_entries
from broker.api.refusals import REFUSALS, as_kafka_error
from protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage import topic_configs

if TYPE_CHECKING:
    from broker.api.context import RequestContext
    from broker.log.topic import Topic

PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit of what one request may make."""

_NO_ID = uuid.UUID(int=0)

_Named = tuple[str | None, uuid.UUID | None]
"""A topic to delete: by name or by id."""


async def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    asked = Counter(item.name for item in request.topics)
    too_many = _too_many_partitions(ctx, request)
    results = []
    for item in {item.name: item for item in request.topics}.values():
        try:
            if asked[item.name] > 1:
                raise InvalidRequest(f"The topic {item.name!r} is in the request more than once.")
            if too_many is not None:
                raise too_many
            results.append(await _create(ctx, item, validate_only=request.validate_only))
        except REFUSALS as refusal:
            error = as_kafka_error(refusal)
            results.append(
                CreateTopicsResponse.CreatableTopicResult(
                    name=item.name,
                    topic_id=_NO_ID,
                    error_code=error.code,
                    error_message=error.message,
                    configs=[],
                )
            )
    return CreateTopicsResponse(throttle_time_ms=0, topics=results)


def _too_many_partitions(
    ctx: RequestContext, request: CreateTopicsRequest
) -> PolicyViolation | None:
    total = 0
    for item in request.topics:
        if item.assignments:
            total += len(item.assignments)
        elif item.num_partitions == -1:
            total += ctx.broker.settings.num_partitions
        else:
            total += max(0, item.num_partitions)
    if total <= PARTITIONS_PER_REQUEST:
        return None
    return PolicyViolation(
        f"The request asks for {total} partitions; one request may make "
        f"{PARTITIONS_PER_REQUEST} at most."
    )


async def _create(
    ctx: RequestContext, item: CreateTopicsRequest.CreatableTopic, *, validate_only: bool
) -> CreateTopicsResponse.CreatableTopicResult:
    _check_new_name(ctx, item.name)
    unset = [config.name for config in item.configs if config.value is None]
    if unset:
        raise InvalidConfig(f"A config cannot be set to null: {', '.join(unset)}.")
    configs = {config.name: config.value for config in item.configs}
    topic_configs.check(configs)
    partitions = _partitions_asked(ctx, item)
    topic_id = _NO_ID
    if not validate_only:
        topic = await ctx.broker.topics.create(item.name, partitions, configs)
        topic_id = topic.topic_id
    return CreateTopicsResponse.CreatableTopicResult(
        name=item.name,
        topic_id=topic_id,
        error_code=0,
        error_message=None,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=entry.sensitive,
            )
            for entry in topic_entries(configs, ctx.broker.settings)
        ],
    )


async def create_topic(
    ctx: RequestContext, name: str, partitions: int, configs: Mapping[str, str]
) -> Topic:
    """A topic made without being asked for by CreateTopics; the same names are refused."""
    _check_new_name(ctx, name)
    return await ctx.broker.topics.create(name, partitions, configs)


def _check_new_name(ctx: RequestContext, name: str) -> None:
    if name == "__cluster_metadata":
        raise InvalidRequest("Kafka keeps the name __cluster_metadata to itself.")
    topic_names.check(name)
    if ctx.broker.topics.get(name) is not None:
        raise TopicAlreadyExists(f"The topic {name!r} exists already.")
    key = topic_names.collision_key(name)
    if key is None:
        return
    for other in ctx.broker.topics.all():
        if topic_names.collision_key(other.name) == key:
            raise InvalidTopic(
                f"The topic name {name!r} collides with {other.name!r}: "
                "metrics write '.' and '_' alike."
            )


def _partitions_asked(ctx: RequestContext, item: CreateTopicsRequest.CreatableTopic) -> int:
    if item.assignments:
        if item.replication_factor != -1 or item.num_partitions != -1:
            raise InvalidRequest(
                "With an assignment of partitions to brokers, num_partitions and "
                "replication_factor must be -1."
            )
        indexes = [assignment.partition_index for assignment in item.assignments]
        if len(set(indexes)) < len(indexes):
            raise InvalidReplicaAssignment("The assignment has a partition more than once.")
        for assignment in item.assignments:
            _check_replicas(ctx, assignment.broker_ids)
        if sorted(indexes) != list(range(len(indexes))):
            raise InvalidReplicaAssignment(
                "The assignment's partitions must be numbered from 0 without gaps."
            )
        return len(indexes)
    if item.replication_factor not in (-1, 1):
        raise InvalidReplicationFactor(
            "A replication factor must be positive, or -1 for the default."
            if item.replication_factor < 1
            else f"Replication factor {item.replication_factor} asks for more brokers than the "
            "one there is: ask for 1, or -1 for the default. ClickHouse replicates the rows."
        )
    if item.num_partitions == -1:
        return int(ctx.broker.settings.num_partitions)
    if item.num_partitions < 1:
        raise InvalidPartitions("A topic has at least one partition; -1 stands for the default.")
    return int(item.num_partitions)


def _check_replicas(ctx: RequestContext, broker_ids: Iterable[int]) -> None:
    replicas = list(broker_ids)
    if not replicas:
        raise InvalidReplicaAssignment("The assignment has a partition without a broker.")
    known = {node.node_id for node in ctx.broker.leadership.brokers()}
    for broker_id in replicas:
        if broker_id not in known:
            raise InvalidReplicaAssignment(f"The assignment names broker {broker_id}: no such.")
    if len(replicas) > 1:
        raise InvalidReplicaAssignment("The assignment names several brokers for one partition.")


async def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if ctx.header.api_version < 6:
        times = Counter[_Named]((name, None) for name in request.topic_names)
    else:
        times = Counter[_Named]((item.name, _given(item.topic_id)) for item in request.topics)
    results = []
    for (name, topic_id), count in times.items():
        answer_name, answer_id = name, topic_id or _NO_ID
        code, message = 0, None
        try:
            if count > 1:
                raise InvalidRequest("The topic is in the request more than once.")
            topic = _topic_to_delete(ctx, name, topic_id)
            if (topic.name, None) in times and (None, topic.topic_id) in times:
                raise InvalidRequest("The topic is in the request by name and by id.")
            answer_name, answer_id = topic.name, topic.topic_id
            await ctx.broker.topics.delete(topic)
        except REFUSALS as refusal:
            error = as_kafka_error(refusal)
            code, message = error.code, error.message
        results.append(
            DeleteTopicsResponse.DeletableTopicResult(
                name=answer_name, topic_id=answer_id, error_code=code, error_message=message
            )
        )
    return DeleteTopicsResponse(throttle_time_ms=0, responses=results)


def _given(topic_id: uuid.UUID | None) -> uuid.UUID | None:
    return None if topic_id == _NO_ID else topic_id


def _topic_to_delete(ctx: RequestContext, name: str | None, topic_id: uuid.UUID | None) -> Topic:
    if name is not None and topic_id is not None:
        raise InvalidRequest("A topic is named by its name or by its id, not by both.")
    if topic_id is not None:
        topic = ctx.broker.topics.by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"There is no topic with the id {topic_id}.")
        return topic
    if name is None:
        raise InvalidRequest("A topic to delete has neither a name nor an id.")
    topic = ctx.broker.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
    return topic


async def create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    asked = Counter(item.name for item in request.topics)
    results = []
    room = PARTITIONS_PER_REQUEST
    for item in {item.name: item for item in request.topics}.values():
        code, message = 0, None
        try:
            if asked[item.name] > 1:
                raise InvalidRequest(f"The topic {item.name!r} is in the request more than once.")
            topic = _topic_to_grow(ctx, item)
            room -= item.count - topic.partitions
            if room < 0:
                raise PolicyViolation(
                    f"One request may make {PARTITIONS_PER_REQUEST} partitions at most."
                )
            if not request.validate_only:
                await ctx.broker.topics.add_partitions(topic, item.count)
        except REFUSALS as refusal:
            error = as_kafka_error(refusal)
            code, message = error.code, error.message
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=item.name, error_code=code, error_message=message
            )
        )
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _topic_to_grow(
    ctx: RequestContext, item: CreatePartitionsRequest.CreatePartitionsTopic
) -> Topic:
    topic = ctx.broker.topics.get(item.name)
    if topic is None:
        raise UnknownTopicOrPartition(f"There is no topic {item.name!r}.")
    added = item.count - topic.partitions
    if added <= 0:
        raise InvalidPartitions(
            f"The topic {item.name!r} has {topic.partitions} partitions; {item.count} are not more."
        )
    if item.assignments is not None:
        if len(item.assignments) != added:
            raise InvalidReplicaAssignment(
                f"{added} partitions are to be added; {len(item.assignments)} are assigned."
            )
        for assignment in item.assignments:
            _check_replicas(ctx, assignment.broker_ids)
    return topic
