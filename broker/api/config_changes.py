"""Changes configs, for AlterConfigs and IncrementalAlterConfigs.

Each resource of a request succeeds or fails by itself. The configs of a broker are its settings; an
empty name stands for all brokers. Most settings are read once, at the start: a change of them is
refused, and the error names them and says what to do (broker/settings/dynamic_settings.py). Configs
of groups and client metrics are stored and have no effect. Levels of loggers last until a restart.

Errors of a resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG,
INVALID_REQUEST (named twice, a config without a value, a setting that cannot change, another
broker, no resource type), UNKNOWN_SERVER_ERROR (refused by ClickHouse).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

from brokerhouse.broker.api import loggers
from brokerhouse.broker.api.config_resources import (
    ResourceType,
    check_broker_name,
    check_name,
    resource_type,
)
from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.api.refusals import REFUSALS, as_kafka_error
from brokerhouse.broker.api.topic_lookup import find_topic
from brokerhouse.broker.settings.dynamic_settings import STORED_CONFIGS, check_can_change
from brokerhouse.broker.settings.effective_configs import default_text
from brokerhouse.broker.settings.resource_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from brokerhouse.broker.topics import topic_names
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.protocol.errors import InvalidConfig, InvalidRequest, KafkaError
from brokerhouse.storage import topic_configs
from brokerhouse.storage.config_definitions import ConfigDefinition, ConfigType
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS


class Operation(IntEnum):
    """What a change does to one config, by its number in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(int(operation) for operation in Operation)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The changes of one resource: (config, operation, value) in the order of the request."""

    resource_type: int
    resource_name: str
    steps: Sequence[tuple[str, int, str | None]]
    keeps_others: bool
    """Whether configs that are not named keep their values."""

    @classmethod
    def of_request(
        cls, request: Any, operation: Callable[[Any], int], *, keeps_others: bool
    ) -> list[ConfigChange]:
        """A change for each resource of a request; `operation` is what it does to a config."""
        return [
            cls(
                resource.resource_type,
                resource.resource_name,
                [(config.name, operation(config), config.value) for config in resource.configs],
                keeps_others,
            )
            for resource in request.resources
        ]


async def alter_all(
    ctx: RequestContext, changes: Sequence[ConfigChange], response: Any, *, validate_only: bool
) -> Any:
    """Make each change. Returns a `response` (a class) with its outcome for each, in order."""
    times = Counter((change.resource_type, change.resource_name) for change in changes)
    results = []
    for change in changes:
        error: KafkaError | None = None
        try:
            if times[change.resource_type, change.resource_name] > 1:
                raise InvalidRequest("The resource is in the request more than once.")
            await _alter(ctx, change, validate_only)
        except REFUSALS as refusal:
            error = as_kafka_error(refusal)
        results.append(
            response.AlterConfigsResourceResponse(
                error_code=error.code if error else 0,
                error_message=error.message if error else None,
                resource_type=change.resource_type,
                resource_name=change.resource_name,
            )
        )
    return response(throttle_time_ms=0, responses=results)


async def _alter(ctx: RequestContext, change: ConfigChange, validate_only: bool) -> None:
    kind = resource_type(change.resource_type)
    _check_steps(change)
    if kind is ResourceType.BROKER_LOGGER:
        _alter_loggers(ctx, change, validate_only)
        return
    # A change reads the configs and writes them back. Two at once would lose one of them.
    async with _ALTERATIONS.setdefault(ctx.broker.topics, asyncio.Lock()):
        if kind is ResourceType.TOPIC:
            await _alter_topic(ctx, change, validate_only)
        else:
            await _alter_stored(ctx, kind, change, validate_only)


_ALTERATIONS: WeakKeyDictionary[TopicCatalog, asyncio.Lock] = WeakKeyDictionary()


def _check_steps(change: ConfigChange) -> None:
    repeated = [name for name, n in Counter(name for name, _, _ in change.steps).items() if n > 1]
    if repeated:
        raise InvalidRequest(f"The request has configs more than once: {', '.join(repeated)}.")
    for name, operation, value in change.steps:
        if operation not in _OPERATIONS:
            raise InvalidRequest(f"The config operation {operation} does not exist.")
        if value is None and operation != Operation.DELETE:
            raise InvalidRequest(f"The config {name} has no value.")


async def _alter_topic(ctx: RequestContext, change: ConfigChange, validate_only: bool) -> None:
    if not change.resource_name:
        raise InvalidRequest("Configs of all topics cannot be set at once; name a topic.")
    topic_names.check(change.resource_name)
    known = ctx.broker.topics.get(change.resource_name)
    after = dict(known.configs) if known is not None and change.keeps_others else {}
    for name, operation, value in change.steps:
        _apply(
            after,
            name,
            operation,
            value,
            TOPIC_CONFIGS,
            lambda config: default_text(config, ctx.broker.settings),
        )
    topic_configs.check(after)
    topic = find_topic(ctx, change.resource_name)
    if not validate_only and after != dict(topic.configs):
        await ctx.broker.topics.set_configs(topic, after)


def _alter_loggers(ctx: RequestContext, change: ConfigChange, validate_only: bool) -> None:
    check_broker_name(ctx, change.resource_name)
    if not change.keeps_others:
        raise InvalidRequest("Levels of loggers are changed with IncrementalAlterConfigs.")
    steps = []
    for name, operation, value in change.steps:
        if operation not in (Operation.SET, Operation.DELETE):
            raise InvalidRequest(f"The level of {name} cannot be appended to or subtracted from.")
        level = value if operation == Operation.SET else None
        loggers.check(name, level)
        steps.append((name, level))
    for name, level in () if validate_only else steps:
        loggers.set_level(name, level)


async def _alter_stored(
    ctx: RequestContext, kind: ResourceType, change: ConfigChange, validate_only: bool
) -> None:
    """Change configs of a broker, of all brokers, of a group, or of client metrics."""
    broker, name = ctx.broker, change.resource_name
    if kind is not ResourceType.BROKER:
        check_name(kind, name)
    elif name:
        check_broker_name(ctx, name)
    known = _KNOWN[kind]
    if kind is ResourceType.BROKER:
        check_can_change([step[0] for step in change.steps], of_all_brokers=not name)

    def after(before: Mapping[str, str]) -> Mapping[str, str]:
        configs = dict(before) if change.keeps_others else {}
        for step in change.steps:
            _apply(configs, *step, known, lambda one: one.default)
        if kind is ResourceType.BROKER:
            broker.dynamic_settings.check(name, configs)
        else:
            _check_known(kind, configs)
        return configs

    await broker.stored_configs.load()
    after(broker.stored_configs.of(kind.name, name))
    if not validate_only:
        await broker.change_stored_configs(kind.name, name, after)


_KNOWN: Mapping[ResourceType, Mapping[str, ConfigDefinition]] = {
    ResourceType.BROKER: STORED_CONFIGS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


def _check_known(kind: ResourceType, configs: Mapping[str, str]) -> None:
    for name, text in configs.items():
        definition = _KNOWN[kind].get(name)
        if definition is None:
            error = InvalidConfig if kind is ResourceType.GROUP else InvalidRequest  # as in Kafka
            raise error(f"A resource of type {kind.name} has no config {name!r}.")
        definition.parse(text)


def _apply(
    configs: dict[str, str],
    name: str,
    operation: int,
    value: str | None,
    known: Mapping[str, ConfigDefinition],
    default: Callable[[ConfigDefinition], str],
) -> None:
    if value is None or operation == Operation.DELETE:
        configs.pop(name, None)
        return
    if operation == Operation.SET:
        configs[name] = value
        return
    config = known.get(name)
    if config is None or config.type is not ConfigType.LIST:
        raise InvalidConfig(
            f"{name} is not a list, so it cannot be appended to or subtracted from."
        )
    items = _split(configs.get(name, default(config)))
    if operation == Operation.APPEND:
        items += [item for item in _split(value) if item not in items]
    else:
        removed = _split(value)
        items = [item for item in items if item not in removed]
    configs[name] = ",".join(items)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
