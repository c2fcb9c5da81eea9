"""Kafka error codes and the exceptions that carry them.

A handler raises one of these where the fact is known; it becomes a response in one place
(`broker/api/` for a partition or topic, `broker/connection.py` for a whole request).
Codes and names are Kafka's (https://kafka.apache.org/protocol#protocol_error_codes); only those
that this broker answers with are listed.
"""

from __future__ import annotations

from typing import ClassVar


class KafkaError(Exception):
    """An error that a client is answered with. `str(error)` is a sentence for a person."""

    code: ClassVar[int] = -1

    @property
    def message(self) -> str:
        return str(self) or type(self).__name__


class UnknownServerError(KafkaError):
    """A failure that has no code of its own; the broker's log has the cause."""

    code = -1


class OffsetOutOfRange(KafkaError):
    code = 1


class CorruptMessage(KafkaError):
    """A record batch whose framing, size or CRC is wrong."""

    code = 2


class UnknownTopicOrPartition(KafkaError):
    code = 3


class LeaderNotAvailable(KafkaError):
    code = 5


class NotLeaderOrFollower(KafkaError):
    code = 6


class RequestTimedOut(KafkaError):
    """The request may have been carried out, or may still be."""

    code = 7


class MessageTooLarge(KafkaError):
    code = 10


class OffsetMetadataTooLarge(KafkaError):
    code = 12


class CoordinatorLoadInProgress(KafkaError):
    """The coordinator is not ready yet: the client retries."""

    code = 14


class CoordinatorNotAvailable(KafkaError):
    code = 15


class NotCoordinator(KafkaError):
    code = 16


class InvalidTopic(KafkaError):
    code = 17


class InvalidRequiredAcks(KafkaError):
    code = 21


class IllegalGeneration(KafkaError):
    code = 22


class InconsistentGroupProtocol(KafkaError):
    code = 23


class InvalidGroupId(KafkaError):
    code = 24


class UnknownMemberId(KafkaError):
    code = 25


class InvalidSessionTimeout(KafkaError):
    code = 26


class RebalanceInProgress(KafkaError):
    code = 27


class InvalidTimestamp(KafkaError):
    code = 32


class UnsupportedVersion(KafkaError):
    code = 35


class TopicAlreadyExists(KafkaError):
    code = 36


class InvalidPartitions(KafkaError):
    code = 37


class InvalidReplicationFactor(KafkaError):
    code = 38


class InvalidReplicaAssignment(KafkaError):
    code = 39


class InvalidConfig(KafkaError):
    code = 40


class InvalidRequest(KafkaError):
    code = 42


class UnsupportedForMessageFormat(KafkaError):
    """A record batch older than format v2, which Kafka 4 no longer accepts (KIP-724)."""

    code = 43


class PolicyViolation(KafkaError):
    code = 44


class OutOfOrderSequenceNumber(KafkaError):
    code = 45


class InvalidProducerEpoch(KafkaError):
    code = 47


class KafkaStorageError(KafkaError):
    """The engine refused an insert (because the disk is full, say); nothing of it was stored."""

    code = 56


class NonEmptyGroup(KafkaError):
    code = 68


class GroupIdNotFound(KafkaError):
    code = 69


class FetchSessionIdNotFound(KafkaError):
    code = 70


class InvalidFetchSessionEpoch(KafkaError):
    code = 71


class FencedLeaderEpoch(KafkaError):
    code = 74


class UnknownLeaderEpoch(KafkaError):
    code = 75


class UnsupportedCompressionType(KafkaError):
    code = 76


class MemberIdRequired(KafkaError):
    code = 79


class GroupMaxSizeReached(KafkaError):
    """The group is full, or the memory for all groups is (`groups_max_bytes`)."""

    code = 81


class FencedInstanceId(KafkaError):
    """Another member has joined with the same group instance id (KIP-345)."""

    code = 82


class GroupSubscribedToTopic(KafkaError):
    """Offsets of a topic that an active member still reads cannot be deleted."""

    code = 86


class InvalidRecord(KafkaError):
    """A record batch with a valid header and CRC, but with invalid records."""

    code = 87


class RecordsWithoutKey(InvalidRecord):
    """Records without a key for a compacted topic; nothing of their batch is stored.

    `indexes` are their positions in the batch, only the first if there are many; `count` is the
    number of all of them.
    """

    def __init__(self, indexes: tuple[int, ...], count: int) -> None:
        super().__init__(indexes, count)
        self.indexes = indexes
        self.count = count

    def __str__(self) -> str:
        return f"{self.count} records have no key, and a compacted topic needs one in each"


class UnknownTopicId(KafkaError):
    code = 100


class FetchSessionTopicIdError(KafkaError):
    code = 106


class TransactionalIdAuthorizationFailed(KafkaError):
    code = 53


class UnsupportedEndpointType(KafkaError):
    code = 115


class MismatchedEndpointType(KafkaError):
    code = 114
