"""CreatePartitions (37), versions 0 to 3: adds partitions to topics.

    v2 flexible; v3 may be throttled (KIP-599); this broker never throttles

Each topic of a request succeeds or fails by itself. The answer waits for the catalog and not for
`timeout_ms`. An assignment names one broker for each new partition, as in CreateTopics.

Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
INVALID_REQUEST (named twice), POLICY_VIOLATION (more than 10,000 new partitions in all),
UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

from collections import Counter

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from broker.api.context import Api, RequestContext
from broker.api.new_topics import check_replicas
from broker.api.refusals import REFUSALS, as_kafka_error
from broker.api.topic_lookup import find_topic
from broker.log.topic import Topic
from broker.topics import MAX_NEW_PARTITIONS
from protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    PolicyViolation,
)


async def create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    asked = Counter(item.name for item in request.topics)
    results = []
    room = MAX_NEW_PARTITIONS
    for item in {item.name: item for item in request.topics}.values():
        code, message = 0, None
        try:
            if asked[item.name] > 1:
                raise InvalidRequest(f"The topic {item.name!r} is in the request more than once.")
            topic = _topic_to_grow(ctx, item)
            room -= item.count - topic.partitions
            if room < 0:
                raise PolicyViolation(
                    f"One request may create {MAX_NEW_PARTITIONS} partitions at most."
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
    topic = find_topic(ctx, item.name)
    added = item.count - topic.partitions
    if added <= 0:
        raise InvalidPartitions(
            f"The topic {item.name!r} has {topic.partitions} partitions already; "
            f"{item.count} is not more."
        )
    if item.assignments is not None:
        if len(item.assignments) != added:
            raise InvalidReplicaAssignment(
                f"The request adds {added} partitions and assigns {len(item.assignments)}."
            )
        for assignment in item.assignments:
            check_replicas(ctx, assignment.broker_ids)
    return topic


API = Api(
    CreatePartitionsRequest, CreatePartitionsResponse, versions=(0, 3), handler=create_partitions
)
