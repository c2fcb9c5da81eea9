"""The configs that apply to a topic: its own over the broker's settings over Kafka's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from brokerhouse.broker.settings.config import Settings
from brokerhouse.storage.config_definitions import ConfigDefinition, Value
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS


def default_text(config: ConfigDefinition, settings: Settings) -> str:
    """The value of a config that no topic override sets: a broker setting, or Kafka's default."""
    return str(dict(_of_settings(settings)).get(config.name, config.default))


def _of_settings(settings: Settings) -> tuple[tuple[str, int], ...]:
    """Configs of topics whose default is a setting of the broker."""
    return (
        ("max.message.bytes", settings.message_max_bytes),
        ("retention.ms", settings.retention_ms),
    )


@dataclass(frozen=True, slots=True)
class EffectiveTopicConfig:
    """The configs that a log depends on, parsed. Times in ms, sizes in bytes, -1 no limit."""

    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    cleanup_policy: frozenset[str]
    compression_type: str
    min_insync_replicas: int
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int


def effective(configs: Mapping[str, str], settings: Settings) -> EffectiveTopicConfig:
    """The configs that apply to a topic with these overrides. Cached: cheap to call per request."""
    return _effective(frozenset(configs.items()), _of_settings(settings))


@lru_cache(maxsize=1024)
def _effective(
    overrides: frozenset[tuple[str, str]], defaults: tuple[tuple[str, int], ...]
) -> EffectiveTopicConfig:
    given = {name: str(number) for name, number in defaults} | dict(overrides)

    def value(name: str) -> Value:
        config = TOPIC_CONFIGS[name]
        return config.parse(given.get(name, config.default))

    def number(name: str) -> int:
        parsed = value(name)
        assert isinstance(parsed, int)
        return parsed

    policies = value("cleanup.policy")
    assert isinstance(policies, tuple)
    by_broker = value("message.timestamp.type") == "LogAppendTime"
    return EffectiveTopicConfig(
        max_message_bytes=number("max.message.bytes"),
        message_timestamp_type="LogAppendTime" if by_broker else "CreateTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        cleanup_policy=frozenset(policies),
        compression_type=str(value("compression.type")),
        min_insync_replicas=number("min.insync.replicas"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
    )
