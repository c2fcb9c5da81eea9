"""Batches of idempotent producers that were refused for now, and later batches sent after them.

A client may have several batches of a partition in flight when it learns that the first was
refused, for example with NOT_LEADER_OR_FOLLOWER while a slot changes hands. If the partition can be
written again before the second batch arrives, that batch leaves a gap, and Kafka answers
OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch, under which it sends again every
unacknowledged batch of every partition. A batch that is stored on one of them, but whose answer was
lost together with the leader, is then stored a second time. So a batch behind a refused one is
refused with the same error, and the client sends both again in their order, under the epoch that
finds duplicates.

A log that does not know the producer sees no gap, and would accept a later batch as the first. So
`tell` passes on to a new log which batch was refused before the log was opened.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producers import comes_after
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol._batches import BatchHeader
from brokerhouse.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    RequestTimedOut,
)

log = logging.getLogger(__name__)

KEPT = 100_000
_SENT_AGAIN_S = 60.0
"""A client that continues sends a refused batch again within this time, to any leader."""
_FOR_NOW = (NotLeaderOrFollower, KafkaStorageError, RequestTimedOut)

_Key: TypeAlias = tuple[UUID, int, int]
"""Topic id, partition, producer id."""


@dataclass(frozen=True, slots=True)
class _RefusedBatch:
    epoch: int
    sequence: int
    error: KafkaError
    noted_s: float

    def is_before(self, header: BatchHeader) -> bool:
        return self.epoch == header.producer_epoch and comes_after(
            header.base_sequence, self.sequence
        )

    def is_after(self, header: BatchHeader) -> bool:
        """Also if it is of a later epoch."""
        return self.epoch > header.producer_epoch or (
            self.epoch == header.producer_epoch and comes_after(self.sequence, header.base_sequence)
        )


class RefusedBatches:
    """The first batch that a producer has to send again, by partition."""

    def __init__(self) -> None:
        self._first: OrderedDict[_Key, _RefusedBatch] = OrderedDict()

    def note(self, topic_id: UUID, partition: int, header: BatchHeader, error: KafkaError) -> None:
        """Note that this batch was refused."""
        if header.producer_id >= 0 and isinstance(error, _FOR_NOW):
            self._note((topic_id, partition, header.producer_id), header, error)

    def note_stored(self, topic_id: UUID, partition: int, header: BatchHeader) -> None:
        """This batch is stored: forget the refusal, unless a later batch was refused."""
        if not self._first:
            return
        key = topic_id, partition, header.producer_id
        first = self._first.get(key)
        if first is not None and not first.is_after(header):
            del self._first[key]

    def before(self, topic_id: UUID, partition: int, header: BatchHeader) -> KafkaError | None:
        """The error of an earlier refused batch, if the client must resend that one first."""
        first = self._first.get((topic_id, partition, header.producer_id))
        if first is None or not first.is_before(header):
            return None
        return type(first.error)(
            f"Sequence {first.sequence} of producer {header.producer_id} must be sent before"
            f" {header.base_sequence}, and was refused: {first.error.message}"
        )

    def log_gap(self, partition: PartitionLog, header: BatchHeader, error: KafkaError) -> None:
        """A producer is told that its batch is out of order, which ends many: say why."""
        log.info(
            "a batch for %s in leader epoch %d is out of order: %s Stored: %s, refused: %s",
            partition,
            partition.leader_epoch,
            error,
            partition.producers.get(header.producer_id),
            partition.refused.get(header.producer_id),
            extra=counted(),
        )

    def tell(self, partition: PartitionLog, header: BatchHeader) -> None:
        """Tell a newly opened log which batch of this producer was refused before."""
        if not self._first:
            return
        first = self._first.get((partition.topic_id, partition.partition, header.producer_id))
        if (
            first is not None
            and first.epoch == header.producer_epoch
            and time.monotonic() - first.noted_s < _SENT_AGAIN_S
        ):
            partition.note_refused_from(header.producer_id, first.epoch, first.sequence)

    def _note(self, key: _Key, header: BatchHeader, error: KafkaError) -> None:
        first = self._first.get(key)
        if first is not None and first.epoch > header.producer_epoch:
            return
        if first is not None and first.is_before(header):
            return
        # A copy: a traceback holds the batch.
        copy = type(error)(*error.args)
        self._first[key] = _RefusedBatch(
            header.producer_epoch, header.base_sequence, copy, time.monotonic()
        )
        if len(self._first) > KEPT:
            self._first.popitem(last=False)
