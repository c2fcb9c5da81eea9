"""Kafka error codes and the exceptions that carry them.

A handler raises one of these where the fact is known; it becomes a response in one place
(`broker/api/` for a partition or topic, `broker/net/connection.py` for a whole request).
Codes and names are Kafka's (https://kafka.apache.org/protocol#protocol_error_codes); only those
that this broker answers with are listed. Kafka's name of an error stands beside its code. To find
where the broker raises an error, search for its class: `git grep NotLeaderOrFollower`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import ClassVar

_WORD = re.compile(r"(?<!^)(?=[A-Z])")
"""Where a word of a class name begins, but the first."""


class KafkaError(Exception):
    """An error that a client is answered with. `str(error)` is a sentence for a person."""

    code: ClassVar[int] = -1

    @property
    def message(self) -> str:
        return str(self) or type(self).__name__


class UnknownServerError(KafkaError):
    """A failure that has no code of its own; the broker's log has the cause."""

    code = -1  # UNKNOWN_SERVER_ERROR


class OffsetOutOfRange(KafkaError):
    code = 1  # OFFSET_OUT_OF_RANGE


class CorruptMessage(KafkaError):
    """A record batch whose framing, size or CRC is wrong."""

    code = 2  # CORRUPT_MESSAGE


class UnknownTopicOrPartition(KafkaError):
    code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(KafkaError):
    code = 5  # LEADER_NOT_AVAILABLE


class NotLeaderOrFollower(KafkaError):
    code = 6  # NOT_LEADER_OR_FOLLOWER


class RequestTimedOut(KafkaError):
    """The request may have been carried out, or may still be."""

    code = 7  # REQUEST_TIMED_OUT


class ReplicaNotAvailable(KafkaError):
    """The broker that was asked does not lead the partition."""

    code = 9  # REPLICA_NOT_AVAILABLE


class MessageTooLarge(KafkaError):
    code = 10  # MESSAGE_TOO_LARGE


class OffsetMetadataTooLarge(KafkaError):
    code = 12  # OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgress(KafkaError):
    """The coordinator is not ready yet: the client retries."""

    code = 14  # COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailable(KafkaError):
    code = 15  # COORDINATOR_NOT_AVAILABLE


class NotCoordinator(KafkaError):
    code = 16  # NOT_COORDINATOR


class InvalidTopic(KafkaError):
    code = 17  # INVALID_TOPIC_EXCEPTION


class NotEnoughReplicas(KafkaError):
    """For producers that do not know CONCURRENT_TRANSACTIONS: they send the batch again."""

    code = 19  # NOT_ENOUGH_REPLICAS


class InvalidRequiredAcks(KafkaError):
    code = 21  # INVALID_REQUIRED_ACKS


class IllegalGeneration(KafkaError):
    code = 22  # ILLEGAL_GENERATION


class InconsistentGroupProtocol(KafkaError):
    code = 23  # INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupId(KafkaError):
    code = 24  # INVALID_GROUP_ID


class UnknownMemberId(KafkaError):
    code = 25  # UNKNOWN_MEMBER_ID


class InvalidSessionTimeout(KafkaError):
    code = 26  # INVALID_SESSION_TIMEOUT


class RebalanceInProgress(KafkaError):
    code = 27  # REBALANCE_IN_PROGRESS


class TopicAuthorizationFailed(KafkaError):
    code = 29  # TOPIC_AUTHORIZATION_FAILED


class InvalidTimestamp(KafkaError):
    code = 32  # INVALID_TIMESTAMP


class UnsupportedSaslMechanism(KafkaError):
    code = 33  # UNSUPPORTED_SASL_MECHANISM


class UnsupportedVersion(KafkaError):
    code = 35  # UNSUPPORTED_VERSION


class TopicAlreadyExists(KafkaError):
    code = 36  # TOPIC_ALREADY_EXISTS


class InvalidPartitions(KafkaError):
    code = 37  # INVALID_PARTITIONS


class InvalidReplicationFactor(KafkaError):
    code = 38  # INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(KafkaError):
    code = 39  # INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(KafkaError):
    code = 40  # INVALID_CONFIG


class InvalidRequest(KafkaError):
    code = 42  # INVALID_REQUEST


class UnsupportedForMessageFormat(KafkaError):
    """A record batch older than format v2, which Kafka 4 no longer accepts (KIP-724)."""

    code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class PolicyViolation(KafkaError):
    code = 44  # POLICY_VIOLATION


class OutOfOrderSequenceNumber(KafkaError):
    code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(KafkaError):
    code = 47  # INVALID_PRODUCER_EPOCH


class InvalidTxnState(KafkaError):
    code = 48  # INVALID_TXN_STATE


class InvalidProducerIdMapping(KafkaError):
    code = 49  # INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeout(KafkaError):
    code = 50  # INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactions(KafkaError):
    """The transaction before is still being ended; the client asks again."""

    code = 51  # CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFenced(KafkaError):
    """The marker of a coordinator that has a successor."""

    code = 52  # TRANSACTION_COORDINATOR_FENCED


