"""DescribeTopicPartitions (75), version 0: the partitions of topics, page by page (KIP-966).

An answer has at most `PARTITIONS_PER_PAGE` partitions, and a cursor if there are more.

Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (a cursor
that does not fit the request; the answer has no error code of its own). Errors of a partition:
LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.described_partitions import described_partitions, described_topic
from brokerhouse.broker.api.operations import TOPIC_OPERATIONS
from brokerhouse.broker.api.topic_lookup import NO_ID, readable_topic, readable_topics
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics import topic_names
from brokerhouse.protocol.errors import InvalidRequest, InvalidTopic, UnknownTopicOrPartition

PARTITIONS_PER_PAGE = 2000
"""Kafka's max.request.partition.size.limit."""


async def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    asked = {item.name for item in request.topics} or {topic.name for topic in readable_topics(ctx)}
    first_name, first_partition = "", 0
    if cursor is not None:
        first_name, first_partition = cursor.topic_name, cursor.partition_index
        if first_partition < 0 or (request.topics and first_name not in asked):
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
        topic = readable_topic(ctx, name)
        if topic is None:
            # If all topics are requested, a topic deleted between two pages is left out.
            if request.topics:
                valid = topic_names.is_valid(name)
                code = UnknownTopicOrPartition.code if valid else InvalidTopic.code
                answers.append(_undescribed(name, code))
            continue
        start = first_partition if name == first_name else 0
        stop = min(topic.partitions, start + room)
        answers.append(_described(ctx, topic, start, stop))
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
    ctx: RequestContext, topic: Topic, start: int, stop: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    leaders = ctx.leaders(topic, ctx.reached())
    partitions = described_partitions(
        ((index, leaders[index]) for index in range(start, stop)),
        row.DescribeTopicPartitionsResponsePartition,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
    return described_topic(
        topic, row, partitions, topic_authorized_operations=_bits(TOPIC_OPERATIONS)
    )


def _undescribed(
    name: str, error_code: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=NO_ID,
        is_internal=topic_names.is_internal(name),
        partitions=[],
        topic_authorized_operations=_bits(TOPIC_OPERATIONS),
    )


def _bits(operations: set[int]) -> int:
    return sum(1 << operation for operation in operations)


API = Api(
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    versions=(0, 0),
    handler=describe_topic_partitions,
)
