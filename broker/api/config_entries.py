"""Configs as DescribeConfigs and CreateTopics show them: value, source, synonyms.

Topic configs come from `storage/topic_configs.py`, those of groups and client metrics from
`broker/settings/resource_configs.py`. Broker configs are the settings. A setting that Kafka has too
is shown under Kafka's name, any other as `brokerhouse.<setting>`, so that an admin tool shows every
setting of this broker. Those that cannot change while it runs are read-only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from pydantic import SecretStr

from brokerhouse.broker.api import loggers
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.settings.config import Settings, as_text
from brokerhouse.broker.settings.dynamic_settings import STORED_CONFIGS, can_change, names_of
from brokerhouse.broker.settings.effective_configs import default_text
from brokerhouse.broker.settings.kafka_configs import KAFKA_CONFIGS
from brokerhouse.broker.settings.stored_configs import ALL_BROKERS, BROKER
from brokerhouse.storage.config_definitions import ConfigDefinition, ConfigType
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS


class Source(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


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


# Shown as listeners and advertised.listeners, in Kafka's form.
_SHOWN_AS_LISTENERS = frozenset({"kafka", "advertised"})

# Kafka takes these topic configs from a second broker config if the first is not set, and does not
# show where they come from while neither is.
_COARSER: Mapping[str, tuple[str, str]] = {
    "flush.ms": ("log.flush.scheduler.interval.ms", str(2**63 - 1)),
    "retention.ms": ("log.retention.hours", "168"),
    "segment.jitter.ms": ("log.roll.jitter.hours", "0"),
    "segment.ms": ("log.roll.hours", "168"),
}
_MIN_INSYNC = "min.insync.replicas"


def topic_entries(configs: Mapping[str, str], broker: Broker) -> Iterator[ConfigEntry]:
    """Every config of a topic with these overrides, by name."""
    for config in TOPIC_CONFIGS.values():
        yield _topic_entry(config, configs.get(config.name), broker)


def _topic_entry(config: ConfigDefinition, override: str | None, broker: Broker) -> ConfigEntry:
    synonyms = _broker_synonyms(config, broker)
    if override is not None:
        synonyms = (Synonym(config.name, override, Source.TOPIC), *synonyms)
    first = synonyms[0] if synonyms else Synonym(config.name, config.default, Source.DEFAULT)
    if config.name in _COARSER and first.source is Source.DEFAULT:
        return _definition_entry(config, config.default, Source.DEFAULT, ())
    return _definition_entry(config, first.value, first.source, synonyms)


def _definition_entry(
    config: ConfigDefinition, value: str | None, source: Source, synonyms: tuple[Synonym, ...]
) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=value,
        type=config.type,
        source=source,
        read_only=False,
        sensitive=False,
        synonyms=synonyms,
        documentation=config.documentation,
    )


def _broker_synonyms(config: ConfigDefinition, broker: Broker) -> tuple[Synonym, ...]:
    """The values of a topic config that the topic does not set. Empty without a broker config."""
    if config.broker_name is None:
        return ()
    own = _dynamic_synonyms(config.broker_name, broker)
    name, text = _COARSER.get(config.name, (config.broker_name, config.default))
    default = Synonym(name, text, Source.DEFAULT)
    value = default_text(config, broker.dynamic_settings.at_start)
    if value == config.default:
        return (*own, default)
    return *own, Synonym(config.broker_name, value, Source.STATIC_BROKER), default


def _dynamic_synonyms(name: str, broker: Broker) -> tuple[Synonym, ...]:
    """What is set while the broker runs: for this broker, then for all."""
    found = []
    for resource, source in (
        (str(broker.node_id), Source.BROKER),
        (ALL_BROKERS, Source.ALL_BROKERS),
    ):
        value = broker.stored_configs.of(BROKER, resource).get(name)
        if value is not None:
            found.append(Synonym(name, value, source))
        elif name == _MIN_INSYNC and source is Source.ALL_BROKERS:
            # Kafka 4.3 has a default for all brokers, which it stores for a new cluster.
            found.append(Synonym(name, STORED_CONFIGS[name].default, source))
    return tuple(found)


def resource_entries(
    table: Mapping[str, ConfigDefinition], configs: Mapping[str, str], source: Source
) -> Iterator[ConfigEntry]:
    """Every config of a group, or of a subscription to client metrics, by name."""
    for config in table.values():
        synonyms: tuple[Synonym, ...] = ()
        if config.broker_name is not None:
            synonyms = (Synonym(config.broker_name, config.default, Source.DEFAULT),)
        if config.name in configs:
            synonyms = (Synonym(config.name, configs[config.name], source), *synonyms)
            yield _definition_entry(config, configs[config.name], source, synonyms)
        else:
            yield _definition_entry(config, config.default, Source.DEFAULT, synonyms)


def logger_entries() -> Iterator[ConfigEntry]:
    """Every logger with its level, `root` first."""
    for name, level in loggers.levels():
        yield ConfigEntry(
            name=name,
            value=level,
            type=ConfigType.UNKNOWN,
            source=Source.BROKER_LOGGER,
            read_only=False,
            sensitive=False,
            synonyms=(),
            documentation=f"The lowest severity that {name} writes.",
        )


def all_brokers_entries(broker: Broker) -> Iterator[ConfigEntry]:
    """What is set for all brokers while they run, by name."""
    names = {*broker.stored_configs.of(BROKER, ALL_BROKERS), _MIN_INSYNC}
    for entry in broker_entries(broker):
        for synonym in entry.synonyms:
            if entry.name in names and synonym.source is Source.ALL_BROKERS:
                yield replace(
                    entry, value=synonym.value, source=synonym.source, synonyms=(synonym,)
                )


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Every config of this broker, by name."""
    entries = [
        *_setting_entries(broker.dynamic_settings.at_start),
        *_listener_entries(broker),
        *_topic_default_entries(broker.dynamic_settings.at_start),
        *_fixed_entries(),
    ]
    shown = {entry.name for entry in entries}
    entries += [entry for entry in _kafkas_entries() if entry.name not in shown]
    changed = (_as_it_is_now(entry, broker) for entry in entries)
    return sorted(changed, key=lambda entry: entry.name)


