"""The topic `__consumer_offsets`: which partition has which groups; the partitions being read."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.offsets_topic.offsets_log import OffsetsLog
from brokerhouse.broker.offsets_topic.records import group_record, offset_record
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.messages import (
    OFFSETS_TOPIC,
    OFFSETS_TOPIC_ID,
    CommittedOffset,
    GroupRecord,
    TopicPartition,
)
from brokerhouse.protocol.errors import (
    CoordinatorLoadInProgress,
    KafkaError,
    NotCoordinator,
    NotLeaderOrFollower,
)

_UNREAD_S = 600.0
_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""Those that Kafka gives the topic."""


class OffsetsTopic:
    """`Follower` of the coordinators whose groups are in partitions that are read."""

    def __init__(self, groups: SlotGroups, settings: Settings) -> None:
        self.topic = Topic(
            OFFSETS_TOPIC,
            OFFSETS_TOPIC_ID,
            groups.partitions,
            _CONFIGS,
            effective(_CONFIGS, settings),
        )
        self._groups = groups
        self._logs: dict[int, OffsetsLog] = {}
        self._read_s: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def named(self, key: str | UUID) -> Topic | None:
        """This topic, if the key is its name or its id."""
        return self.topic if key in (OFFSETS_TOPIC, OFFSETS_TOPIC_ID) else None

    async def open(self, partition: int) -> None:
        """Returns when the partition can be read, or cannot: then `log_of` says why."""
        try:
            await self._current(partition).filled
        except KafkaError:
            return

    def is_open(self, partition: int) -> bool:
        try:
            return self._current(partition).filled.done()
        except KafkaError:
            return False

    def log_of(self, partition: int) -> PartitionLog:
        """Raises `UnknownTopicOrPartition` and `NotLeaderOrFollower`."""
        current = self._current(partition)
        if not current.filled.done():
            raise NotLeaderOrFollower(f"The broker is still reading {current.log}.")
        current.filled.result()
        return current.log

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in list(self._logs):
            self._drop(partition)

    # Follower

    def offset_changed(
        self, group_id: str, partition: TopicPartition, offset: CommittedOffset | None
    ) -> None:
        found = self._logs.get(self._groups.partition_of(group_id))
        if found is not None:
            found.follow(offset_record(group_id, partition, offset, wall_ms()))

    def group_changed(self, record: GroupRecord) -> None:
        found = self._logs.get(self._groups.partition_of(record.group_id))
        if found is not None:
            found.follow(group_record(record))

    def _current(self, partition: int) -> OffsetsLog:
        """The log of a partition, made if there is none. Raises as `log_of`."""
        self._groups.check_partition(partition)
        try:
            coordinator, epoch = self._groups.coordinator_at(partition)
        except (NotCoordinator, CoordinatorLoadInProgress) as error:
            self._drop(partition)
            raise NotLeaderOrFollower(str(error)) from error
        found = self._logs.get(partition)
        if found is None or found.coordinator is not coordinator or found.log.leader_epoch != epoch:
            self._drop(partition)
            found = self._logs[partition] = OffsetsLog(
                self.topic,
                partition,
                epoch,
                coordinator,
                lambda group_id: self._groups.partition_of(group_id) == partition,
            )
            coordinator.offsets.follower = coordinator.cache.follower = self
            if self._timer is None:
                self._drop_unread_later()
        self._read_s[partition] = time.monotonic()
        return found

    def _drop(self, partition: int) -> None:
        self._read_s.pop(partition, None)
        dropped = self._logs.pop(partition, None)
        if dropped is not None:
            dropped.close()

    def _drop_unread_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_UNREAD_S, self._drop_unread)

    def _drop_unread(self) -> None:
        before_s = time.monotonic() - _UNREAD_S
        for partition in [one for one, read_s in self._read_s.items() if read_s < before_s]:
            self._drop(partition)
        self._timer = None
        if self._logs:
            self._drop_unread_later()
