"""Produce (0), versions 3 to 13: appends record batches to partitions.

    v3 only record batches of format v2; transactional ids; v5 the answer has the log start offset
    v7 zstd (KIP-110); v8 the answer names the records that are wrong (KIP-467); v9 flexible
    v12 a client may produce in a transaction without announcing the partition (KIP-890)
    v13 topics by id (KIP-516)

ApiVersions lists versions 0 to 2 as well, although none of them is answered. librdkafka has long
looked for them to find out what a broker can do, so Kafka 4 still lists them (KAFKA-18659).

Each partition of a request succeeds or fails by itself. The batches of a request are queued for the
log before this handler first waits: `broker/connection.py` relies on that to keep a producer's
order.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP,
INVALID_REQUIRED_ACKS, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, REQUEST_TIMED_OUT and
KAFKA_STORAGE_ERROR (ClickHouse). With acks=0 an error closes the connection, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from broker.api.context import Api, CloseConnection, RequestContext
from broker.api.topic_lookup import find_topic
from broker.log.block import Appended
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
from common.clock import wall_ms
from protocol._batches import BatchHeader, check_crc, parse_headers
from protocol.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RecordsWithoutKey,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from protocol.produce_body import StoredBatch, StoredTopic, produce_body

_ACKS = frozenset({-1, 0, 1})
_ZSTD = 4
_ZSTD_SINCE = 7
_TOPIC_IDS_SINCE = 13
_NO_TIMESTAMP = -1
_INT64_MAX = 2**63 - 1  # as a limit it allows every timestamp

_PartitionResponse: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError: TypeAlias = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
)


async def produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | bytes | None:
    # This keeps the order of requests: those that arrive meanwhile wait for the same logs.
    await ctx.broker.partitions.await_open(
        [
            (_key(ctx, topic), partition.index)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    )
    pending = [
        (topic, [(part.index, _queue(ctx, request, topic, part)) for part in topic.partition_data])
        for topic in request.topic_data
    ]
    answers = [
        (topic, [await _answer(ctx, index, outcome) for index, outcome in partitions])
        for topic, partitions in pending
    ]
    if request.acks == 0:
        _close_if_failed(answers)
        return None
    return _response(ctx.version, answers)


@dataclass(frozen=True, slots=True)
class _QueuedBatch:
    """A batch in the appender's queue."""

    partition: PartitionLog
    header: BatchHeader
    done: asyncio.Future[Appended]


_Outcome: TypeAlias = _QueuedBatch | KafkaError
_Answer: TypeAlias = StoredBatch | _PartitionResponse
_TopicAnswers: TypeAlias = tuple[ProduceRequest.TopicProduceData, list[_Answer]]


def _queue(
    ctx: RequestContext,
    request: ProduceRequest,
    topic_data: ProduceRequest.TopicProduceData,
    partition_data: ProduceRequest.TopicProduceData.PartitionProduceData,
) -> _Outcome:
    """Check one partition's batch and queue it."""
    refused = ctx.broker.refused_batches
    try:
        if request.acks not in _ACKS:
            raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {request.acks}")
        topic = find_topic(ctx, _key(ctx, topic_data))
        records = bytes(partition_data.records or b"")
        try:
            partition = ctx.broker.partitions.log_of(topic, partition_data.index)
        except NotLeaderOrFollower as error:
            with suppress(KafkaError):  # the leader will say what is wrong with the batch
                for header in parse_headers(records):
                    refused.note(topic.topic_id, partition_data.index, header, error)
            raise
        header = _check_batch(records, topic, ctx.version)
        refused.tell(partition, header)
        done = ctx.broker.appender.append(partition, records, header)
        refused.watch(topic.topic_id, partition_data.index, header, done)
        return _QueuedBatch(partition, header, done)
    except KafkaError as error:
        return error


def _key(ctx: RequestContext, topic_data: ProduceRequest.TopicProduceData) -> str | UUID:
    """The name or the id of the topic, as this version has it."""
    if ctx.version >= _TOPIC_IDS_SINCE:
        topic_id: UUID = topic_data.topic_id
        return topic_id
    return str(topic_data.name)


