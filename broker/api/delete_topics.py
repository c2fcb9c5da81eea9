"""DeleteTopics (20), versions 1 to 6: deletes topics.

    v4 flexible; v5 error message; v6 topics by name or by id

Each topic of a request succeeds or fails by itself; all of them are one stored change. If it takes
longer than `timeout_ms` the answer is REQUEST_TIMED_OUT, and the change goes on.

Errors of a topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_REQUEST (named twice, or by
name and id at once), REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.refusals import REFUSALS, Refusal, as_kafka_error, in_time
from brokerhouse.broker.api.topic_lookup import NO_ID, find_topic
from brokerhouse.broker.log.topic import Topic
from brokerhouse.protocol.errors import InvalidRequest, KafkaError

_Named = tuple[str | None, UUID | None]
"""A topic to delete: by name or by id."""


async def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if ctx.version < 6:
        times = Counter[_Named]((name, None) for name in request.topic_names)
    else:
        times = Counter[_Named](
            (item.name, None if item.topic_id == NO_ID else item.topic_id)
            for item in request.topics
        )
    outcomes: dict[_Named, Topic | Refusal] = {}
    for (name, topic_id), count in times.items():
        try:
            if count > 1:
                raise InvalidRequest("The topic is in the request more than once.")
            topic = _topic_to_delete(ctx, name, topic_id)
            if (topic.name, None) in times and (None, topic.topic_id) in times:
                raise InvalidRequest("The topic is in the request by name and by id.")
            outcomes[name, topic_id] = topic
        except KafkaError as error:
            outcomes[name, topic_id] = error
    topics = [outcome for outcome in outcomes.values() if isinstance(outcome, Topic)]
    refused: Mapping[UUID, Refusal] = {}
    if topics:
        try:
            refused = await in_time(request.timeout_ms, ctx.broker.topics.delete_all(topics))
        except REFUSALS as error:
            refused = dict.fromkeys((topic.topic_id for topic in topics), error)
    return DeleteTopicsResponse(
        throttle_time_ms=0,
        responses=[_result(named, outcome, refused) for named, outcome in outcomes.items()],
    )


def _result(
    named: _Named, outcome: Topic | Refusal, refused: Mapping[UUID, Refusal]
) -> DeleteTopicsResponse.DeletableTopicResult:
    name, topic_id = named
    refusal: Refusal | None
    if isinstance(outcome, Topic):
        name, topic_id = outcome.name, outcome.topic_id
        refusal = refused.get(outcome.topic_id)
    else:
        refusal = outcome
    error = None if refusal is None else as_kafka_error(refusal)
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name,
        topic_id=topic_id or NO_ID,
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _topic_to_delete(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> Topic:
    if name is not None and topic_id is not None:
        raise InvalidRequest("Name the topic by its name or by its id, not by both.")
    if name is None and topic_id is None:
        raise InvalidRequest("The request has a topic with neither a name nor an id.")
    return find_topic(ctx, topic_id if name is None else name)


API = Api(DeleteTopicsRequest, DeleteTopicsResponse, versions=(1, 6), handler=delete_topics)
