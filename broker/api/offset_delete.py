"""OffsetDelete (47), version 0: deletes committed offsets of a group.

An empty group id is refused, unlike in OffsetCommit and OffsetFetch, as in Kafka.

Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (the group has members and is not of consumers),
INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. Errors of a partition:
UNKNOWN_TOPIC_OR_PARTITION, GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kafka.protocol.consumer import OffsetDeleteRequest, OffsetDeleteResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import check_partition, find_readable_topic
from brokerhouse.coordinator.messages import TopicPartition
from brokerhouse.protocol.errors import KafkaError, UnknownTopicOrPartition


async def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            outcomes[topic.name, index] = _lookup_error(ctx, topic.name, index)
    existing = [partition for partition, error in outcomes.items() if error is None]
    # Called even without partitions: an error of the group comes before all others.
    coordinator = ctx.broker.groups.coordinator_of(request.group_id)
    errors = await coordinator.delete_offsets(request.group_id, existing)
    outcomes.update(zip(existing, errors, strict=True))
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


def _lookup_error(ctx: RequestContext, name: str, index: int) -> KafkaError | None:
    try:
        check_partition(find_readable_topic(ctx, name), index)
    except UnknownTopicOrPartition as error:
        return error
    return None


API = Api(OffsetDeleteRequest, OffsetDeleteResponse, versions=(0, 0), handler=offset_delete)
