"""Configs of groups and of client metrics, which are stored without an effect.

Names, types, defaults and limits are Kafka's. Nothing in this broker depends on these configs: it
supports only the classic group protocol, and takes no metrics from clients. But tools set these
configs and read them back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from brokerhouse.storage.config_definitions import (
    ConfigDefinition,
    ConfigType,
    Rule,
    Value,
    anything,
    at_least,
    between,
    config,
    one_of,
)

_INT = ConfigType.INT
_SESSION, _HEARTBEAT = between(45_000, 60_000), between(5_000, 15_000)
_ASSIGNMENT = between(0, 15_000)
_CLIENT_FIELDS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def _by_name(*table: ConfigDefinition) -> Mapping[str, ConfigDefinition]:
    return MappingProxyType({one.name: one for one in table})


def _of_group(name: str, default: int, rule: Rule, doc: str) -> ConfigDefinition:
    return config(name, _INT, default, rule, doc, f"group.{name}")


def _offset_reset(value: Value) -> str | None:
    if value in ("earliest", "latest") or re.fullmatch(r"by_duration:P\S+", str(value)):
        return None
    return "be earliest, latest or by_duration:DURATION"


def _client_matches(value: Value) -> str | None:
    assert isinstance(value, tuple)
    for one in value:
        field, equals, pattern = one.partition("=")
        if not equals or field.strip() not in _CLIENT_FIELDS:
            fields = ", ".join(sorted(_CLIENT_FIELDS))
            return f"be a list of FIELD=PATTERN, with one of the fields {fields}"
        try:
            re.compile(pattern.strip())
        except re.error as error:
            return f"have a regular expression behind {field}=: {error}"
    return None


GROUP_CONFIGS = _by_name(
    _of_group(
        "consumer.assignment.interval.ms",
        1000,
        _ASSIGNMENT,
        "Shortest time between two assignments of a consumer group.",
    ),
    _of_group(
        "consumer.heartbeat.interval.ms", 5000, _HEARTBEAT, "Time between heartbeats of a consumer."
    ),
    _of_group(
        "consumer.session.timeout.ms",
        45_000,
        _SESSION,
        "Time without a heartbeat after which a consumer is removed from its group.",
    ),
    _of_group(
        "share.assignment.interval.ms",
        1000,
        _ASSIGNMENT,
        "Shortest time between two assignments of a share group.",
    ),
    config(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        _offset_reset,
        "Where a share group begins to read.",
        "share.auto.offset.reset",
    ),
    _of_group(
        "share.delivery.count.limit",
        5,
        between(2, 10),
        "How often a record is delivered to a share group at most.",
    ),
    _of_group(
        "share.heartbeat.interval.ms",
        5000,
        _HEARTBEAT,
        "Time between heartbeats of a member of a share group.",
    ),
    config(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        one_of("read_uncommitted", "read_committed"),
        "Whether a share group reads records of open transactions.",
        "share.isolation.level",
    ),
    _of_group(
        "share.partition.max.record.locks",
        2000,
        between(100, 4000),
        "Records of a partition that a share group may hold at once.",
    ),
    _of_group(
        "share.record.lock.duration.ms",
        30_000,
        between(15_000, 60_000),
        "How long a member of a share group may hold a record.",
    ),
    config(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        True,
        anything,
        "Whether a member of a share group may hold a record for longer.",
        "share.renew.acknowledge.enable",
    ),
    _of_group(
        "share.session.timeout.ms",
        45_000,
        _SESSION,
        "Time without a heartbeat after which a member is removed from its share group.",
    ),
    _of_group(
        "streams.assignment.interval.ms",
        1000,
        _ASSIGNMENT,
        "Shortest time between two assignments of a streams group.",
    ),
    _of_group(
        "streams.heartbeat.interval.ms",
        5000,
        _HEARTBEAT,
        "Time between heartbeats of a member of a streams group.",
    ),
    _of_group(
        "streams.initial.rebalance.delay.ms",
        3000,
        at_least(0),
        "How long an empty streams group waits for more members.",
    ),
    _of_group(
        "streams.num.standby.replicas", 0, between(0, 2), "Standby copies of each streams task."
    ),
    _of_group(
        "streams.session.timeout.ms",
        45_000,
        _SESSION,
        "Time without a heartbeat after which a member is removed from its streams group.",
    ),
)
"""By name, in alphabetical order."""

CLIENT_METRICS_CONFIGS = _by_name(
    config(
        "interval.ms",
        _INT,
        300_000,
        between(100, 3_600_000),
        "How often clients send their metrics.",
    ),
    config(
        "match",
        ConfigType.LIST,
        "",
        _client_matches,
        "Which clients send metrics: FIELD=PATTERN.",
    ),
    config("metrics", ConfigType.LIST, "", anything, "Prefixes of the metrics that are sent."),
)
"""By name, in alphabetical order (KIP-714)."""
