"""Produce, versions 3 to 13.

3   record batches of format v2 only; transactional ids
5   the response tells the log start offset
7   zstd may be used (KIP-110)
8   the response names records that are wrong (KIP-467)
9   flexible
12  the client may produce in a transaction without announcing the partition (KIP-890)
13  topics by id (KIP-516)

Every partition of a request succeeds or fails for itself. The batches of a request are queued for
the log before this handler first waits: `broker/connection.py` relies on it to keep a producer's
order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from broker.api.context import CloseConnection, RequestContext
from broker.log.block import Appended
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
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
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)

_ACKS = frozenset({-1, 0, 1})
_ZSTD = 4
_ZSTD_SINCE = 7
_TOPIC_IDS_SINCE = 13
_NO_TIMESTAMP = -1
_INT64_MAX = 2**63 - 1  # as a limit it lets every timestamp pass

_Partition: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError: TypeAlias = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
)


async def produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    # In order all the same: requests that come meanwhile wait for the same look.
    await ctx.broker.topics.await_logs(
        [
            (_key(ctx, topic), partition.index)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    )
    pending = [
        (topic, [(part.index, _start(ctx, request, topic, part)) for part in topic.partition_data])
        for topic in request.topic_data
    ]
    responses = [
        ProduceResponse.TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                await _answer(ctx, index, started) for index, started in partitions
            ],
        )
        for topic, partitions in pending
    ]
    if request.acks == 0:
        _close_if_failed(responses)
        return None
    return ProduceResponse(responses=responses, throttle_time_ms=0)


@dataclass(frozen=True, slots=True)
class _Append:
    """A batch that is queued."""

    partition: PartitionLog
    header: BatchHeader
    done: asyncio.Future[Appended]


_Started: TypeAlias = _Append | KafkaError


def _start(
    ctx: RequestContext,
    request: ProduceRequest,
    topic_data: ProduceRequest.TopicProduceData,
    partition_data: ProduceRequest.TopicProduceData.PartitionProduceData,
) -> _Started:
    """Check one partition's batch and queue it."""
    refused = ctx.broker.refused_batches
    try:
        if request.acks not in _ACKS:
            raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {request.acks}")
        topic = _topic(ctx, topic_data)
        records = bytes(partition_data.records or b"")
        try:
            partition = ctx.broker.topics.log(topic, partition_data.index)
        except NotLeaderOrFollower as error:
            with suppress(KafkaError):  # its leader tells what is wrong with a batch
                for header in parse_headers(records):
                    refused.note(topic.topic_id, partition_data.index, header, error)
            raise
        header = _check_batch(records, topic, ctx.header.api_version)
        refused.tell(partition, header)
        done = ctx.broker.appender.append(partition, records, header)
        refused.watch(topic.topic_id, partition_data.index, header, done)
        return _Append(partition, header, done)
    except KafkaError as error:
        return error


def _key(ctx: RequestContext, topic_data: ProduceRequest.TopicProduceData) -> str | UUID:
    """What a request of this version calls its topic by."""
    if ctx.header.api_version >= _TOPIC_IDS_SINCE:
        return UUID(str(topic_data.topic_id))
    return str(topic_data.name)


def _topic(ctx: RequestContext, topic_data: ProduceRequest.TopicProduceData) -> Topic:
    key = _key(ctx, topic_data)
    if isinstance(key, UUID):
        by_id = ctx.broker.topics.by_id(key)
        if by_id is None:
            raise UnknownTopicId(f"there is no topic with id {key}")
        return by_id
    topic = ctx.broker.topics.get(key)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {topic_data.name}")
    return topic


def _check_batch(records: bytes, topic: Topic, api_version: int) -> BatchHeader:
    """The only batch in `records`, with everything checked that its header tells."""
    try:
        headers = parse_headers(records)
    except UnsupportedForMessageFormat as error:
        raise InvalidRecord(f"only record batches of format v2 are taken: {error}") from error
    if len(headers) != 1:
        raise InvalidRecord(f"a partition takes exactly one record batch, not {len(headers)}")
    header = headers[0]
    size = header.end - header.start
    if size > topic.config.max_message_bytes:
        raise MessageTooLarge(
            f"a record batch of {size} bytes; {topic.name} takes {topic.config.max_message_bytes}"
        )
    check_crc(records, header)
    if header.codec == _ZSTD and api_version < _ZSTD_SINCE:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or newer")
    if header.control:
        raise InvalidRecord("control batches are written by the broker alone")
    if header.transactional:
        raise InvalidRecord("transactions are not served yet")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord("an idempotent batch needs a sequence and an epoch of 0 or more")
    _check_timestamps(header, topic)
    return header


def _check_timestamps(header: BatchHeader, topic: Topic) -> None:
    """KIP-937. The header's first and largest timestamp stand for those of the records."""
    if topic.config.message_timestamp_type == "LogAppendTime":
        return
    if header.timestamp_type:
        raise InvalidTimestamp("only the broker may stamp a batch with LogAppendTime")
    now_ms = time.time_ns() // 1_000_000
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


async def _answer(ctx: RequestContext, index: int, started: _Started) -> _Partition:
    if isinstance(started, KafkaError):
        return _failed(index, started)
    partition = started.partition
    try:
        appended = await started.done
    except RecordsWithoutKey as error:
        return _failed(index, error, _record_errors(partition, error))
    except OutOfOrderSequenceNumber as error:
        before = ctx.broker.refused_batches.before(partition.topic_id, index, started.header)
        return _failed(index, before or error)
    except KafkaError as error:
        return _failed(index, error)
    return _Partition(
        index=index,
        error_code=0,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=partition.log_start_offset,
        record_errors=[],
        error_message=None,
    )


def _record_errors(partition: PartitionLog, error: RecordsWithoutKey) -> list[_RecordError]:
    """KIP-467. Kafka's words, because producers hand them on to their users."""
    message = f"Compacted topic cannot accept message without key in topic partition {partition}"
    return [_RecordError(batch_index=at, batch_index_error_message=message) for at in error.indexes]


def _failed(
    index: int, error: KafkaError, record_errors: Sequence[_RecordError] = ()
) -> _Partition:
    return _Partition(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=list(record_errors),
        error_message=error.message,
    )


def _close_if_failed(responses: list[ProduceResponse.TopicProduceResponse]) -> None:
    """With acks=0 no answer can carry an error: the connection is closed, as Kafka does."""
    for topic in responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise CloseConnection(f"acks=0 and {partition.error_message}")
