"""Every topic config that Kafka 4 knows: name, type, default, what values it takes, what it does.

A topic keeps only what somebody set (its overrides, as text, exactly as sent); everything else
follows the defaults here and the broker's settings. `check` is asked before an override is kept,
so what is kept always parses. `effective` is what the log reads: typed, cached, cheap.

`acts` says whether this broker's behaviour depends on a config. The others are known, checked and
kept, because tools set them and read them back, and their documentation says that nothing happens.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from broker.config import Settings
from protocol.errors import InvalidConfig

Value = bool | int | float | str | tuple[str, ...]

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000


class ConfigType(IntEnum):
    """The type of a config's value, by its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


Rule = Callable[[Value], str | None]
"""What is wrong with a parsed value, as the end of "it must ...", or None."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One config: `default` as text, `broker_name` the broker config that it defaults to."""

    name: str
    type: ConfigType
    default: str
    rule: Rule
    acts: bool
    broker_name: str | None
    doc: str

    @property
    def documentation(self) -> str:
        if self.acts:
            return self.doc
        return f"{self.doc} Known, checked and kept; nothing in this broker depends on it."

    def parse(self, text: str) -> Value:
        """The typed value of `text`. InvalidConfig, with a sentence, where it has none."""
        value = _parse(self.type, text.strip())
        problem = _EXPECTED[self.type] if value is None else self.rule(value)
        if value is None or problem is not None:
            raise InvalidConfig(f"{self.name} = {text!r} cannot be used: it must {problem}.")
        return value


def _parse(kind: ConfigType, text: str) -> Value | None:
    """As Kafka's ConfigDef reads text; None where it cannot."""
    match kind:
        case ConfigType.BOOLEAN:
            return {"true": True, "false": False}.get(text.lower())
        case ConfigType.INT:
            return _whole_number(text, _INT32)
        case ConfigType.LONG:
            return _whole_number(text, _INT64)
        case ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                return None
        case ConfigType.LIST:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()
        case _:
            return text


def _whole_number(text: str, largest: int) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return None
    number = int(text)
    return number if -largest - 1 <= number <= largest else None


_EXPECTED = {
    ConfigType.BOOLEAN: "be true or false",
    ConfigType.INT: "be a whole number of at most 32 bits",
    ConfigType.LONG: "be a whole number of at most 64 bits",
    ConfigType.DOUBLE: "be a number",
}


def _anything(_: Value) -> str | None:
    return None


def _between(smallest: float, largest: float) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, int | float)
        ok = smallest <= value <= largest
        return None if ok else f"be from {smallest} to {largest}"

    return rule


def _at_least(smallest: int) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, int)
        return None if value >= smallest else f"be at least {smallest}"

    return rule


def _one_of(*names: str) -> Rule:
    def rule(value: Value) -> str | None:
        return None if value in names else f"be one of {', '.join(names)}"

    return rule


def _each_one_of(*names: str) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, tuple)
        ok = all(item in names for item in value)
        return None if ok else f"be a comma-separated list of {', '.join(names)}"

    return rule


def _gzip_level(value: Value) -> str | None:
    assert isinstance(value, int)
    return None if value == -1 or 1 <= value <= 9 else "be from 1 to 9, or -1 for gzip's default"


def _throttled_replicas(value: Value) -> str | None:
    assert isinstance(value, tuple)
    if value == ("*",) or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in value):
        return None
    return "be '*' or a comma-separated list of PARTITION:BROKER"


def _not_true(value: Value) -> str | None:
    return "be false, since there is no tiered storage" if value is True else None


def _config(
    name: str,
    kind: ConfigType,
    default: str | int | float | bool,
    rule: Rule,
    doc: str,
    broker_name: str | None = None,
    acts: bool = False,
) -> TopicConfig:
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return TopicConfig(name, kind, text, rule, acts, broker_name, doc)


_BOOLEAN, _STRING, _LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST
_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE

