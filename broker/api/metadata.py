"""What a client asks first: which APIs there are, which brokers, which topics and who leads them.

ApiVersions (18), versions 0-4
    A version that is not known is answered in version 0 with UNSUPPORTED_VERSION and the table,
    so that the client can ask again (KIP-511).
    v1 throttle time; v3 flexible, client software name and version; v4 features from version 0 on.
    No features are listed: nothing here is finalized by a quorum, and a client that does not
    see `transaction.version` uses the first transaction protocol.

Metadata (3), versions 0-13
    v1 null means all topics, rack, controller, internal flag; v2 cluster id; v3 throttle time;
    v4 allow_auto_topic_creation; v5 offline replicas; v7 leader epoch; v8 authorized operations;
    v9 flexible; v10 topic ids in answers; v11 cluster operations go to DescribeCluster;
    v12 asking by topic id; v13 error code for the whole answer.
    A topic that is made on being asked for is in the same answer, with its leader.

DescribeTopicPartitions (75), version 0
    Pages through partitions (KIP-966); at most PARTITIONS_PER_PAGE in an answer.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kafka.protocol.admin import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

from broker import topic_names
from broker.api.context import RequestContext
from broker.api.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from broker.api.refusals import REFUSALS, as_kafka_error
from broker.api.topics import PARTITIONS_PER_REQUEST, create_topic
from broker.leadership import NO_NODE, Leader
from broker.log.topic import Topic
from broker.node import Broker
from protocol.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from protocol.versions import APIS

PARTITIONS_PER_PAGE = 2000
"""Kafka's max.request.partition.size.limit."""

_NO_ID = uuid.UUID(int=0)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


async def api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    named = _SOFTWARE.fullmatch(request.client_software_name or "")
    versioned = _SOFTWARE.fullmatch(request.client_software_version or "")
    if ctx.header.api_version >= 3 and not (named and versioned):
        return _api_versions(InvalidRequest.code, listed=False)
    return _api_versions(0, listed=True)


def unsupported_api_versions() -> ApiVersionsResponse:
    """The answer, to be encoded in version 0, to an ApiVersions request of an unknown version."""
    return _api_versions(UnsupportedVersion.code, listed=True)


def _api_versions(error_code: int, *, listed: bool) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=int(api.key), min_version=api.advertised_min, max_version=api.max_version
            )
            for api in (APIS.values() if listed else ())
        ],
        throttle_time_ms=0,
    )


async def metadata(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    version = ctx.header.api_version
    with_operations = version >= 8 and request.include_topic_authorized_operations
    operations = TOPIC_OPERATIONS if with_operations else NOT_ASKED
    wants_cluster = 8 <= version <= 10 and request.include_cluster_authorized_operations
    leadership = ctx.broker.leadership
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in leadership.brokers()
        ],
        cluster_id=ctx.broker.cluster_id,
        controller_id=leadership.controller_id,
        topics=await _asked_topics(ctx, request, operations),
        authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NOT_ASKED,
        error_code=0,
    )


async def _asked_topics(
    ctx: RequestContext, request: MetadataRequest, operations: set[int]
) -> list[MetadataResponse.MetadataResponseTopic]:
    catalog = ctx.broker.topics
    version = ctx.header.api_version
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        return [_found(ctx.broker, topic, operations) for topic in catalog.all()]
    if version < 12 and any(item.name is None or _given(item.topic_id) for item in asked):
        # Versions 10 and 11 have the field and no meaning for it.
        return [
            _missing(item.name or "", InvalidRequest.code, NOT_ASKED, item.topic_id or _NO_ID)
            for item in asked
        ]
    if any(
        catalog.get(item.name) is None
        if item.name is not None
        else catalog.by_id(item.topic_id) is None
        for item in asked
    ):
        await catalog.look_again()
    # Kafka looks at ids alone as soon as there is one.
    ids = dict.fromkeys(item.topic_id for item in asked if _given(item.topic_id))
    if ids:
        by_id = {topic_id: catalog.by_id(topic_id) for topic_id in ids}
        return [
            _missing(None, UnknownTopicId.code, NOT_ASKED, topic_id)
            if topic is None
            else _found(ctx.broker, topic, operations)
            for topic_id, topic in by_id.items()
        ]
    may_create = ctx.broker.settings.auto_create_topics and (
        version < 4 or request.allow_auto_topic_creation
    )
    room = PARTITIONS_PER_REQUEST if may_create else 0
    answers = []
    for name in dict.fromkeys(item.name for item in asked if item.name is not None):
        try:
            topic = catalog.get(name)
            if topic is None:
                # Past the limit a topic is unknown still: the client asks for it again.
                room -= ctx.broker.settings.num_partitions
                topic = await _make(ctx, name) if room >= 0 else _find(ctx, name)
        except REFUSALS as refusal:
            answers.append(_missing(name, as_kafka_error(refusal).code, operations))
        else:
            answers.append(_found(ctx.broker, topic, operations))
    return answers


