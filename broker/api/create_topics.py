"""CreateTopics (19), versions 2 to 7: creates topics.

    v4 partitions and replication factor may be -1, for the default (KIP-464)
    v5 flexible; the answer has the topic's configs (KIP-525)
    v6 may be throttled (KIP-599); this broker never throttles
    v7 topic id in the answer

Each topic of a request succeeds or fails by itself, as in Kafka. ClickHouse replicates the rows, so
the only replication factor is 1, and an assignment names one broker per partition. That broker need
not become the leader: slots decide that. All topics of a request are one stored change. If it takes
longer than `timeout_ms` the answer is REQUEST_TIMED_OUT, and the change goes on.

Errors of a topic: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS,
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST (named
twice), POLICY_VIOLATION (more than 10,000 partitions in all), REQUEST_TIMED_OUT,
UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from brokerhouse.broker.api.config_entries import topic_entries
from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.new_topics import check_new_name, check_replicas
from brokerhouse.broker.api.refusals import REFUSALS, as_kafka_error, in_time
from brokerhouse.broker.api.topic_lookup import NO_ID
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.catalog import MAX_NEW_PARTITIONS, NewTopic, Outcome
from brokerhouse.common.tasks import in_turns
from brokerhouse.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
)
from brokerhouse.storage import topic_configs

_TOPICS_PER_TURN = 100

_ConfigRow: TypeAlias = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs


async def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    asked = Counter(item.name for item in request.topics)
    too_many = _too_many_partitions(ctx, request)
    outcomes: dict[str, NewTopic | Outcome] = {}
    for item in {item.name: item for item in request.topics}.values():
        try:
            if asked[item.name] > 1:
                raise InvalidRequest(f"The topic {item.name!r} is in the request more than once.")
            if too_many is not None:
                raise too_many
            outcomes[item.name] = _checked(ctx, item)
        except KafkaError as error:
            outcomes[item.name] = error
    if not request.validate_only:
        outcomes |= await _created(ctx, outcomes.values(), request.timeout_ms)
    rows = _ConfigRows(ctx)
    answered = in_turns(outcomes.items(), _TOPICS_PER_TURN)
    return CreateTopicsResponse(
        throttle_time_ms=0,
        topics=[_result(rows, name, outcome) async for name, outcome in answered],
    )


async def _created(
    ctx: RequestContext, outcomes: Iterable[NewTopic | Outcome], timeout_ms: int
) -> Mapping[str, Outcome]:
    new = [one for one in outcomes if isinstance(one, NewTopic)]
    if not new:
        return {}
    try:
        return await in_time(timeout_ms, ctx.broker.topics.create_all(new))
    except REFUSALS as error:
        return dict.fromkeys((one.name for one in new), error)


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
    if total <= MAX_NEW_PARTITIONS:
        return None
    return PolicyViolation(
        f"The request asks for {total} partitions; one request may create "
        f"{MAX_NEW_PARTITIONS} at most."
    )


def _checked(ctx: RequestContext, item: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    check_new_name(ctx, item.name)
    unset = [config.name for config in item.configs if config.value is None]
    if unset:
        raise InvalidConfig(f"A config cannot be set to null: {', '.join(unset)}.")
    configs = {config.name: config.value for config in item.configs}
    topic_configs.check(configs)
    return NewTopic(item.name, _partitions_asked(ctx, item), configs)


class _ConfigRows:
    """The configs of topics, as rows of the response: those of topics with equal configs once."""

    def __init__(self, ctx: RequestContext) -> None:
        self._broker = ctx.broker
        self._known: dict[frozenset[tuple[str, str]], list[_ConfigRow]] = {}

    def of(self, configs: Mapping[str, str]) -> list[_ConfigRow]:
        key = frozenset(configs.items())
        if key not in self._known:
            self._known[key] = [
                _ConfigRow(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=int(entry.source),
                    is_sensitive=entry.sensitive,
                )
                for entry in topic_entries(configs, self._broker)
            ]
        return self._known[key]


def _result(
    rows: _ConfigRows, name: str, outcome: NewTopic | Outcome
) -> CreateTopicsResponse.CreatableTopicResult:
    if isinstance(outcome, REFUSALS):
        error = as_kafka_error(outcome)
        return CreateTopicsResponse.CreatableTopicResult(
            name=name,
            topic_id=NO_ID,
            error_code=error.code,
            error_message=error.message,
            configs=[],
        )
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id if isinstance(outcome, Topic) else NO_ID,
        error_code=0,
        error_message=None,
        num_partitions=outcome.partitions,
        replication_factor=1,
        configs=rows.of(outcome.configs),
    )


def _partitions_asked(ctx: RequestContext, item: CreateTopicsRequest.CreatableTopic) -> int:
    if item.assignments:
        return _partitions_assigned(ctx, item)
    if item.replication_factor not in (-1, 1):
        raise InvalidReplicationFactor(
            "A replication factor must be positive, or -1 for the default."
            if item.replication_factor < 1
            else f"The replication factor {item.replication_factor} is not available: a partition "
            "has one broker, and ClickHouse replicates the rows. Use 1, or -1 for the default."
        )
    if item.num_partitions == -1:
        return int(ctx.broker.settings.num_partitions)
    if item.num_partitions < 1:
        raise InvalidPartitions("A topic has at least one partition; -1 means the default number.")
    return int(item.num_partitions)


def _partitions_assigned(ctx: RequestContext, item: CreateTopicsRequest.CreatableTopic) -> int:
    if item.replication_factor != -1 or item.num_partitions != -1:
        raise InvalidRequest(
            "With an assignment of partitions to brokers, num_partitions and "
            "replication_factor must be -1."
        )
    indexes = [assignment.partition_index for assignment in item.assignments]
    if len(set(indexes)) < len(indexes):
        raise InvalidReplicaAssignment("The assignment has a partition more than once.")
    for assignment in item.assignments:
        check_replicas(ctx, assignment.broker_ids)
    if sorted(indexes) != list(range(len(indexes))):
        raise InvalidReplicaAssignment(
            "The assignment's partitions must be numbered from 0 without gaps."
        )
    return len(indexes)


API = Api(CreateTopicsRequest, CreateTopicsResponse, versions=(2, 7), handler=create_topics)
