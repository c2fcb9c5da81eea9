"""Topic configs and topic names: which exist, which values are allowed, which apply."""

import pytest

from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import (
    EffectiveTopicConfig,
    default_text,
    effective,
)
from brokerhouse.broker.topics import topic_names
from brokerhouse.protocol.errors import InvalidConfig, InvalidTopic
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS, check

INT64_MAX = 2**63 - 1


def test_every_default_is_a_valid_value() -> None:
    check({name: config.default for name, config in TOPIC_CONFIGS.items()})


def test_configs_are_listed_by_name() -> None:
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", " compact , delete "),
        ("cleanup.policy", ""),
        ("compression.gzip.level", "-1"),
        ("compression.gzip.level", "9"),
        ("compression.type", "zstd"),
        ("compression.zstd.level", "-131072"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:1"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("preallocate", "TRUE"),
        ("retention.bytes", "-100"),
        ("retention.ms", "-1"),
        ("retention.ms", "+5"),
        ("retention.ms", str(INT64_MAX)),
        ("segment.bytes", str(1024**2)),
    ],
)
def test_a_config_value_that_kafka_accepts_is_accepted(name: str, value: str) -> None:
    check({name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cleanup.policy", "forget", "comma-separated list of compact, delete"),
        ("compression.gzip.level", "0", "from 1 to 9"),
        ("compression.gzip.level", "10", "from 1 to 9"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.type", "brotli", "one of uncompressed"),
        ("leader.replication.throttled.replicas", "0-1", "PARTITION:BROKER"),
        ("max.message.bytes", "-1", "at least 0"),
        ("max.message.bytes", str(2**31), "at most 32 bits"),
        ("message.timestamp.type", "createtime", "one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.5", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "from 0 to 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("preallocate", "yes", "true or false"),
        ("remote.storage.enable", "true", "no tiered storage"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "1e3", "at most 64 bits"),
        ("retention.ms", "٣", "at most 64 bits"),
        ("retention.ms", "", "at most 64 bits"),
        ("retention.ms", str(2**63), "at most 64 bits"),
        ("segment.bytes", "1", "at least 1048576"),
    ],
)
def test_a_config_value_that_kafka_refuses_is_refused_with_the_valid_values(
    name: str, value: str, said: str
) -> None:
    with pytest.raises(InvalidConfig, match=name) as refusal:
        check({name: value})
    assert said in refusal.value.message


def test_a_config_that_kafka_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no topic config with the name"):
        check({"retention.days": "7"})


def test_compaction_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="must not be larger than"):
        check({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_a_topic_without_overrides_follows_the_defaults_and_the_settings() -> None:
    applies = effective({}, Settings(message_max_bytes=5000, retention_ms=-1))
    assert applies == EffectiveTopicConfig(
        max_message_bytes=5000,
        message_timestamp_type="CreateTime",
        timestamp_before_max_ms=INT64_MAX,
        timestamp_after_max_ms=3_600_000,
        cleanup_policy=frozenset({"delete"}),
        compression_type="producer",
        min_insync_replicas=1,
        retention_ms=-1,
        retention_bytes=-1,
        delete_retention_ms=86_400_000,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=INT64_MAX,
    )


def test_overrides_apply_over_the_settings() -> None:
    applies = effective(
        {
            "max.message.bytes": "17",
            "message.timestamp.type": " LogAppendTime ",
            "cleanup.policy": "delete, compact",
            "retention.ms": "-1",
        },
        Settings(message_max_bytes=5000),
    )
    assert applies.max_message_bytes == 17
    assert applies.message_timestamp_type == "LogAppendTime"
    assert applies.cleanup_policy == {"compact", "delete"}
    assert applies.retention_ms == -1


def test_effective_configs_are_parsed_once() -> None:
    settings = Settings()
    assert effective({"retention.ms": "1"}, settings) is effective({"retention.ms": "1"}, settings)


def test_a_default_is_the_setting_of_the_broker_or_that_of_kafka() -> None:
    settings = Settings(message_max_bytes=5000)
    assert default_text(TOPIC_CONFIGS["max.message.bytes"], settings) == "5000"
    assert default_text(TOPIC_CONFIGS["retention.ms"], settings) == "604800000"


def test_a_config_without_effect_is_documented_as_such() -> None:
    assert "it has no effect in this broker" in TOPIC_CONFIGS["segment.ms"].documentation
    assert "no effect" not in TOPIC_CONFIGS["max.message.bytes"].documentation


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a" * 249, "__consumer_offsets"])
def test_a_topic_name_that_kafka_accepts_is_accepted(name: str) -> None:
    topic_names.check(name)
    assert topic_names.is_valid(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "a" * 250, "\x00"])
def test_a_topic_name_that_kafka_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        topic_names.check(name)
    assert not topic_names.is_valid(name)


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    assert topic_names.collision_key("a.b_c") == topic_names.collision_key("a_b.c")
    assert topic_names.collision_key("a.b") != topic_names.collision_key("a.c")
    assert topic_names.collision_key("ab") is None
