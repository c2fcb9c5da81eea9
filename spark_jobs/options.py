"""The options of the data source: the names, the JSON and the rules of Spark's Kafka source.

A wrong option is an error in one sentence, raised here before any server is asked. Options for
Kafka's clients (`kafka.*` and the like) mean nothing to SQL and are ignored, so that a job can be
moved over by changing the format. Any other unknown option is an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brokerhouse.common.environment import ENV_PREFIX
from brokerhouse.spark_jobs.sql_client import SqlCredentials

TopicPartition = tuple[str, int]

LATEST, EARLIEST = -1, -2

COLUMNS: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
"""The schema of Spark's Kafka source with `includeHeaders`."""

_WHICH = ("subscribe", "subscribePattern", "assign")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_KNOWN = {
    name.lower(): name
    for name in (
        *_WHICH,
        *_BATCH_ONLY,
        "servers",
        "user",
        "password",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "isolation",
        "columns",
        "includeHeaders",
        "maxOffsetsPerTrigger",
        "maxRecordsPerPartition",
        "minPartitions",
        "failOnDataLoss",
    )
}
_OF_KAFKA_CLIENTS = re.compile(r"kafka\.|groupidprefix$|fetchoffset\.|kafkaconsumer\.")
_MAX_INT64 = 2**63 - 1
_ISOLATION = {
    "committed": True,
    "read_committed": True,
    "uncommitted": False,
    "read_uncommitted": False,
}
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE = '{"topicA":{"0":1700000000000},"topicB":{"0":1700000000000}}'


class OptionError(ValueError):
    """An option has a wrong value; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """Where reading begins or ends: the same for every partition, or one number for each.

    Offsets may be LATEST or EARLIEST; with `by_time` the numbers are milliseconds since 1970.
    """

    everywhere: int | None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_time: bool = False

    @property
    def is_latest_somewhere(self) -> bool:
        """Whether it means another offset when it is resolved again later."""
        return not self.by_time and LATEST in (self.everywhere, *self.each.values())


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of one read."""

    servers: tuple[str, ...]
    login: SqlCredentials
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: frozenset[TopicPartition] | None
    starting: OffsetLimits
    ending: OffsetLimits
    latest_if_no_time: bool
    committed: bool
    max_offsets_per_trigger: int | None
    max_records_per_partition: int | None
    min_partitions: int | None
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Raises OptionError. `given`: names in any case."""
        options = _Given(given)
        if streaming:
            for name in _BATCH_ONLY:
                if name in options:
                    raise OptionError(f"{name} is not valid in streaming queries")
        which = [name for name in _WHICH if name in options]
        if len(which) != 1:
            raise OptionError("give one of the options subscribe, subscribePattern and assign")
        starting = options.limit("starting", LATEST if streaming else EARLIEST)
        ending = options.limit("ending", LATEST)
        if not streaming:
            _check_batch(starting, ending)
        strategy = options.word("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            servers=options.servers(),
            login=options.login(),
            topics=options.names("subscribe"),
            pattern=options.pattern(),
            assigned=options.assigned(),
            starting=starting,
            ending=ending,
            latest_if_no_time=strategy == "latest",
            committed=options.committed(),
            max_offsets_per_trigger=options.count("maxOffsetsPerTrigger"),
            max_records_per_partition=options.count("maxRecordsPerPartition"),
            min_partitions=options.count("minPartitions"),
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
        )


def shown(partitions: Iterable[TopicPartition]) -> str:
    """For messages: `topic-partition`, separated by commas."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"


def known_options() -> tuple[str, ...]:
    """The names of all options, spelled as in the documentation."""
    return tuple(_KNOWN.values())


def schema(given: Mapping[str, str]) -> StructType:
    """The columns to read: all of them, those of `columns`, or all without headers."""
    options = _Given(given)
    names = options.names("columns")
    if names is None:
        headers = options.boolean("includeHeaders", True)
        names = tuple(name for name in COLUMNS if headers or name != "headers")
    for name in names:
        if name not in COLUMNS:
            raise OptionError(
                f"column {name!r} does not exist: the columns are {', '.join(COLUMNS)}"
            )
    if len(set(names)) < len(names):
        raise OptionError(f"columns names a column twice: {','.join(names)}")
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(wanted: StructType) -> None:
    """A schema given by hand may leave columns out, but not change a column."""
    for one in wanted.fields:
        if COLUMNS.get(one.name) != one.dataType:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
            raise OptionError(
                f"{one.name} {one.dataType.simpleString()} is not among the columns: {known}"
            )


