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
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias
from uuid import UUID

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from broker.api.context import Api, CloseConnection, RequestContext
from broker.api.topic_lookup import find_topic
from broker.log.block import Appended, Outcome, PendingAppend
from broker.log.partition import PartitionLog
from broker.log.topic import Topic
from common.clock import wall_ms
from protocol._batches import BatchHeader, check_crc, parse_headers
from protocol._produce_request import (
    ProduceMessage,
    ProducePartition,
    decode_produce_request,
)
from protocol.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RecordsWithoutKey,
    UnknownServerError,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from protocol.produce_body import StoredBatch, StoredTopic, produce_body

log = logging.getLogger(__name__)

_ACKS = frozenset({-1, 0, 1})
_ZSTD = 4
_ZSTD_SINCE = 7
_NO_TIMESTAMP = -1
_INT64_MAX = 2**63 - 1  # as a limit it allows every timestamp

_PartitionResponse: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_RecordError: TypeAlias = (
    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
)


def produce(
    ctx: RequestContext, request: ProduceMessage
) -> Awaitable[ProduceResponse | bytes | None]:
    # This keeps the order of requests: those that arrive meanwhile wait for the same logs.
    opening = ctx.broker.partitions.opening(
        [
            (topic.key, partition.index)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    )
    appends = _Appends(ctx, request)
    if opening is None:
        appends.queue()
    else:
        # No coroutine that awaits it: one that begins when its task is done already does not wait,
        # and would overtake an earlier one that is about to be woken.
        opening.add_done_callback(appends.queue_after)
    return appends.response


_Answer: TypeAlias = StoredBatch | _PartitionResponse
_TopicAnswers: TypeAlias = tuple[str | UUID, Sequence[_Answer]]


class _Appends:
    """The batches of one request; when the last of them has its answer, the request is answered."""

    __slots__ = ("_missing", "_request", "_topics", "ctx", "response")

    def __init__(self, ctx: RequestContext, request: ProduceMessage) -> None:
        self.ctx = ctx
        self._request = request
        self._topics = [
            (topic.key, [_PartitionAppend(self, part.index) for part in topic.partition_data])
            for topic in request.topic_data
        ]
        self._missing = sum(len(appends) for _, appends in self._topics)
        self.response: asyncio.Future[ProduceResponse | bytes | None]
        self.response = asyncio.get_running_loop().create_future()

    def queue_after(self, opening: asyncio.Task[None]) -> None:
        """The logs are open, or cannot be opened."""
        if opening.cancelled():
            self.response.cancel()
        elif (error := opening.exception()) is not None:
            if not self.response.done():
                self.response.set_exception(error)
        else:
            try:
                self.queue()
            except Exception as failure:
                if not self.response.done():
                    self.response.set_exception(failure)

    def queue(self) -> None:
        """Check every batch and queue it. Then `response` ends with the response."""
        for topic_data, (key, appends) in zip(self._request.topic_data, self._topics, strict=True):
            for partition_data, append in zip(topic_data.partition_data, appends, strict=True):
                append.queue(key, partition_data, self._request)
        if not self._missing:  # there was none
            self._respond()

    def answered(self) -> None:
        """One more of the batches has its answer."""
        self._missing -= 1
        if not self._missing:
            self._respond()

    def _respond(self) -> None:
        if self.response.done():
            return  # its client has left
        answers = [(key, [one.answer for one in appends]) for key, appends in self._topics]
        self._topics.clear()  # else only a garbage collection would free them
        try:
            if self._request.acks == 0:
                _close_if_failed(answers)
                self.response.set_result(None)
            else:
                self.response.set_result(_response(self.ctx.version, answers))
        except Exception as error:
            self.response.set_exception(error)


class _PartitionAppend:
    """The batch for one partition: checked and queued, then answered."""

    __slots__ = ("_appends", "_header", "_index", "_partition", "answer")

    _partition: PartitionLog
    _header: BatchHeader
    answer: _Answer

    def __init__(self, appends: _Appends, index: int) -> None:
        self._appends = appends
        self._index = index

    def queue(self, key: str | UUID, data: ProducePartition, request: ProduceMessage) -> None:
        """Check the batch and queue it."""
        ctx, acks = self._appends.ctx, request.acks
        try:
            if acks not in _ACKS:
                raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {acks}")
            topic = find_topic(ctx, key)
            self._partition = self._find_log(topic, data)
            self._header = header = _check_batch(data, topic, ctx.version)
            may_begin = self._asked(request.transactional_id, header)
        except KafkaError as error:
            self._end(_failed(self._index, error))
            return
        ctx.broker.refused_batches.tell(self._partition, header)
        append = PendingAppend(
            self._partition, data.frame, header, self._told, ctx.sender, acks != 0
        )
        if may_begin is None:
            ctx.broker.appender.append(append)
        else:
            may_begin.add_done_callback(partial(self._append_if_allowed, append))

    def _asked(
        self, transactional_id: str | None, header: BatchHeader
    ) -> asyncio.Task[object] | None:
        """The question to the coordinator, if the batch may begin a transaction here."""
        if not header.transactional:
            return None
        if transactional_id is None:
            raise InvalidTxnState("a batch of a transaction needs a transactional id")
        if self._partition.transactions.has_open(header.producer_id, header.producer_epoch):
            return None
        ctx = self._appends.ctx
        return ctx.broker.transaction_checks.may_begin(
            self._partition, transactional_id, header, ctx.version
        )

    def _append_if_allowed(self, append: PendingAppend, asked: asyncio.Task[object]) -> None:
        if asked.cancelled():
            append.answer(NotLeaderOrFollower("the broker is shutting down"))
            return
        error = asked.exception()
        if error is None:
            append.verified = asked.result()
            self._appends.ctx.broker.appender.append(append)
        elif isinstance(error, KafkaError):
            append.answer(error)
        else:
            log.error("a transaction cannot be checked: a bug", exc_info=error)
            append.answer(UnknownServerError("see the broker's log"))

    def _find_log(self, topic: Topic, data: ProducePartition) -> PartitionLog:
        ctx = self._appends.ctx
        try:
            return ctx.broker.partitions.log_of(topic, self._index)
        except NotLeaderOrFollower as error:
            with suppress(KafkaError):  # the leader will say what is wrong with the batch
                for header in parse_headers(data.records):
                    ctx.broker.refused_batches.note(topic.topic_id, self._index, header, error)
            raise

    def _told(self, outcome: Outcome) -> None:
        """The appender tells what became of the batch."""
        refused, partition = self._appends.ctx.broker.refused_batches, self._partition
        if isinstance(outcome, Appended):
            refused.note_stored(partition.topic_id, self._index, self._header)
            self._end(StoredBatch(self._index, *outcome, partition.log_start_offset))
            return
        refused.note(partition.topic_id, self._index, self._header, outcome)
        record_errors: Sequence[_RecordError] = ()
        if isinstance(outcome, RecordsWithoutKey):
            record_errors = _record_errors(partition, outcome)
        elif isinstance(outcome, OutOfOrderSequenceNumber):
            before = refused.before(partition.topic_id, self._index, self._header)
            if before is None:
                refused.log_gap(partition, self._header, outcome)
            outcome = before or outcome
        self._end(_failed(self._index, outcome, record_errors))

    def _end(self, answer: _Answer) -> None:
        self.answer = answer
        self._appends.answered()


def _check_batch(data: ProducePartition, topic: Topic, api_version: int) -> BatchHeader:
    """The header of the only batch for a partition, after all checks that need only the header."""
    try:
        headers = parse_headers(data.frame, data.start, data.end)
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
    check_crc(data.frame, header)
    if header.codec == _ZSTD and api_version < _ZSTD_SINCE:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or newer")
    if header.control:
        raise InvalidRecord("only the broker writes control batches")
    if header.transactional and header.producer_id < 0:
        raise InvalidRecord("a batch of a transaction needs a producer id")
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


def _response(version: int, answers: Sequence[_TopicAnswers]) -> ProduceResponse | bytes:
    if all(isinstance(one, StoredBatch) for _, found in answers for one in found):
        return produce_body(version, [StoredTopic(key, found) for key, found in answers])
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                **({"topic_id": key} if isinstance(key, UUID) else {"name": key}),
                partition_responses=[
                    _succeeded(one) if isinstance(one, StoredBatch) else one for one in found
                ],
            )
            for key, found in answers
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


API = Api(
    ProduceRequest,
    ProduceResponse,
    versions=(3, 13),
    first_listed=0,
    handler=produce,
    decode=decode_produce_request,
)
