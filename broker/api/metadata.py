"""Metadata (3), versions 0 to 13: the brokers, the topics, and the leader of each partition.

    v1 null means all topics; rack, controller, internal flag; v2 cluster id; v3 throttle time
    v4 allow_auto_topic_creation; v5 offline replicas; v7 leader epoch; v8 authorized operations
    v9 flexible; v10 topic ids in answers; v11 cluster operations are left to DescribeCluster
    v12 topics may be named by id; v13 error code for the whole answer

A topic that is created because the client asks for it is in the same answer, with its leader, if it
is created in time (broker/topics/auto_creation.py). Otherwise it is unknown, as in Kafka, and the
client asks again. `__consumer_offsets` is in every list of all topics, as an internal one. A broker
that is left alone names those that were alive lately, too (`SlotLeadership.contacts`).

Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION (also while it is being created, and if it cannot be),
UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (by id before version 12, or a reserved
name).
Errors of a partition: LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.described_partitions import described_partitions, described_topic
from brokerhouse.broker.api.new_topics import check_new_name
from brokerhouse.broker.api.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from brokerhouse.broker.api.topic_lookup import NO_ID, find_topic, readable_topic, readable_topics
from brokerhouse.broker.endpoints import Leader
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics import topic_names
from brokerhouse.broker.topics.catalog import MAX_NEW_PARTITIONS
from brokerhouse.broker.topics.encoded_topics import Kind
from brokerhouse.common.tasks import in_turns
from brokerhouse.protocol.errors import InvalidRequest, KafkaError, UnknownTopicId
from brokerhouse.protocol.response_bodies import encoded_topic, metadata_body
from brokerhouse.protocol.versions import ApiKey

_TOPICS_PER_TURN = 50
"""A topic that was not asked for lately takes 40 microseconds."""


async def metadata(ctx: RequestContext, request: MetadataRequest) -> bytes:
    with_operations = ctx.version >= 8 and request.include_topic_authorized_operations
    operations = TOPIC_OPERATIONS if with_operations else NOT_ASKED
    wants_cluster = 8 <= ctx.version <= 10 and request.include_cluster_authorized_operations
    leadership = ctx.broker.leadership
    topics = await _asked_topics(ctx, request, operations)
    without_topics = MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in ctx.seen(leadership.contacts())
        ],
        cluster_id=ctx.broker.cluster_id,
        controller_id=leadership.controller_id,
        topics=[],
        authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NOT_ASKED,
        error_code=0,
    )
    return metadata_body(without_topics, topics, ctx.version)


async def _asked_topics(
    ctx: RequestContext, request: MetadataRequest, operations: set[int]
) -> list[bytes]:
    catalog = ctx.broker.topics
    asked = request.topics
    if asked is None or (ctx.version == 0 and not asked):
        reached = ctx.reached()
        topics = in_turns(readable_topics(ctx), _TOPICS_PER_TURN)
        return [_found(ctx, topic, operations, reached) async for topic in topics]
    if ctx.version < 12 and any(item.name is None or _is_given(item.topic_id) for item in asked):
        # Versions 10 and 11 have the field topic_id, but do not allow requests by it.
        return [
            _missing(ctx, item.name or "", InvalidRequest.code, NOT_ASKED, item.topic_id or NO_ID)
            for item in asked
        ]
    if any(
        readable_topic(ctx, item.topic_id if item.name is None else item.name) is None
        for item in asked
    ):
        await catalog.look_again()
    # If any topic is requested by id, Kafka ignores those that are requested by name.
    ids = dict.fromkeys(item.topic_id for item in asked if _is_given(item.topic_id))
    if ids:
        reached = ctx.reached()
        by_id = {topic_id: readable_topic(ctx, topic_id) for topic_id in ids}
        return [
            _missing(ctx, None, UnknownTopicId.code, NOT_ASKED, topic_id)
            if topic is None
            else _found(ctx, topic, operations, reached)
            for topic_id, topic in by_id.items()
        ]
    names = dict.fromkeys(item.name for item in asked if item.name is not None)
    may_create = ctx.broker.settings.auto_create_topics and (
        ctx.version < 4 or request.allow_auto_topic_creation
    )
    return await _topics_by_name(ctx, names, operations, may_create=may_create)


async def _topics_by_name(
    ctx: RequestContext, names: Iterable[str], operations: set[int], *, may_create: bool
) -> list[bytes]:
    names = list(names)
    refused = await _create_missing(ctx, names) if may_create else {}
    reached = ctx.reached()
    answers = []
    for name in names:
        try:
            if name in refused:
                raise refused[name]
            answers.append(_found(ctx, _find(ctx, name), operations, reached))
        except KafkaError as error:
            answers.append(_missing(ctx, name, error.code, operations))
    return answers


async def _create_missing(ctx: RequestContext, names: Iterable[str]) -> dict[str, KafkaError]:
    """Create topics that do not exist; returns those that may not be created, and why.

    Past the limit topics stay unknown, and the client asks for them again.
    """
    room = MAX_NEW_PARTITIONS
    new, refused = [], dict[str, KafkaError]()
    for name in names:
        if readable_topic(ctx, name) is not None:
            continue
        try:
            check_new_name(ctx, name)
        except KafkaError as error:
            refused[name] = error
            continue
        room -= ctx.broker.settings.num_partitions
        if room >= 0:
            new.append(name)
    await ctx.broker.auto_creation.create(new)
    return refused


def _is_given(topic_id: UUID | None) -> bool:
    return topic_id is not None and topic_id != NO_ID


def _find(ctx: RequestContext, name: str) -> Topic:
    topic = readable_topic(ctx, name)
    if topic is None:
        topic_names.check(name)
        return find_topic(ctx, name)
    return topic


def _found(
    ctx: RequestContext, topic: Topic, operations: set[int], reached: Collection[int] | None
) -> bytes:
    leaders = ctx.leaders(topic, reached)
    kind = Kind(ctx.version, operations is not NOT_ASKED)
    return ctx.broker.encoded_topics.get(
        topic, leaders, kind, lambda: _encoded(topic, leaders, operations, ctx.version)
    )


def _encoded(topic: Topic, leaders: Sequence[Leader], operations: set[int], version: int) -> bytes:
    row = MetadataResponse.MetadataResponseTopic
    partitions = described_partitions(enumerate(leaders), row.MetadataResponsePartition)
    described = described_topic(topic, row, partitions, authorized_operations=operations)
    return encoded_topic(described, version)


def _missing(
    ctx: RequestContext,
    name: str | None,
    error_code: int,
    operations: set[int],
    topic_id: UUID = NO_ID,
) -> bytes:
    ctx.broker.requests.of(ApiKey.Metadata).errors[error_code] += 1
    missing = MetadataResponse.MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and topic_names.is_internal(name),
        partitions=[],
        authorized_operations=operations,
    )
    return encoded_topic(missing, ctx.version)


API = Api(MetadataRequest, MetadataResponse, versions=(0, 13), handler=metadata)
