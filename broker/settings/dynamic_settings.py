"""Settings that change while the broker runs: for one broker, or for all of them.

A value for one broker overrides the value for all brokers, and both override flags, environment and
file. The values are in the registry (broker/settings/stored_configs.py), so a restart keeps them. A
setting is dynamic if the code reads it at each use; all other settings are read once, at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError

from brokerhouse.broker.settings.config import Settings, as_text
from brokerhouse.broker.settings.config_sources import advice
from brokerhouse.broker.settings.kafka_configs import KAFKA_CONFIGS
from brokerhouse.broker.settings.stored_configs import ALL_BROKERS, BROKER, Configs, StoredConfigs
from brokerhouse.protocol.errors import InvalidConfig, InvalidRequest
from brokerhouse.storage.config_definitions import ConfigDefinition

log = logging.getLogger(__name__)

KAFKA_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "node_id": ("node.id", "broker.id"),
        "rack": ("broker.rack",),
        "broker_session_timeout_ms": ("broker.session.timeout.ms",),
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
        "transaction_max_timeout_ms": ("transaction.max.timeout.ms",),
        "transactional_id_expiration_ms": ("transactional.id.expiration.ms",),
        "group_min_session_timeout_ms": ("group.min.session.timeout.ms",),
        "group_max_session_timeout_ms": ("group.max.session.timeout.ms",),
        "group_initial_rebalance_delay_ms": ("group.initial.rebalance.delay.ms",),
        "group_max_size": ("group.max.size",),
        "offsets_retention_minutes": ("offsets.retention.minutes",),
        "offset_metadata_max_bytes": (
            "offset.metadata.max.bytes",
            "brokerhouse.offset_metadata_max_bytes",
        ),
    }
)
"""Settings that Kafka has too, under other names. The others are `brokerhouse.SETTING`."""

DYNAMIC = frozenset(
    {
        "auto_create_topics",
        "fetch_max_bytes",
        "log_level",
        "max_connections",
        "message_max_bytes",
        "offset_metadata_max_bytes",
        "retention_ms",
    }
)
"""The settings that can change while the broker runs."""


def names_of(setting: str) -> tuple[str, ...]:
    """The names under which a setting is a broker config."""
    return KAFKA_NAMES.get(setting, (f"brokerhouse.{setting}",))


_SETTINGS: Mapping[str, str] = MappingProxyType(
    {name: setting for setting in Settings.model_fields for name in names_of(setting)}
)
STORED_CONFIGS: Mapping[str, ConfigDefinition] = MappingProxyType(
    {
        one.name: one.definition
        for one in KAFKA_CONFIGS.values()
        if one.is_stored and one.name not in _SETTINGS
    }
)
"""Configs of Kafka that can be set while the broker runs and have no effect, by name."""


class DynamicSettings:
    """The settings of this broker as they are now."""

    def __init__(
        self,
        at_start: Settings,
        stored: StoredConfigs,
        users: Sequence[Callable[[Settings], None]],
    ) -> None:
        """`users` are told when settings have changed."""
        self.at_start = at_start
        self.current = at_start
        self._stored = stored
        self._users = users

    def check(self, name: str, configs: Configs) -> None:
        """Raises `InvalidRequest` unless the broker `name` (or all) can have these configs."""
        self._with(*self._layers({name: configs}))

    def apply(self) -> None:
        """Use what is stored now. What this broker cannot use is logged and left out."""
        layers: list[Configs] = []
        for configs in self._layers({}):
            try:
                self._with(*layers, configs)
            except InvalidRequest as error:
                log.error("cannot use the configs of this broker in the registry: %s", error)
            else:
                layers.append(configs)
        settings = self._with(*layers)
        if settings != self.current:
            changed = [
                f"{name}={as_text(getattr(settings, name))}"
                for name in sorted(DYNAMIC)
                if getattr(settings, name) != getattr(self.current, name)
            ]
            log.warning("settings have changed: %s", ", ".join(changed))
            self.current = settings
            for use in self._users:
                use(settings)

    def _layers(self, instead: Mapping[str, Configs]) -> list[Configs]:
        """The configs of all brokers, then of this one; `instead` of what is stored."""
        names = (ALL_BROKERS, str(self.at_start.node_id))
        return [instead.get(name, self._stored.of(BROKER, name)) for name in names]

    def _with(self, *layers: Configs) -> Settings:
        values: dict[str, str] = {}
        for name, text in (pair for configs in layers for pair in configs.items()):
            if name in STORED_CONFIGS:
                try:
                    STORED_CONFIGS[name].parse(text)
                except InvalidConfig as error:
                    raise InvalidRequest(str(error)) from error
            elif can_change(name):
                values[_SETTINGS[name]] = text.strip()
        if not values:
            return self.at_start
        given = {name: getattr(self.at_start, name) for name in self.at_start.model_fields_set}
        try:
            return Settings(**given | values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = str(first["loc"][0]) if first["loc"] else ""
            name = names_of(where)[0] if where else "The settings"
            shown = f" = {values[where]!r}" if where in values else ""
            raise InvalidRequest(f"{name}{shown} cannot be used: {advice(first)}") from None


def can_change(name: str) -> bool:
    """Whether a broker config can change while the broker runs."""
    return name in STORED_CONFIGS or _SETTINGS.get(name) in DYNAMIC


def check_can_change(names: Sequence[str], *, of_all_brokers: bool) -> None:
    """Raises `InvalidRequest`, which names what cannot change and says what to do."""
    for name in names:
        kafkas = None if name in _SETTINGS else KAFKA_CONFIGS.get(name)
        if kafkas is not None and kafkas.refused:
            raise InvalidRequest(f"{name} cannot be set: {kafkas.refused}.")
        if kafkas is not None and kafkas.changes == "each" and of_all_brokers:
            raise InvalidRequest(f"{name} cannot be set for all brokers at once; name a broker.")
    fixed = [_fixed(name) for name in names if not can_change(name)]
    if fixed:
        raise InvalidRequest(
            f"Cannot be changed while the broker runs: {', '.join(fixed)}. Change a setting by a "
            "flag, in the environment or in the file, and restart the broker."
        )


def _fixed(name: str) -> str:
    setting = _SETTINGS.get(name)
    return f"{name} ({'not a setting' if setting is None else f'the setting {setting}'})"