def _check_batch(records: bytes, topic: Topic, api_version: int) -> BatchHeader:
    """The header of the only batch in `records`, after all checks that need only the header."""
    try:
        headers = parse_headers(records)
    except UnsupportedForMessageFormat as error:
        raise InvalidRecord(f"only record batches of format v2 are accepted: {error}") from error
    if len(headers) != 1:
        raise InvalidRecord(
            f"a request has exactly one record batch per partition, not {len(headers)}"
        )
    header = headers[0]
    size = header.end - header.start
    if size > topic.config.max_message_bytes:
        raise MessageTooLarge(
            f"the record batch has {size} bytes; {topic.name} accepts "
            f"{topic.config.max_message_bytes} (max.message.bytes)"
        )
    check_crc(records, header)
    if header.codec == _ZSTD and api_version < _ZSTD_SINCE:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or newer")
    if header.control:
        raise InvalidRecord("only the broker writes control batches")
    if header.transactional:
        raise InvalidRecord("transactions are not served yet")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord("an idempotent batch needs a sequence and an epoch of 0 or more")
    _check_timestamps(header, topic)
    return header


def _check_timestamps(header: BatchHeader, topic: Topic) -> None:
    """KIP-937, with the first and the largest timestamp of the batch, which the header has."""
    if topic.config.message_timestamp_type == "LogAppendTime":
        return
    if header.timestamp_type:
        raise InvalidTimestamp("only the broker may set the timestamp type LogAppendTime")
    now_ms = wall_ms()
    if (
        header.max_timestamp != _NO_TIMESTAMP
        and header.max_timestamp - now_ms > topic.config.timestamp_after_max_ms
    ):
        raise InvalidTimestamp(
            f"timestamp {header.max_timestamp} is further in the future than "
            f"message.timestamp.after.max.ms={topic.config.timestamp_after_max_ms} allows"
        )
    if (
        header.base_timestamp != _NO_TIMESTAMP
        and min(now_ms - header.base_timestamp, _INT64_MAX) > topic.config.timestamp_before_max_ms
    ):
        raise InvalidTimestamp(
            f"timestamp {header.base_timestamp} is further in the past than "
            f"message.timestamp.before.max.ms={topic.config.timestamp_before_max_ms} allows"
        )


async def _answer(ctx: RequestContext, index: int, outcome: _Outcome) -> _Answer:
    if isinstance(outcome, KafkaError):
        return _failed(index, outcome)
    partition = outcome.partition
    try:
        appended = await outcome.done
    except RecordsWithoutKey as error:
        return _failed(index, error, _record_errors(partition, error))
    except OutOfOrderSequenceNumber as error:
        before = ctx.broker.refused_batches.before(partition.topic_id, index, outcome.header)
        return _failed(index, before or error)
    except KafkaError as error:
        return _failed(index, error)
    return StoredBatch(
        index, appended.base_offset, appended.log_append_time_ms, partition.log_start_offset
    )


def _response(version: int, answers: Sequence[_TopicAnswers]) -> ProduceResponse | bytes:
    if all(isinstance(one, StoredBatch) for _, found in answers for one in found):
        by_id = version >= _TOPIC_IDS_SINCE
        return produce_body(
            version,
            [
                StoredTopic(topic.name, topic.topic_id if by_id else None, found)
                for topic, found in answers
            ],
        )
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _succeeded(one) if isinstance(one, StoredBatch) else one for one in found
                ],
            )
            for topic, found in answers
        ],
        throttle_time_ms=0,
    )


def _succeeded(stored: StoredBatch) -> _PartitionResponse:
    return _PartitionResponse(
        index=stored.partition,
        error_code=0,
        base_offset=stored.base_offset,
        log_append_time_ms=stored.log_append_time_ms,
        log_start_offset=stored.log_start_offset,
        record_errors=[],
        error_message=None,
    )


def _record_errors(partition: PartitionLog, error: RecordsWithoutKey) -> list[_RecordError]:
    """KIP-467. The text is Kafka's, because producers show it to their users."""
    message = f"Compacted topic cannot accept message without key in topic partition {partition}"
    return [_RecordError(batch_index=at, batch_index_error_message=message) for at in error.indexes]


def _failed(
    index: int, error: KafkaError, record_errors: Sequence[_RecordError] = ()
) -> _PartitionResponse:
    return _PartitionResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=list(record_errors),
        error_message=error.message,
    )


def _close_if_failed(answers: Sequence[_TopicAnswers]) -> None:
    """With acks=0 there is no answer to hold an error, so the connection is closed, as in Kafka."""
    for _, found in answers:
        for one in found:
            if not isinstance(one, StoredBatch):
                raise CloseConnection(f"an append with acks=0 failed: {one.error_message}")


API = Api(ProduceRequest, ProduceResponse, versions=(3, 13), first_listed=0, handler=produce)