def _as_it_is_now(entry: ConfigEntry, broker: Broker) -> ConfigEntry:
    """A config as the start of the broker found it, with what was set since then."""
    if not can_change(entry.name):
        return entry
    found = (*_dynamic_synonyms(entry.name, broker), *entry.synonyms)
    if not found:
        return replace(entry, read_only=False)
    return replace(
        entry, value=found[0].value, source=found[0].source, synonyms=found, read_only=False
    )


def _kafkas_entries() -> Iterator[ConfigEntry]:
    """Kafka's configs with their defaults, which have no effect."""
    for config in KAFKA_CONFIGS.values():
        default = None if config.type is ConfigType.PASSWORD else config.default
        yield _broker_entry(
            config.name, default, default, config.type, config.documentation, is_set=False
        )


def _setting_entries(settings: Settings) -> Iterator[ConfigEntry]:
    for field_name, field in Settings.model_fields.items():
        if field_name in _SHOWN_AS_LISTENERS:
            continue
        value = getattr(settings, field_name)
        sensitive = field.annotation == SecretStr | None
        for name in names_of(field_name):
            yield _broker_entry(
                name,
                None if sensitive else _shown(value),
                None if sensitive else _shown(field.default),
                ConfigType.PASSWORD if sensitive else _type(name, field.default),
                f"{field.description}.",
                is_set=value != field.default,
            )


def _shown(value: object) -> str | None:
    """Kafka shows what is not set as null."""
    if value is None:
        return None
    return str(value.resolve()) if isinstance(value, Path) else as_text(value)


def _type(name: str, default: object) -> ConfigType:
    if name in KAFKA_CONFIGS:
        return KAFKA_CONFIGS[name].type
    if isinstance(default, bool):
        return ConfigType.BOOLEAN
    return ConfigType.LONG if isinstance(default, int) else ConfigType.STRING


def _listener_entries(broker: Broker) -> Iterator[ConfigEntry]:
    endpoint, settings = broker.endpoint, broker.settings
    for name, listeners, doc, is_set in (
        (
            "listeners",
            settings.listeners,
            "Where Kafka clients connect.",
            settings.kafka != Settings.model_fields["kafka"].default,
        ),
        (
            "advertised.listeners",
            endpoint.addresses,
            "Address that clients connect to.",
            settings.advertised is not None,
        ),
    ):
        value = ",".join(map(str, listeners))
        yield _broker_entry(name, value, value, ConfigType.LIST, doc, is_set=is_set)


def _topic_default_entries(settings: Settings) -> Iterator[ConfigEntry]:
    """The defaults of topic configs, except those that are settings and shown already."""
    shown = {name for setting in Settings.model_fields for name in names_of(setting)}
    shown |= STORED_CONFIGS.keys()
    for config in TOPIC_CONFIGS.values():
        if config.broker_name is not None and config.broker_name not in shown:
            value: str | None = default_text(config, settings)
            if config.name in _COARSER:
                name, default = _COARSER[config.name]
                yield _broker_entry(
                    name,
                    default,
                    default,
                    _type(name, None),
                    config.documentation,
                    is_set=False,
                )
                value = None
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
    synonyms: tuple[Synonym, ...] = ()
    if default is not None:
        synonyms = (Synonym(name, default, Source.DEFAULT),)
    if is_set:
        synonyms = (Synonym(name, value, Source.STATIC_BROKER), *synonyms)
    return ConfigEntry(
        name=name,
        value=value,
        type=kind,
        source=synonyms[0].source if synonyms else Source.DEFAULT,
        read_only=True,
        sensitive=kind is ConfigType.PASSWORD,
        synonyms=synonyms,
        documentation=documentation,
    )