def _given(topic_id: uuid.UUID | None) -> bool:
    return topic_id is not None and topic_id != _NO_ID


def _find(ctx: RequestContext, name: str) -> Topic:
    topic = ctx.broker.topics.get(name)
    if topic is None:
        topic_names.check(name)
        raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
    return topic


async def _make(ctx: RequestContext, name: str) -> Topic:
    try:
        return await create_topic(ctx, name, ctx.broker.settings.num_partitions, {})
    except TopicAlreadyExists:
        # Another client asked for it meanwhile.
        return _find(ctx, name)


def _found(
    broker: Broker, topic: Topic, operations: set[int]
) -> MetadataResponse.MetadataResponseTopic:
    partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=[
            partition(
                error_code=led.error_code,
                partition_index=index,
                leader_id=led.leader.node_id,
                leader_epoch=led.leader.epoch,
                replica_nodes=led.nodes,
                isr_nodes=led.nodes,
                offline_replicas=[],
            )
            for index, led in _led(broker, topic, range(topic.partitions))
        ],
        authorized_operations=operations,
    )


@dataclass(frozen=True, slots=True)
class _Led:
    """What is told of the leader of a partition. Rows are replicated below: it is the replica."""

    leader: Leader

    @property
    def error_code(self) -> int:
        return LeaderNotAvailable.code if self.leader.node_id == NO_NODE else 0

    @property
    def nodes(self) -> list[int]:
        return [] if self.leader.node_id == NO_NODE else [self.leader.node_id]


def _led(broker: Broker, topic: Topic, indexes: Iterable[int]) -> Iterator[tuple[int, _Led]]:
    for index in indexes:
        yield index, _Led(broker.leadership.leader(topic.topic_id, index))


def _missing(
    name: str | None, error_code: int, operations: set[int], topic_id: uuid.UUID = _NO_ID
) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and topic_names.is_internal(name),
        partitions=[],
        authorized_operations=operations,
    )


async def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    catalog = ctx.broker.topics
    cursor = request.cursor
    asked = {item.name for item in request.topics} or {topic.name for topic in catalog.all()}
    first_name, first_partition = "", 0
    if cursor is not None:
        first_name, first_partition = cursor.topic_name, cursor.partition_index
        if first_partition < 0 or (request.topics and first_name not in asked):
            # There is no error code for the whole answer.
            return DescribeTopicPartitionsResponse(
                throttle_time_ms=0,
                topics=[_undescribed(item.name, InvalidRequest.code) for item in request.topics],
                next_cursor=None,
            )
    room = max(1, min(PARTITIONS_PER_PAGE, request.response_partition_limit))
    answers = []
    next_cursor = None
    for name in sorted(name for name in asked if name >= first_name):
        if room == 0:
            next_cursor = _cursor(name, 0)
            break
        topic = catalog.get(name)
        if topic is None:
            # A topic that went away between two pages is not missing where all were asked for.
            if request.topics:
                valid = topic_names.is_valid(name)
                code = UnknownTopicOrPartition.code if valid else InvalidTopic.code
                answers.append(_undescribed(name, code))
            continue
        start = first_partition if name == first_name else 0
        stop = min(topic.partitions, start + room)
        answers.append(_described(ctx.broker, topic, start, stop))
        if stop < topic.partitions:
            next_cursor = _cursor(name, stop)
            break
        room -= max(0, stop - start)
    return DescribeTopicPartitionsResponse(
        throttle_time_ms=0, topics=answers, next_cursor=next_cursor
    )


def _cursor(name: str, partition: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


def _described(
    broker: Broker, topic: Topic, start: int, stop: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return row(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=[
            row.DescribeTopicPartitionsResponsePartition(
                error_code=led.error_code,
                partition_index=index,
                leader_id=led.leader.node_id,
                leader_epoch=led.leader.epoch,
                replica_nodes=led.nodes,
                isr_nodes=led.nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
            for index, led in _led(broker, topic, range(start, stop))
        ],
        topic_authorized_operations=_bits(TOPIC_OPERATIONS),
    )


def _undescribed(
    name: str, error_code: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=_NO_ID,
        is_internal=topic_names.is_internal(name),
        partitions=[],
        topic_authorized_operations=_bits(TOPIC_OPERATIONS),
    )


def _bits(operations: set[int]) -> int:
    return sum(1 << operation for operation in operations)
