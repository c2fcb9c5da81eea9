"""How a query names one partition: conditions on the table's columns, and their parameters.

Both the name and the id of the topic are needed: rows are sorted by name, and a topic that was
deleted and created again has the same name and another id.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.storage.engine import Parameter

IS_PARTITION = (
    "topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
)

IS_IN_RANGE = f"{IS_PARTITION} AND offset >= {{first:Int64}} AND offset < {{end:Int64}}"


def parameters(topic: str, topic_id: UUID, partition: int) -> dict[str, Parameter]:
    """The parameters of `IS_PARTITION`."""
    return {"topic": topic, "topic_id": str(topic_id), "partition": partition}


class LogTopic(Protocol):
    @property
    def name(self) -> str: ...


class LogName(Protocol):
    """What names a log: `PartitionLog` does."""

    @property
    def topic(self) -> LogTopic: ...

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partition(self) -> int: ...


def log_parameters(partition: LogName) -> dict[str, Parameter]:
    """The parameters of `IS_PARTITION` for an open log."""
    return parameters(partition.topic.name, partition.topic_id, partition.partition)


def readable_range(partition: PartitionLog) -> dict[str, Parameter]:
    """The parameters of `IS_IN_RANGE` for the offsets that consumers can read."""
    return log_parameters(partition) | {
        "first": partition.log_start_offset,
        "end": partition.high_watermark,
    }