_TABLE = (
    _config(
        "cleanup.policy",
        _LIST,
        "delete",
        _each_one_of("compact", "delete"),
        "What becomes of old records: deleted, or compacted to the last one of each key.",
        "log.cleanup.policy",
        acts=True,
    ),
    _config(
        "compression.gzip.level",
        _INT,
        -1,
        _gzip_level,
        "Level of gzip where compression.type is gzip.",
        "compression.gzip.level",
    ),
    _config(
        "compression.lz4.level",
        _INT,
        9,
        _between(1, 17),
        "Level of lz4 where compression.type is lz4.",
        "compression.lz4.level",
    ),
    _config(
        "compression.type",
        _STRING,
        "producer",
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "Codec of stored batches. Rows are stored in columns that ClickHouse compresses, and the "
        "latest batches are served as the producer sent them, whatever is set here.",
        "compression.type",
    ),
    _config(
        "compression.zstd.level",
        _INT,
        3,
        _between(-131072, 22),
        "Level of zstd where compression.type is zstd.",
        "compression.zstd.level",
    ),
    _config(
        "delete.retention.ms",
        _LONG,
        _DAY_MS,
        _at_least(0),
        "How long compaction keeps the record that deletes a key once those before it are gone.",
        "log.cleaner.delete.retention.ms",
        acts=True,
    ),
    _config(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        _at_least(0),
        "How long a deleted segment file stays on disk.",
        "log.segment.delete.delay.ms",
    ),
    _config(
        "flush.messages",
        _LONG,
        _INT64,
        _at_least(1),
        "Records after which a log is flushed to disk; the setting fsync decides that here.",
        "log.flush.interval.messages",
    ),
    _config(
        "flush.ms",
        _LONG,
        _INT64,
        _at_least(0),
        "Time after which a log is flushed to disk; the setting fsync decides that here.",
        "log.flush.interval.ms",
    ),
    _config(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        _throttled_replicas,
        "Replicas whose fetching from the leader is throttled.",
    ),
    _config(
        "index.interval.bytes",
        _INT,
        4096,
        _at_least(0),
        "Bytes between two entries of an offset index.",
        "log.index.interval.bytes",
    ),
    _config(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        _throttled_replicas,
        "Replicas whose serving of followers is throttled.",
    ),
    _config(
        "local.retention.bytes",
        _LONG,
        -2,
        _at_least(-2),
        "Size of a partition's local part under tiered storage; -2 follows retention.bytes.",
        "log.local.retention.bytes",
    ),
    _config(
        "local.retention.ms",
        _LONG,
        -2,
        _at_least(-2),
        "Age of a partition's local part under tiered storage; -2 follows retention.ms.",
        "log.local.retention.ms",
    ),
    _config(
        "max.compaction.lag.ms",
        _LONG,
        _INT64,
        _at_least(1),
        "Longest time that a record escapes compaction, which runs when its job is run.",
        "log.cleaner.max.compaction.lag.ms",
        acts=True,
    ),
    _config(
        "max.message.bytes",
        _INT,
        1_048_588,
        _at_least(0),
        "Largest record batch taken, in bytes, compressed as it was sent.",
        "message.max.bytes",
        acts=True,
    ),
    _config(
        "message.timestamp.after.max.ms",
        _LONG,
        3_600_000,
        _at_least(0),
        "How far a record's timestamp may lie ahead of the broker's clock under CreateTime; "
        "9223372036854775807 lets every timestamp pass.",
        "log.message.timestamp.after.max.ms",
        acts=True,
    ),
    _config(
        "message.timestamp.before.max.ms",
        _LONG,
        _INT64,
        _at_least(0),
        "How far a record's timestamp may lie behind the broker's clock under CreateTime.",
        "log.message.timestamp.before.max.ms",
        acts=True,
    ),
    _config(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Whose time a record bears: its producer's, or the broker's at the append.",
        "log.message.timestamp.type",
        acts=True,
    ),
    _config(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        _between(0, 1),
        "Share of a log that has to be uncompacted before compaction is worth its while.",
        "log.cleaner.min.cleanable.ratio",
        acts=True,
    ),
    _config(
        "min.compaction.lag.ms",
        _LONG,
        0,
        _at_least(0),
        "Shortest time that a record escapes compaction.",
        "log.cleaner.min.compaction.lag.ms",
        acts=True,
    ),
    _config(
        "min.insync.replicas",
        _INT,
        1,
        _at_least(1),
        "Replicas that must have a record before acks=all is answered. Every acknowledged record "
        "is a row in ClickHouse, whose replication is set up there.",
        "min.insync.replicas",
    ),
    _config(
        "preallocate",
        _BOOLEAN,
        False,
        _anything,
        "Whether a new segment file is given its full size at once.",
        "log.preallocate",
    ),
    _config(
        "remote.copy.lag.bytes",
        _LONG,
        0,
        _at_least(-1),
        "Bytes that may await their copy to tiered storage.",
    ),
    _config(
        "remote.copy.lag.ms",
        _LONG,
        0,
        _at_least(-1),
        "Time that records may await their copy to tiered storage.",
    ),
    _config(
        "remote.log.copy.disable",
        _BOOLEAN,
        False,
        _anything,
        "Whether a topic in tiered storage is read only there.",
    ),
    _config(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        False,
        _anything,
        "Whether turning tiered storage off deletes what it holds.",
    ),
    _config(
        "remote.storage.enable",
        _BOOLEAN,
        False,
        _not_true,
        "Tiered storage for the topic; this broker has none, as ClickHouse tiers its own disks.",
    ),
    _config(
        "retention.bytes",
        _LONG,
        -1,
        _anything,
        "Bytes of keys and values that a partition keeps, the newest; older records are deleted. "
        "-1 for no limit.",
        "log.retention.bytes",
        acts=True,
    ),
    _config(
        "retention.ms",
        _LONG,
        7 * _DAY_MS,
        _at_least(-1),
        "Age at which records are deleted, by their timestamps; -1 for never.",
        "log.retention.ms",
        acts=True,
    ),
    _config(
        "segment.bytes",
        _INT,
        1024**3,
        _at_least(1024**2),
        "Size of a segment file; there are none here.",
        "log.segment.bytes",
    ),
    _config(
        "segment.index.bytes",
        _INT,
        10 * 1024**2,
        _at_least(4),
        "Size of a segment's offset index; there are none here.",
        "log.index.size.max.bytes",
    ),
    _config(
        "segment.jitter.ms",
        _LONG,
        0,
        _at_least(0),
        "Random time by which a segment ends early; there are none here.",
        "log.roll.jitter.ms",
    ),
    _config(
        "segment.ms",
        _LONG,
        7 * _DAY_MS,
        _at_least(1),
        "Age at which a segment ends; there are none here.",
        "log.roll.ms",
    ),
    _config(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        _anything,
        "Whether a replica that lags may become the leader; every broker reads the same rows.",
        "unclean.leader.election.enable",
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = MappingProxyType({row.name: row for row in _TABLE})
"""All of them, by name in alphabetical order."""


def default_text(config: TopicConfig, settings: Settings) -> str:
    """What a topic without an override has: the broker's setting, or Kafka's default."""
    of_settings = {
        "max.message.bytes": settings.message_max_bytes,
        "retention.ms": settings.retention_ms,
    }
    return str(of_settings.get(config.name, config.default))


def effective_text(configs: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Every config of a topic with these overrides, as text, by name."""
    return {
        name: configs.get(name, default_text(config, settings))
        for name, config in TOPIC_CONFIGS.items()
    }


def check(configs: Mapping[str, str]) -> None:
    """InvalidConfig, with a sentence, unless a topic may have these overrides together."""
    values: dict[str, Value] = {}
    for name, text in configs.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidConfig(f"There is no topic config with the name {name!r}.")
        values[name] = config.parse(text)
    shortest = values.get("min.compaction.lag.ms", 0)
    longest = values.get("max.compaction.lag.ms", _INT64)
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({shortest}) must not be larger than "
            f"max.compaction.lag.ms ({longest})."
        )


@dataclass(frozen=True, slots=True)
class EffectiveTopicConfig:
    """What the log reads of a topic's configs, parsed. Times in ms, sizes in bytes, -1 no limit."""

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
    return _effective(frozenset(configs.items()), settings.message_max_bytes, settings.retention_ms)


@lru_cache(maxsize=1024)
def _effective(
    overrides: frozenset[tuple[str, str]], message_max: int, retention_ms: int
) -> EffectiveTopicConfig:
    defaults = {"max.message.bytes": str(message_max), "retention.ms": str(retention_ms)}
    given = defaults | dict(overrides)

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
