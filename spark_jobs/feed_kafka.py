"""Topics and offsets of any Kafka, asked by the Kafka client that Spark's source brings along.

So the options of the source hold here too: security, for example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from brokerhouse.spark_jobs.job import JobFailure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TopicPartition = tuple[str, int]
SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
START_OF_LOG = "earliest"
_CLIENT = "org.apache.kafka.clients.admin"


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """`options`: of Kafka's clients. `ids`: of the topics that are read."""

    options: Mapping[str, str]
    ids: Mapping[str, str]

    def stream(
        self, spark: SparkSession, begin: Mapping[TopicPartition, int], max_records: int
    ) -> DataFrame:
        """All that is committed from there on, and all of partitions that are made later."""
        return (
            spark.readStream.format("kafka")
            .options(**self._source_options, subscribe=",".join(self.ids))
            .options(startingOffsets=_as_json(begin), maxOffsetsPerTrigger=str(max_records))
            .load()
        )

    def ranges(
        self,
        spark: SparkSession,
        begin: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
    ) -> DataFrame:
        """The committed records of ranges of offsets."""
        assigned: dict[str, list[int]] = {}
        for topic, partition in begin:
            assigned.setdefault(topic, []).append(partition)
        return (
            spark.read.format("kafka")
            .options(**self._source_options, assign=json.dumps(assigned))
            .options(startingOffsets=_as_json(begin), endingOffsets=_as_json(end))
            .load()
        )

    @property
    def _source_options(self) -> dict[str, str]:
        named = {f"kafka.{name}": value for name, value in self.options.items()}
        return {**named, "kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def find_topics(spark: SparkSession, options: Mapping[str, str], pattern: str) -> KafkaTopics:
    """The topics whose names match. Raises JobFailure."""
    with _Admin(spark, options) as admin:
        names = [name for name in admin.topics() if re.search(pattern, name)]
        if not names:
            raise JobFailure("no topic matches --topic")
        return KafkaTopics(options, admin.ids(sorted(names)))


def offsets_at(spark: SparkSession, topics: KafkaTopics, place: str) -> dict[TopicPartition, int]:
    """Where each partition begins. `place`: earliest, latest, or milliseconds since 1970.

    Raises JobFailure.
    """
    with _Admin(spark, topics.options) as admin:
        return admin.offsets(list(topics.ids), place)


class _Admin:
    """Kafka's AdminClient, in the Java of Spark's driver."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._java = jvm.java
        self._client = jvm
        for step in _CLIENT.split("."):
            self._client = getattr(self._client, step)
        self._common = jvm.org.apache.kafka.common
        self._options = self._java.util.HashMap()
        for name, value in options.items():
            self._options.put(name, value)

    def __enter__(self) -> _Admin:
        self._admin = self._asked(lambda: self._client.AdminClient.create(self._options))
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def topics(self) -> list[str]:
        return [str(name) for name in self._asked(lambda: self._admin.listTopics().names().get())]

    def ids(self, names: Sequence[str]) -> dict[str, str]:
        found = self._described(names)
        return {name: str(_uuid(name, found.get(name).topicId())) for name in names}

    def offsets(self, names: Sequence[str], place: str) -> dict[TopicPartition, int]:
        places = [
            (name, int(one.partition()))
            for name, topic in self._described(names).items()
            for one in topic.partitions()
        ]
        found = self._offsets(places, place)
        if place.isdigit():
            # Nothing is that young: the partition begins with what comes next.
            ends = self._offsets([one for one in places if found[one] < 0], "latest")
            found.update(ends)
        return found

    def _offsets(self, places: Sequence[TopicPartition], place: str) -> dict[TopicPartition, int]:
        kind = self._client.OffsetSpec
        spec = kind.forTimestamp(int(place)) if place.isdigit() else getattr(kind, place)()
        asked = self._java.util.HashMap()
        keys = {one: self._common.TopicPartition(*one) for one in places}
        for key in keys.values():
            asked.put(key, spec)
        committed = self._common.IsolationLevel.READ_COMMITTED
        options = self._client.ListOffsetsOptions(committed)
        found = self._asked(lambda: self._admin.listOffsets(asked, options).all().get())
        return {one: int(found.get(key).offset()) for one, key in keys.items()}

    def _described(self, names: Sequence[str]) -> Any:
        asked = self._java.util.ArrayList()
        for name in names:
            asked.add(name)
        return self._asked(lambda: self._admin.describeTopics(asked).allTopicNames().get())

    def _asked(self, ask: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return ask()
        except Py4JJavaError as error:
            raise JobFailure(f"Kafka does not answer: {error.java_exception}") from error


def _uuid(name: str, found: Any) -> UUID:
    """Old brokers give topics no ids: there a topic is known by its name."""
    high, low = found.getMostSignificantBits(), found.getLeastSignificantBits()
    number = ((high % (1 << 64)) << 64) | (low % (1 << 64))
    return UUID(int=number) if number else uuid5(NAMESPACE_URL, f"kafka:{name}")


def _as_json(offsets: Mapping[TopicPartition, int]) -> str:
    of_topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        of_topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(of_topics)
