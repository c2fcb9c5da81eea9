"""DescribeConfigs (32), versions 1 to 4: the configs of topics and of this broker.

    v1 synonyms and sources; v3 type and documentation; v4 flexible

Each resource of a request succeeds or fails by itself.

Errors of a resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another
broker, or a resource type without configs).
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from broker import topic_names
from broker.api.config_entries import ConfigEntry, broker_entries, topic_entries
from broker.api.config_resources import ResourceType, check_broker_name
from broker.api.context import Api, RequestContext
from broker.api.topic_lookup import find_topic
from protocol.errors import InvalidRequest, KafkaError


async def describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        code, message, entries = 0, None, []
        try:
            entries = _entries(ctx, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            code, message = error.code, error.message
        keys = set(resource.configuration_keys or ()) or {entry.name for entry in entries}
        results.append(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _described(entry, request.include_synonyms, request.include_documentation)
                    for entry in entries
                    if entry.name in keys
                ],
            )
        )
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _entries(ctx: RequestContext, resource_type: int, name: str) -> list[ConfigEntry]:
    match resource_type:
        case ResourceType.TOPIC:
            topic_names.check(name)
            return list(topic_entries(find_topic(ctx, name).configs, ctx.broker.settings))
        case ResourceType.BROKER if not name:
            # The cluster's dynamic defaults. There are none: settings are read at the start.
            return []
        case ResourceType.BROKER:
            check_broker_name(ctx, name)
            return broker_entries(ctx.broker)
    raise InvalidRequest(f"This broker has no configs of resource type {resource_type}.")


def _described(
    entry: ConfigEntry, with_synonyms: bool, with_documentation: bool
) -> DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult:
    row = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    return row(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
        synonyms=[
            row.DescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=int(synonym.source)
            )
            for synonym in (entry.synonyms if with_synonyms else ())
        ],
        config_type=int(entry.type),
        documentation=entry.documentation if with_documentation else None,
    )


API = Api(
    DescribeConfigsRequest, DescribeConfigsResponse, versions=(1, 4), handler=describe_configs
)
