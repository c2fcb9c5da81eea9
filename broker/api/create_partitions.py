"""CreatePartitions (37), versions 0 to 3: adds partitions to topics.

    v2 flexible; v3 may be throttled (KIP-599); this broker never throttles

Each topic of a request succeeds or fails by itself; all of them are one stored change. If it takes
longer than `timeout_ms` the answer is REQUEST_TIMED_OUT, and the change goes on. An assignment
names one broker for each new partition, as in CreateTopics.

Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
INVALID_REQUEST (named twice), POLICY_VIOLATION (more than 10,000 new partitions in all),
REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.new_topics import check_replicas
from brokerhouse.broker.api.refusals import REFUSALS, Refusal, as_kafka_error, in_time
from brokerhouse.broker.api.topic_lookup import find_topic
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.catalog import MAX_NEW_PARTITIONS, Outcome
from brokerhouse.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
)


async def create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    asked = Counter(item.name for item in request.topics)
    outcomes: dict[str, Topic | Refusal] = {}
    wanted: list[tuple[Topic, int]] = []
    room = MAX_NEW_PARTITIONS
    for item in {item.name: item for item in request.topics}.values():
        try:
            if asked[item.name] > 1:
                raise InvalidRequest(f"The topic {item.name!r} is in the request more than once.")
            topic = _topic_to_grow(ctx, item)
            room -= item.count - topic.partitions
            if room < 0:
                raise PolicyViolation(
                    f"One request may create {MAX_NEW_PARTITIONS} partitions at most."
                )
            outcomes[item.name] = topic
            wanted.append((topic, item.count))
        except KafkaError as error:
            outcomes[item.name] = error
    if wanted and not request.validate_only:
        try:
            grown: Mapping[UUID, Outcome] = await in_time(
                request.timeout_ms, ctx.broker.topics.add_partitions_to_all(wanted)
            )
        except REFUSALS as error:
            grown = dict.fromkeys((topic.topic_id for topic, _ in wanted), error)
        outcomes |= {topic.name: grown[topic.topic_id] for topic, _ in wanted}
    return CreatePartitionsResponse(
        throttle_time_ms=0, results=[_result(name, outcome) for name, outcome in outcomes.items()]
    )


def _result(
    name: str, outcome: Topic | Refusal
) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    error = None if isinstance(outcome, Topic) else as_kafka_error(outcome)
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name,
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
    )


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
