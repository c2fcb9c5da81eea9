"""ElectLeaders (43), versions 0 to 2: elects leaders of partitions (KIP-460).

    v1 election types, an error code for the whole answer; v2 flexible

A partition has one replica, and the broker that leads it has it. So no election is needed, whatever
its type. If all partitions are asked for (null), the answer names topics without any partition: as
in Kafka, it leaves out those that need no election.

Errors of a partition: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE (it has no leader now),
UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST (also for the whole answer: an unknown election type).
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka.protocol.admin import ElectLeadersRequest, ElectLeadersResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import (
    check_partition,
    find_readable_topic,
    readable_topics,
)
from brokerhouse.broker.endpoints import NO_NODE
from brokerhouse.protocol.errors import (
    ElectionNotNeeded,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
)

_TYPES = frozenset({0, 1})  # preferred, unclean
_Result = ElectLeadersResponse.ReplicaElectionResult


async def elect_leaders(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    election_type = request.election_type if ctx.version >= 1 else 0
    wrong_type: KafkaError | None = None
    if election_type not in _TYPES:
        wrong_type = InvalidRequest(f"There is no election type {election_type}.")
    asked_for_all = request.topic_partitions is None
    asked: Iterable[tuple[str, Iterable[int]]]
    if asked_for_all:
        asked = [(topic.name, range(topic.partitions)) for topic in readable_topics(ctx)]
    else:
        asked = [(one.topic, one.partitions) for one in request.topic_partitions]
    results = []
    for topic, partitions in asked:
        errors = [(index, wrong_type or _outcome(ctx, topic, index)) for index in partitions]
        results.append(
            _Result(
                topic=topic,
                partition_result=[
                    _Result.PartitionResult(
                        partition_id=index, error_code=error.code, error_message=error.message
                    )
                    for index, error in errors
                    if not (asked_for_all and isinstance(error, ElectionNotNeeded))
                ],
            )
        )
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=0 if wrong_type is None else wrong_type.code,
        replica_election_results=results,
    )


def _outcome(ctx: RequestContext, name: str, index: int) -> KafkaError:
    try:
        topic = find_readable_topic(ctx, name)
        check_partition(topic, index)
    except KafkaError as error:
        return error
    if ctx.broker.leadership.leader(topic.topic_id, index).node_id == NO_NODE:
        return PreferredLeaderNotAvailable(
            f"{name}-{index} has no leader now; a broker takes it over by itself."
        )
    return ElectionNotNeeded(f"{name}-{index} has one replica, and it is the leader.")


API = Api(ElectLeadersRequest, ElectLeadersResponse, versions=(0, 2), handler=elect_leaders)
