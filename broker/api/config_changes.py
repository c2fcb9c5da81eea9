"""Changes the configs of topics, for AlterConfigs and IncrementalAlterConfigs.

Each resource of a request succeeds or fails by itself. Only topics can be altered. The broker reads
its settings once, at its start, so a change of them is refused, and the error says what to do.

Errors of a resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG,
INVALID_REQUEST (named twice, a config without a value, a broker), UNKNOWN_SERVER_ERROR (refused by
ClickHouse).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

from broker import topic_names
from broker.api.config_resources import ResourceType, check_broker_name
from broker.api.context import RequestContext
from broker.api.refusals import REFUSALS, as_kafka_error
from broker.api.topic_lookup import find_topic
from broker.config import Settings
from broker.effective_configs import default_text
from broker.topics import TopicCatalog
from protocol.errors import InvalidConfig, InvalidRequest, KafkaError
from storage import topic_configs
from storage.topic_configs import TOPIC_CONFIGS, ConfigType


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
    _check_steps(change)
    match change.resource_type:
        case ResourceType.TOPIC:
            # A change reads the configs and writes them back. Two at once would lose one of them.
            async with _ALTERATIONS.setdefault(ctx.broker.topics, asyncio.Lock()):
                await _alter_topic(ctx, change, validate_only)
        case ResourceType.BROKER:
            if change.resource_name:
                check_broker_name(ctx, change.resource_name)
            if change.steps:
                raise InvalidRequest(
                    "The broker reads its configs at its start: change its settings (flags, "
                    "BROKERHOUSE_* variables or the TOML file) and restart it."
                )
        case _:
            raise InvalidRequest(f"Configs of resource type {change.resource_type} cannot be set.")


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
        _apply(after, name, operation, value, ctx.broker.settings)
    topic_configs.check(after)
    topic = find_topic(ctx, change.resource_name)
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
        raise InvalidConfig(
            f"{name} is not a list, so it cannot be appended to or subtracted from."
        )
    items = _split(configs.get(name, default_text(config, settings)))
    if operation == Operation.APPEND:
        items += [item for item in _split(value) if item not in items]
    else:
        removed = _split(value)
        items = [item for item in items if item not in removed]
    configs[name] = ",".join(items)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
