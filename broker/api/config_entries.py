"""Configs as DescribeConfigs and CreateTopics show them: value, source, synonyms.

Topic configs come from `storage/topic_configs.py`. Broker configs are the settings. A setting that
Kafka has too is shown under Kafka's name, any other as `brokerhouse.<setting>`, so that an admin
tool shows every setting of this broker. All are read-only: the broker reads them at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from pydantic import SecretStr

from broker.config import Settings, as_text
from broker.effective_configs import default_text
from broker.node import Broker
from storage.topic_configs import TOPIC_CONFIGS, ConfigType, TopicConfig


class Source(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value that would apply if the synonyms before it in the list were not set."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of one resource. `value` is None if it is sensitive or not set."""

    name: str
    value: str | None
    type: ConfigType
    source: Source
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    documentation: str


# Settings that Kafka has too, under another name.
_KAFKA_NAMES: Mapping[str, tuple[str, ...]] = {
    "node_id": ("node.id", "broker.id"),
    "data_dir": ("log.dirs", "log.dir"),
    "auto_create_topics": ("auto.create.topics.enable",),
    "num_partitions": ("num.partitions",),
    "message_max_bytes": ("message.max.bytes",),
    "request_max_bytes": ("socket.request.max.bytes",),
    "in_flight_max_bytes": ("queued.max.request.bytes",),
    "max_connections": ("max.connections",),
    "connections_max_idle_ms": ("connections.max.idle.ms",),
    "fetch_max_bytes": ("fetch.max.bytes",),
    "fetch_sessions_max": ("max.incremental.fetch.session.cache.slots",),
    "retention_ms": ("log.retention.ms",),
    "retention_check_interval_ms": ("log.retention.check.interval.ms",),
    "producer_id_expiration_ms": ("producer.id.expiration.ms",),
}
# Shown as listeners and advertised.listeners, in Kafka's form.
_SHOWN_AS_LISTENERS = frozenset({"kafka", "advertised"})
# Kafka's types of settings whose Python type does not tell it.
_LONGS = frozenset(
    {
        "queued.max.request.bytes",
        "connections.max.idle.ms",
        "log.retention.ms",
        "log.retention.check.interval.ms",
    }
)
_LISTS = frozenset({"log.dirs", "log.dir"})


def topic_entries(configs: Mapping[str, str], settings: Settings) -> Iterator[ConfigEntry]:
    """Every config of a topic with these overrides, by name."""
    for config in TOPIC_CONFIGS.values():
        yield _topic_entry(config, configs.get(config.name), settings)


def _topic_entry(config: TopicConfig, override: str | None, settings: Settings) -> ConfigEntry:
    synonyms = _broker_synonyms(config, settings)
    if override is not None:
        synonyms = (Synonym(config.name, override, Source.TOPIC), *synonyms)
    first = synonyms[0] if synonyms else Synonym(config.name, config.default, Source.DEFAULT)
    return ConfigEntry(
        name=config.name,
        value=first.value,
        type=config.type,
        source=first.source,
        read_only=False,
        sensitive=False,
        synonyms=synonyms,
        documentation=config.documentation,
    )


def _broker_synonyms(config: TopicConfig, settings: Settings) -> tuple[Synonym, ...]:
    """The values of a topic config that the topic does not set. Empty without a broker config."""
    if config.broker_name is None:
        return ()
    default = Synonym(config.broker_name, config.default, Source.DEFAULT)
    value = default_text(config, settings)
    if value == config.default:
        return (default,)
    return Synonym(config.broker_name, value, Source.STATIC_BROKER), default


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Every config of this broker, by name."""
    entries = [
        *_setting_entries(broker.settings),
        *_listener_entries(broker),
        *_topic_default_entries(broker.settings),
        *_fixed_entries(),
    ]
    return sorted(entries, key=lambda entry: entry.name)


def _setting_entries(settings: Settings) -> Iterator[ConfigEntry]:
    for field_name, field in Settings.model_fields.items():
        if field_name in _SHOWN_AS_LISTENERS:
            continue
        value = getattr(settings, field_name)
        sensitive = field.annotation == SecretStr | None
        for name in _KAFKA_NAMES.get(field_name, (f"brokerhouse.{field_name}",)):
            yield _broker_entry(
                name,
                None if sensitive else _shown(value),
                None if sensitive else _shown(field.default),
                ConfigType.PASSWORD if sensitive else _type(name, field.default),
                f"{field.description}.",
                is_set=value != field.default,
            )


def _shown(value: object) -> str:
    return str(value.resolve()) if isinstance(value, Path) else as_text(value)


def _type(name: str, default: object) -> ConfigType:
    if isinstance(default, bool):
        return ConfigType.BOOLEAN
    if isinstance(default, int):
        is_long = name in _LONGS or name.startswith("brokerhouse.")
        return ConfigType.LONG if is_long else ConfigType.INT
    return ConfigType.LIST if name in _LISTS else ConfigType.STRING


def _listener_entries(broker: Broker) -> Iterator[ConfigEntry]:
    host, port = broker.endpoint.host, broker.endpoint.port
    shown_host = f"[{host}]" if ":" in host else host
    for name, value, doc, is_set in (
        (
            "listeners",
            f"PLAINTEXT://{broker.settings.kafka}",
            "Where Kafka clients connect.",
            broker.settings.kafka != Settings.model_fields["kafka"].default,
        ),
        (
            "advertised.listeners",
            f"PLAINTEXT://{shown_host}:{port}",
            "Address that clients connect to.",
            broker.settings.advertised is not None,
        ),
    ):
        yield _broker_entry(name, value, value, ConfigType.LIST, doc, is_set=is_set)


def _topic_default_entries(settings: Settings) -> Iterator[ConfigEntry]:
    """The defaults of topic configs, except those that are settings and shown already."""
    shown = {name for names in _KAFKA_NAMES.values() for name in names}
    for config in TOPIC_CONFIGS.values():
        if config.broker_name is not None and config.broker_name not in shown:
            value = default_text(config, settings)
            yield _broker_entry(
                config.broker_name, value, value, config.type, config.documentation, is_set=False
            )


def _fixed_entries() -> Iterator[ConfigEntry]:
    for name, value, kind, doc in (
        (
            "default.replication.factor",
            "1",
            ConfigType.INT,
            "Replicas of a new topic's partitions; ClickHouse replicates the rows.",
        ),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN, "Whether topics can be deleted."),
    ):
        yield _broker_entry(name, value, value, kind, doc, is_set=False)


def _broker_entry(
    name: str,
    value: str | None,
    default: str | None,
    kind: ConfigType,
    documentation: str,
    *,
    is_set: bool,
) -> ConfigEntry:
    synonyms: tuple[Synonym, ...] = (Synonym(name, default, Source.DEFAULT),)
    if is_set:
        synonyms = (Synonym(name, value, Source.STATIC_BROKER), *synonyms)
    return ConfigEntry(
        name=name,
        value=value,
        type=kind,
        source=synonyms[0].source,
        read_only=True,
        sensitive=kind is ConfigType.PASSWORD,
        synonyms=synonyms,
        documentation=documentation,
    )
