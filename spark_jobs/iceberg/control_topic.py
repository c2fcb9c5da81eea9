"""The control topic: events are sent to it and read from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from brokerhouse.spark_jobs.iceberg.commit_buffer import Place
from brokerhouse.spark_jobs.iceberg.events import Event, MalformedEvent, decoded

ANSWER_LIMIT_S = 30.0
_BATCH = 500
_OFFSET_BEGINNING = -2


def client_options(kafka: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """`kafka`: what the user gave. Names in `more` have _ for a dot."""
    fixed = {name.replace("_", "."): value for name, value in more.items()}
    return {"log_level": 0, **kafka, **fixed}


def make_topic(kafka: Mapping[str, str], name: str) -> None:
    """With one partition, if it is not there. Raises KafkaException."""
    admin = AdminClient(client_options(kafka))
    if name in admin.list_topics(timeout=ANSWER_LIMIT_S).topics:
        return
    made = admin.create_topics([NewTopic(name, 1, config={"cleanup.policy": "delete"})])[name]
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


class ControlReader:
    """Reads committed events of one job. Raises KafkaException."""

    def __init__(self, kafka: Mapping[str, str], topic: str, group: str, owner: str) -> None:
        """`group`: the job, whose events are wanted. `owner`: the group whose offsets are used."""
        self._topic, self._group = topic, group
        self._consumer = Consumer(
            client_options(
                kafka,
                group_id=owner,
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_partition_eof=False,
            )
        )

    def begin_at_end(self) -> None:
        """Events that were sent before are not read."""
        places = []
        for place in self._partitions():
            _, end = self._consumer.get_watermark_offsets(place, ANSWER_LIMIT_S)
            places.append(TopicPartition(place.topic, place.partition, end))
        self._consumer.assign(places)

    def begin_at_stored(self) -> dict[int, int]:
        """Go on where the owner has stored, or at the beginning. Returns those offsets."""
        stored = self._consumer.committed(self._partitions(), ANSWER_LIMIT_S)
        for place in stored:
            if place.offset < 0:
                place.offset = _OFFSET_BEGINNING
        self._consumer.assign(stored)
        return {place.partition: max(place.offset, 0) for place in stored}

    def store(self, offsets: Mapping[int, int]) -> None:
        places = [TopicPartition(self._topic, *place) for place in offsets.items()]
        self._consumer.commit(offsets=places, asynchronous=False)

    def events(self, timeout_s: float = 0.0) -> Iterator[tuple[Place, Event | None]]:
        """What has come. None: a record that is no event of this job."""
        for message in self._consumer.consume(_BATCH, timeout_s):
            if (error := message.error()) is not None:
                if error.fatal():
                    raise KafkaException(error)
                continue
            yield Place(message.partition() or 0, message.offset() or 0), self._event(message)

    def close(self) -> None:
        self._consumer.close()

    def _event(self, message: Message) -> Event | None:
        try:
            group, event = decoded(message.value() or b"")
        except MalformedEvent as error:
            print(f"{self._topic} at {message.offset()}: {error}", file=sys.stderr)
            return None
        return event if group == self._group else None

    def _partitions(self) -> list[TopicPartition]:
        found = self._consumer.list_topics(self._topic, ANSWER_LIMIT_S).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return [TopicPartition(self._topic, number) for number in sorted(found.partitions)]
