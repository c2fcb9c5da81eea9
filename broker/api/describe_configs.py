"""DescribeConfigs (32), versions 1 to 4: the configs of topics, brokers, loggers, groups, metrics.

    v1 synonyms and sources; v3 type and documentation; v4 flexible

Values and their sources are composed in config_entries.py: stored configs, settings of the process
(broker/settings/config.py), and defaults; broker/settings/kafka_configs.py has the configs of Kafka
that have no effect here.

Each resource of a request succeeds or fails by itself. As in Kafka, a group or a subscription to
client metrics need not exist: its configs have their defaults then.

Errors of a resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another
broker, no name, or a resource type that does not exist), UNKNOWN_SERVER_ERROR (not readable).
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from brokerhouse.broker.api.config_entries import (
    ConfigEntry,
    Source,
    all_brokers_entries,
    broker_entries,
    logger_entries,
    resource_entries,
    topic_entries,
)
from brokerhouse.broker.api.config_resources import (
    ResourceType,
    check_broker_name,
    check_name,
    resource_type,
)
from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.refusals import REFUSALS, as_kafka_error
from brokerhouse.broker.api.topic_lookup import find_readable_topic
from brokerhouse.broker.settings.resource_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from brokerhouse.broker.topics import topic_names


async def describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        code, message, entries = 0, None, []
        try:
            entries = await _entries(ctx, resource.resource_type, resource.resource_name)
        except REFUSALS as refusal:
            error = as_kafka_error(refusal)
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


async def _entries(ctx: RequestContext, number: int, name: str) -> list[ConfigEntry]:
    kind, broker = resource_type(number), ctx.broker
    if kind is ResourceType.TOPIC:
        topic_names.check(name)
        return list(topic_entries(find_readable_topic(ctx, name).configs, broker))
    if kind is ResourceType.BROKER_LOGGER:
        check_broker_name(ctx, name)
        return list(logger_entries())
    await broker.load_stored_configs()
    if kind is ResourceType.BROKER:
        if not name:
            return list(all_brokers_entries(broker))
        check_broker_name(ctx, name)
        return broker_entries(broker)
    check_name(kind, name)
    is_group = kind is ResourceType.GROUP
    return list(
        resource_entries(
            GROUP_CONFIGS if is_group else CLIENT_METRICS_CONFIGS,
            broker.stored_configs.of(kind.name, name),
            Source.GROUP if is_group else Source.CLIENT_METRICS,
        )
    )


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
