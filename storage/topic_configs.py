"""Every topic config that Kafka 4 knows: name, type, default, allowed values, what it does.

A topic stores only the configs that somebody set (its overrides), as text, exactly as they were
sent. Every other config has the default given here, or the one that a broker's settings give it
(broker/settings/effective_configs.py). `check` runs before an override is stored, so a stored
override always parses.

It is in storage because the broker and the Spark jobs both read stored configs
(spark_jobs/compaction_targets.py), and Spark jobs import nothing of the broker.

`has_effect` says whether this broker's behaviour depends on a config. The other configs are
checked and stored, because tools set them and read them back. Their documentation says that they
have no effect.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from brokerhouse.common.clock import DAY_MS
from brokerhouse.protocol.errors import InvalidConfig
from brokerhouse.storage.config_definitions import (
    ConfigDefinition,
    ConfigType,
    Value,
    anything,
    at_least,
    between,
    config,
    each_one_of,
    one_of,
)

_INT64 = 2**63 - 1


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


_BOOLEAN, _STRING, _LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST
_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE

_TABLE = (
    config(
        "cleanup.policy",
        _LIST,
        "delete",
        each_one_of("compact", "delete"),
        "What happens to old records: they are deleted, or compacted to the last one of each key.",
        "log.cleanup.policy",
        has_effect=True,
    ),
    config(
        "compression.gzip.level",
        _INT,
        -1,
        _gzip_level,
        "Compression level if compression.type is gzip.",
        "compression.gzip.level",
    ),
    config(
        "compression.lz4.level",
        _INT,
        9,
        between(1, 17),
        "Compression level if compression.type is lz4.",
        "compression.lz4.level",
    ),
    config(
        "compression.type",
        _STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "Codec of stored batches. This broker stores rows in columns that ClickHouse compresses, "
        "and serves the latest batches as the producer compressed them.",
        "compression.type",
    ),
    config(
        "compression.zstd.level",
        _INT,
        3,
        between(-131072, 22),
        "Compression level if compression.type is zstd.",
        "compression.zstd.level",
    ),
    config(
        "delete.retention.ms",
        _LONG,
        DAY_MS,
        at_least(0),
        "How long compaction keeps a record that deletes a key (a tombstone) after it has removed "
        "the earlier records of that key.",
        "log.cleaner.delete.retention.ms",
        has_effect=True,
    ),
    config(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        at_least(0),
        "How long a deleted segment file stays on disk.",
        "log.segment.delete.delay.ms",
    ),
    config(
        "flush.messages",
        _LONG,
        _INT64,
        at_least(1),
        "Records after which a log is flushed to disk. Here the setting fsync decides that.",
        "log.flush.interval.messages",
    ),
    config(
        "flush.ms",
        _LONG,
        _INT64,
        at_least(0),
        "Time after which a log is flushed to disk. Here the setting fsync decides that.",
        "log.flush.interval.ms",
    ),
    config(
        "follower.replication.throttled.replicas",
        _LIST,
        "",
        _throttled_replicas,
        "Replicas whose fetching from the leader is throttled.",
    ),
    config(
        "index.interval.bytes",
        _INT,
        4096,
        at_least(0),
        "Bytes between two entries of an offset index.",
        "log.index.interval.bytes",
    ),
    config(
        "leader.replication.throttled.replicas",
        _LIST,
        "",
        _throttled_replicas,
        "Replicas whose serving of followers is throttled.",
    ),
    config(
        "local.retention.bytes",
        _LONG,
        -2,
        at_least(-2),
        "Size of a partition's local part under tiered storage; -2 follows retention.bytes.",
        "log.local.retention.bytes",
    ),
    config(
        "local.retention.ms",
        _LONG,
        -2,
        at_least(-2),
        "Age of a partition's local part under tiered storage; -2 follows retention.ms.",
        "log.local.retention.ms",
    ),
    config(
        "max.compaction.lag.ms",
        _LONG,
        _INT64,
        at_least(1),
        "Longest time that a record may wait for compaction, which runs when its job is started.",
        "log.cleaner.max.compaction.lag.ms",
        has_effect=True,
    ),
    config(
        "max.message.bytes",
        _INT,
        1_048_588,
        at_least(0),
        "Largest record batch that is accepted, in bytes, as the producer compressed it.",
        "message.max.bytes",
        has_effect=True,
    ),
    config(
        "message.timestamp.after.max.ms",
        _LONG,
        3_600_000,
        at_least(0),
        "How far a record's timestamp may be ahead of the broker's clock if the timestamp type is "
        "CreateTime; 9223372036854775807 allows every timestamp.",
        "log.message.timestamp.after.max.ms",
        has_effect=True,
    ),
    config(
        "message.timestamp.before.max.ms",
        _LONG,
        _INT64,
        at_least(0),
        "How far a record's timestamp may be behind the broker's clock if the timestamp type is "
        "CreateTime.",
        "log.message.timestamp.before.max.ms",
        has_effect=True,
    ),
    config(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Who sets a record's timestamp: the producer (CreateTime), or the broker when it appends "
        "the record (LogAppendTime).",
        "log.message.timestamp.type",
        has_effect=True,
    ),
    config(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        between(0, 1),
        "Share of a log that must be new since the last compaction before it is compacted again.",
        "log.cleaner.min.cleanable.ratio",
        has_effect=True,
    ),
    config(
        "min.compaction.lag.ms",
        _LONG,
        0,
        at_least(0),
        "Shortest time that a record stays in the log before compaction may remove it.",
        "log.cleaner.min.compaction.lag.ms",
        has_effect=True,
    ),
    config(
        "min.insync.replicas",
        _INT,
        1,
        at_least(1),
        "Replicas that must have a record before acks=all is answered. Here every acknowledged "
        "record is a row in ClickHouse; replication is configured in ClickHouse.",
        "min.insync.replicas",
    ),
    config(
        "preallocate",
        _BOOLEAN,
        False,
        anything,
        "Whether a new segment file is created at its full size.",
        "log.preallocate",
    ),
    config(
        "remote.log.copy.disable",
        _BOOLEAN,
        False,
        anything,
        "Whether records are no longer copied to tiered storage.",
    ),
    config(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        False,
        anything,
        "Whether turning tiered storage off deletes the records in it.",
    ),
    config(
        "remote.storage.enable",
        _BOOLEAN,
        False,
        _not_true,
        "Tiered storage for the topic. This broker has none: ClickHouse tiers its own disks.",
    ),
    config(
        "retention.bytes",
        _LONG,
        -1,
        anything,
        "Bytes of keys and values that a partition keeps; beyond them its oldest records are "
        "deleted. -1 for no limit.",
        "log.retention.bytes",
        has_effect=True,
    ),
    config(
        "retention.ms",
        _LONG,
        7 * DAY_MS,
        at_least(-1),
        "Age, by its timestamp, at which a record is deleted; -1 for never.",
        "log.retention.ms",
        has_effect=True,
    ),
    config(
        "segment.bytes",
        _INT,
        1024**3,
        at_least(1024**2),
        "Size of a segment file. This broker has no segment files.",
        "log.segment.bytes",
    ),
    config(
        "segment.index.bytes",
        _INT,
        10 * 1024**2,
        at_least(4),
        "Size of a segment's offset index. This broker has no segment files.",
        "log.index.size.max.bytes",
    ),
    config(
        "segment.jitter.ms",
        _LONG,
        0,
        at_least(0),
        "Random time by which a segment ends early. This broker has no segment files.",
        "log.roll.jitter.ms",
    ),
    config(
        "segment.ms",
        _LONG,
        7 * DAY_MS,
        at_least(1),
        "Age at which a segment ends. This broker has no segment files.",
        "log.roll.ms",
    ),
    config(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        anything,
        "Whether a replica that lags may become the leader. Here every broker reads the same rows.",
        "unclean.leader.election.enable",
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigDefinition] = MappingProxyType({row.name: row for row in _TABLE})
"""By name, in alphabetical order."""


def check(configs: Mapping[str, str]) -> None:
    """Raises `InvalidConfig`, with a sentence, if a topic may not have these overrides together."""
    values: dict[str, Value] = {}
    for name, text in configs.items():
        known = TOPIC_CONFIGS.get(name)
        if known is None:
            raise InvalidConfig(f"There is no topic config with the name {name!r}.")
        values[name] = known.parse(text)
    shortest = values.get("min.compaction.lag.ms", 0)
    longest = values.get("max.compaction.lag.ms", _INT64)
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({shortest}) must not be larger than "
            f"max.compaction.lag.ms ({longest})."
        )