class SecurityDisabled(KafkaError):
    """No authorizer is configured."""

    code = 54  # SECURITY_DISABLED


class OperationNotAttempted(KafkaError):
    code = 55  # OPERATION_NOT_ATTEMPTED


class KafkaStorageError(KafkaError):
    """The engine refused an insert (because the disk is full, say); nothing of it was stored."""

    code = 56  # KAFKA_STORAGE_ERROR


class LogDirNotFound(KafkaError):
    code = 57  # LOG_DIR_NOT_FOUND


class UnknownProducerId(KafkaError):
    """The sequences of the producer cannot be continued: it needs another epoch."""

    code = 59  # UNKNOWN_PRODUCER_ID


class NonEmptyGroup(KafkaError):
    code = 68  # NON_EMPTY_GROUP


class GroupIdNotFound(KafkaError):
    code = 69  # GROUP_ID_NOT_FOUND


class FetchSessionIdNotFound(KafkaError):
    code = 70  # FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(KafkaError):
    code = 71  # INVALID_FETCH_SESSION_EPOCH


class FencedLeaderEpoch(KafkaError):
    code = 74  # FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(KafkaError):
    code = 75  # UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionType(KafkaError):
    code = 76  # UNSUPPORTED_COMPRESSION_TYPE


class MemberIdRequired(KafkaError):
    code = 79  # MEMBER_ID_REQUIRED


class PreferredLeaderNotAvailable(KafkaError):
    """The partition has no leader at the moment."""

    code = 80  # PREFERRED_LEADER_NOT_AVAILABLE


class GroupMaxSizeReached(KafkaError):
    """The group is full, or the memory for all groups is (`groups_max_bytes`)."""

    code = 81  # GROUP_MAX_SIZE_REACHED


class FencedInstanceId(KafkaError):
    """Another member has joined with the same group instance id (KIP-345)."""

    code = 82  # FENCED_INSTANCE_ID


class ElectionNotNeeded(KafkaError):
    code = 84  # ELECTION_NOT_NEEDED


class NoReassignmentInProgress(KafkaError):
    code = 85  # NO_REASSIGNMENT_IN_PROGRESS


class GroupSubscribedToTopic(KafkaError):
    """Offsets of a topic that an active member still reads cannot be deleted."""

    code = 86  # GROUP_SUBSCRIBED_TO_TOPIC


class InvalidRecord(KafkaError):
    """A record batch with a valid header and CRC, but with invalid records."""

    code = 87  # INVALID_RECORD


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
        return f"{self.count} records have no key. A compacted topic needs one in each record."


class UnstableOffsetCommit(KafkaError):
    code = 88  # UNSTABLE_OFFSET_COMMIT


class ProducerFenced(KafkaError):
    code = 90  # PRODUCER_FENCED


class ResourceNotFound(KafkaError):
    code = 91  # RESOURCE_NOT_FOUND


class DuplicateResource(KafkaError):
    code = 92  # DUPLICATE_RESOURCE


class InvalidUpdateVersion(KafkaError):
    """The feature does not exist, or cannot be at this level."""

    code = 95  # INVALID_UPDATE_VERSION


class UnknownTopicId(KafkaError):
    code = 100  # UNKNOWN_TOPIC_ID


class BrokerIdNotRegistered(KafkaError):
    code = 102  # BROKER_ID_NOT_REGISTERED


class TransactionalIdNotFound(KafkaError):
    code = 105  # TRANSACTIONAL_ID_NOT_FOUND


class FetchSessionTopicIdError(KafkaError):
    code = 106  # FETCH_SESSION_TOPIC_ID_ERROR


class UnsupportedEndpointType(KafkaError):
    code = 115  # UNSUPPORTED_ENDPOINT_TYPE


class MismatchedEndpointType(KafkaError):
    code = 114  # MISMATCHED_ENDPOINT_TYPE


class TransactionAbortable(KafkaError):
    """The transaction cannot be committed; the client aborts it and goes on (KIP-890)."""

    code = 120  # TRANSACTION_ABORTABLE


class InvalidRegularExpression(KafkaError):
    code = 128  # INVALID_REGULAR_EXPRESSION


def error_with_code(code: int, message: str) -> KafkaError:
    """The error that another broker answered with. `UnknownServerError` for a code not listed."""
    return _by_code().get(code, UnknownServerError)(message)


def error_name(code: int) -> str:
    """Kafka's name of an error, such as NOT_LEADER_OR_FOLLOWER; its number if it is not listed."""
    found = _by_code().get(code)
    if found is None:
        return str(code)
    return (
        "INVALID_TOPIC_EXCEPTION"
        if found is InvalidTopic
        else _WORD.sub("_", found.__name__).upper()
    )


@cache
def _by_code() -> Mapping[int, type[KafkaError]]:
    return {one.code: one for one in KafkaError.__subclasses__()}