class _Given:
    """The options as text, and how each kind of option is parsed."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in given.items()}
        for name in self._texts:
            if name not in _KNOWN and not _OF_KAFKA_CLIENTS.match(name):
                raise OptionError(
                    f"option {name} does not exist: the options are {', '.join(_KNOWN.values())}"
                )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        found = self._texts.get(name.lower())
        return None if found is None else found.strip()

    def servers(self) -> tuple[str, ...]:
        example = "servers should be like http://host:8123,http://other:8123"
        found = self.names("servers")
        if found is None:
            raise OptionError(f"{example}, but is missing")
        for url in found:
            try:
                parts = urlsplit(url)
                good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                good = False
            if not good or parts.path.strip("/") or parts.query or parts.fragment or "@" in url:
                raise OptionError(f"{example}, not {url!r}")
        return tuple(url.rstrip("/") for url in found)

    def login(self) -> SqlCredentials:
        user = self.text("user") or os.environ.get(ENV_PREFIX + "SQL_USER")
        password = self._texts.get("password")
        if password is None:
            password = os.environ.get(ENV_PREFIX + "SQL_PASSWORD", "")
        if user is None and "password" in self:
            raise OptionError("password is given without user")
        if ":" in (user or ""):
            raise OptionError(f"user cannot have a colon: {user!r}")
        return SqlCredentials(user, password if user is not None else "")

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise OptionError(f"{name} is empty: {text!r}")
        return found

    def pattern(self) -> str | None:
        text = self.text("subscribePattern")
        if text == "":
            raise OptionError("subscribePattern is empty")
        try:
            re.compile(text or "")
        except re.error as error:
            raise OptionError(
                f"subscribePattern {text!r} is not a regular expression: {error}"
            ) from error
        return text

    def assigned(self) -> frozenset[TopicPartition] | None:
        text = self.text("assign")
        if text is None:
            return None
        example = 'assign should be like {"topicA":[0,1],"topicB":[2]}'
        found = set()
        for topic, numbers in _json_object(text, example).items():
            if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
                raise OptionError(f"{example}, not {text!r}")
            found |= {(topic, number) for number in numbers}
        if not found:
            raise OptionError(f"assign is empty: {text!r}")
        return frozenset(found)

    def limit(self, which: str, default: int) -> OffsetLimits:
        """One time for all, else a time for each, else offsets; else the default."""
        name = f"{which}Timestamp"
        text = self.text(name)
        if text is not None:
            return OffsetLimits(_int64(name, text), by_time=True)
        name = f"{which}OffsetsByTimestamp"
        text = self.text(name)
        if text is not None:
            example = f"{name} should be like {_TIMES_EXAMPLE}"
            return OffsetLimits(None, _numbers(text, example, -_MAX_INT64 - 1), by_time=True)
        name = f"{which}Offsets"
        text = self.text(name)
        if text is None:
            return OffsetLimits(default)
        if text.lower() in ("earliest", "latest"):
            return OffsetLimits(EARLIEST if text.lower() == "earliest" else LATEST)
        example = f"{name} should be earliest, latest or like {_OFFSETS_EXAMPLE}"
        return OffsetLimits(None, _numbers(text, example, EARLIEST))

    def committed(self) -> bool:
        name = "isolation" if "isolation" in self else "kafka.isolation.level"
        return _ISOLATION[self.word(name, tuple(_ISOLATION), "committed")]

    def word(self, name: str, known: tuple[str, ...], default: str) -> str:
        word = (self.text(name) or default).lower()
        if word not in known:
            raise OptionError(f"{name} should be one of {', '.join(known)}, not {word!r}")
        return word

    def boolean(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        number = _int64(name, text)
        if number <= 0:
            raise OptionError(f"{name} should be positive, not {number}")
        return number


def _check_batch(starting: OffsetLimits, ending: OffsetLimits) -> None:
    """The rules of Spark's Kafka source for batches."""
    if starting.is_latest_somewhere:
        raise OptionError("startingOffsets cannot be latest in batch queries")
    if not ending.by_time and EARLIEST in (ending.everywhere, *ending.each.values()):
        raise OptionError("endingOffsets cannot be earliest in batch queries")
    if not (starting.each and ending.each and starting.by_time == ending.by_time):
        return
    if starting.each.keys() != ending.each.keys():
        raise OptionError(
            "startingOffsets and endingOffsets should name the same partitions, not"
            f" {shown(starting.each)} and {shown(ending.each)}"
        )
    for (topic, partition), start in starting.each.items():
        end = ending.each[topic, partition]
        if start > end >= 0:
            raise OptionError(
                f"partition {partition} of topic {topic} starts at {start}, after its end {end}"
            )


def _numbers(text: str, example: str, least: int) -> dict[TopicPartition, int]:
    found = {}
    for topic, numbers in _json_object(text, example).items():
        if not isinstance(numbers, dict):
            raise OptionError(f"{example}, not {text!r}")
        for partition, number in numbers.items():
            digits = partition.isascii() and partition.isdigit() and len(partition) < 10
            if not digits or type(number) is not int or not least <= number <= _MAX_INT64:
                raise OptionError(f"{example}, not {text!r}")
            found[topic, int(partition)] = number
    return found


def _json_object(text: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{example}, not {text!r}")
    return found


def _int64(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -_MAX_INT64 <= int(text) <= _MAX_INT64:
        raise OptionError(f"{name} should be a number, not {text!r}")
    return int(text)


def _is_partition(number: object) -> bool:
    return type(number) is int and 0 <= number < 2**31
