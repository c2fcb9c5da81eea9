"""Reading and changing configs of topics; reading those of the broker.

DescribeConfigs (32), versions 1-4
    v1 synonyms and sources; v3 type and documentation; v4 flexible.
AlterConfigs (33), versions 0-2
    Replaces all overrides of a resource. v2 flexible.
IncrementalAlterConfigs (44), versions 0-1
    SET, DELETE, APPEND and SUBTRACT of single configs (KIP-339). v1 flexible.
ListConfigResources (74), versions 0-1
    v0 lists client metrics subscriptions, of which there are none; v1 any type (KIP-1142).

Each resource of a request succeeds or fails by itself. Topics can be altered; the broker's settings
are read once at its start, so altering them is refused with a sentence that says how it is done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from broker import topic_names
from broker.api.config_entries import ConfigEntry, broker_entries, topic_entries
from broker.api.refusals import REFUSALS, as_kafka_error
from broker.effective_configs import default_text
from protocol.errors import (
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from storage import topic_configs
from storage.topic_configs import TOPIC_CONFIGS, ConfigType

if TYPE_CHECKING:
    from broker.api.context import RequestContext
    from broker.config import Settings
    from broker.topics import TopicCatalog


class ResourceType(IntEnum):
    """What has configs, by its number in Kafka's protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(int(operation) for operation in Operation)


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
            topic = ctx.broker.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
            return list(topic_entries(topic.configs, ctx.broker.settings))
        case ResourceType.BROKER if not name:
            # The cluster's dynamic defaults: there are none, settings are read at the start.
            return []
        case ResourceType.BROKER:
            _check_broker_name(ctx, name)
            return broker_entries(ctx.broker)
    raise InvalidRequest(f"There are no configs of resource type {resource_type} here.")


def _check_broker_name(ctx: RequestContext, name: str) -> None:
    if name != str(ctx.broker.node_id):
        raise InvalidRequest(f"This is broker {ctx.broker.node_id}; the request names {name!r}.")


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


@dataclass(frozen=True, slots=True)
class _Change:
    """What a request asks of one resource: (config, operation, value) in its order."""

    resource_type: int
    resource_name: str
    steps: Sequence[tuple[str, int, str | None]]
    keeps_others: bool


async def alter_configs(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    changes = [
        _Change(
            resource.resource_type,
            resource.resource_name,
            [(config.name, Operation.SET, config.value) for config in resource.configs],
            keeps_others=False,
        )
        for resource in request.resources
    ]
    return AlterConfigsResponse(
        throttle_time_ms=0,
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error.code if error else 0,
                error_message=error.message if error else None,
                resource_type=change.resource_type,
                resource_name=change.resource_name,
            )
            for change, error in await _alter_all(ctx, changes, request.validate_only)
        ],
    )


async def incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    changes = [
        _Change(
            resource.resource_type,
            resource.resource_name,
            [(config.name, config.config_operation, config.value) for config in resource.configs],
            keeps_others=True,
        )
        for resource in request.resources
    ]
    return IncrementalAlterConfigsResponse(
        throttle_time_ms=0,
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error.code if error else 0,
                error_message=error.message if error else None,
                resource_type=change.resource_type,
                resource_name=change.resource_name,
            )
            for change, error in await _alter_all(ctx, changes, request.validate_only)
        ],
    )


async def _alter_all(
    ctx: RequestContext, changes: Sequence[_Change], validate_only: bool
) -> list[tuple[_Change, KafkaError | None]]:
    """Each change with what became of it, once per resource, in the order of the request."""
    times = Counter((change.resource_type, change.resource_name) for change in changes)
    results: list[tuple[_Change, KafkaError | None]] = []
    for change in changes:
        try:
            if times[change.resource_type, change.resource_name] > 1:
                raise InvalidRequest("The resource is in the request more than once.")
            await _alter(ctx, change, validate_only)
        except REFUSALS as refusal:
            results.append((change, as_kafka_error(refusal)))
        else:
            results.append((change, None))
    return results


async def _alter(ctx: RequestContext, change: _Change, validate_only: bool) -> None:
    _check_steps(change)
    match change.resource_type:
        case ResourceType.TOPIC:
            # What is to be changed is read and written back: one at a time, or one gets lost.
            async with _ALTERATIONS.setdefault(ctx.broker.topics, asyncio.Lock()):
                await _alter_topic(ctx, change, validate_only)
        case ResourceType.BROKER:
            if change.resource_name:
                _check_broker_name(ctx, change.resource_name)
            if change.steps:
                raise InvalidRequest(
                    "The broker's configs are read at its start: change its settings (flags, "
                    "BROKERHOUSE_* variables or the TOML file) and start it again."
                )
        case _:
            raise InvalidRequest(f"Configs of resource type {change.resource_type} cannot be set.")


_ALTERATIONS: WeakKeyDictionary[TopicCatalog, asyncio.Lock] = WeakKeyDictionary()


def _check_steps(change: _Change) -> None:
    repeated = [name for name, n in Counter(name for name, _, _ in change.steps).items() if n > 1]
    if repeated:
        raise InvalidRequest(f"The request has configs more than once: {', '.join(repeated)}.")
    for name, operation, value in change.steps:
        if operation not in _OPERATIONS:
            raise InvalidRequest(f"{operation} is not an operation on a config.")
        if value is None and operation != Operation.DELETE:
            raise InvalidRequest(f"The config {name} has no value.")


async def _alter_topic(ctx: RequestContext, change: _Change, validate_only: bool) -> None:
    if not change.resource_name:
        raise InvalidRequest("Configs for all topics cannot be set; name a topic.")
    topic_names.check(change.resource_name)
    topic = ctx.broker.topics.get(change.resource_name)
    before = dict(topic.configs) if topic is not None and change.keeps_others else {}
    after = dict(before)
    for name, operation, value in change.steps:
        _apply(after, name, operation, value, ctx.broker.settings)
    topic_configs.check(after)
    if topic is None:
        raise UnknownTopicOrPartition(f"There is no topic {change.resource_name!r}.")
    if not validate_only and after != dict(topic.configs):
        await ctx.broker.topics.set_configs(topic, after)


def _apply(
    configs: dict[str, str], name: str, operation: int, value: str | None, settings: Settings
) -> None:
    if value is None or operation == Operation.DELETE:
        configs.pop(name, None)
        return
    if operation == Operation.SET:
        configs[name] = value
        return
    config = TOPIC_CONFIGS.get(name)
    if config is None or config.type is not ConfigType.LIST:
        raise InvalidConfig(f"{name} is not a list that could be appended to or subtracted from.")
    items = _split(configs.get(name, default_text(config, settings)))
    if operation == Operation.APPEND:
        items += [item for item in _split(value) if item not in items]
    else:
        taken_out = _split(value)
        items = [item for item in items if item not in taken_out]
    configs[name] = ",".join(items)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


async def list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if ctx.header.api_version == 0:
        asked = {int(ResourceType.CLIENT_METRICS)}
    else:
        asked = set(request.resource_types) or {int(kind) for kind in ResourceType}
    unknown = asked.difference(ResourceType)
    if unknown:
        raise UnsupportedVersion(f"There is no resource type {min(unknown)}.")
    named: list[tuple[str, ResourceType]] = []
    if ResourceType.TOPIC in asked:
        named += [(topic.name, ResourceType.TOPIC) for topic in ctx.broker.topics.all()]
    if ResourceType.BROKER in asked:
        named.append((str(ctx.broker.node_id), ResourceType.BROKER))
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=0,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(
                resource_name=name, resource_type=int(resource_type)
            )
            for name, resource_type in named
        ],
    )
