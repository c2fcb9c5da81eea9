"""Produce (0), versions 3 to 13: appends record batches to partitions.

    v3 only record batches of format v2; transactional ids; v5 the answer has the log start offset
    v7 zstd (KIP-110); v8 the answer names the records that are wrong (KIP-467); v9 flexible
    v12 a client may produce in a transaction without announcing the partition (KIP-890)
    v13 topics by id (KIP-516)

ApiVersions lists versions 0 to 2 as well, although none of them is answered. librdkafka has long
looked for them to find out what a broker can do, so Kafka 4 still lists them (KAFKA-18659).

Each partition of a request succeeds or fails by itself. The batches of a request are queued for the
log before this handler first waits: `broker/net/connection.py` relies on that to keep a producer's
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

from brokerhouse.broker.api.context import Api, CloseConnection, RequestContext
from brokerhouse.broker.api.topic_lookup import find_topic
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.topic import Topic
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol._batches import BatchHeader, check_crc, parse_headers
from brokerhouse.protocol._produce_request import (
    ProduceMessage,
    ProducePartition,
    decode_produce_request,
)
from brokerhouse.protocol._produce_response import StoredBatch, produce_response
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.errors import (
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
) -> Awaitable[ProduceResponse | list[bytes] | None]:
    appends = _Appends(ctx, request)
    if appends.queue_if_ready():  # as a rule
        return appends.response
    # This keeps the order of requests: those that arrive meanwhile wait for the same logs.
    opening = ctx.broker.partitions.opening(
        [
            (topic.key, partition.index)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    )
    if opening is None:
        appends.queue()
    else:
        # No coroutine that awaits it: one that begins when its task is done already does not wait,
        # and would overtake an earlier one that is about to be woken.
        opening.add_done_callback(appends.queue_after)
    return appends.response


_Answer: TypeAlias = StoredBatch | _PartitionResponse
_Answers: TypeAlias = list[tuple[str | UUID, list[_Answer | None]]]
"""For each topic, by its key in the request, an answer for each partition; None: not yet."""


class _Appends:
    """The batches of one request; when the last of them has its answer, the request is answered."""

    __slots__ = ("_answers", "_missing", "_request", "ctx", "response")

    def __init__(self, ctx: RequestContext, request: ProduceMessage) -> None:
        self.ctx = ctx
        self._request = request
        self._answers: _Answers = []
        self._missing = 0
        self.response: asyncio.Future[ProduceResponse | list[bytes] | None]
        self.response = asyncio.get_running_loop().create_future()

    def queue_if_ready(self) -> bool:
        """As `queue`. False, and nothing is done, unless all the logs can be written now."""
        ready_log = self.ctx.broker.partitions.ready_log
        logs = []
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                log = ready_log(topic.key, data.index)
                if log is None:
                    return False
                logs.append(log)
        self._queue(logs)
        return True

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
        self._queue([None for topic in self._request.topic_data for _ in topic.partition_data])

    def _queue(self, logs: Sequence[PartitionLog | None]) -> None:
        """`logs`: of all partitions, in order; None where it has to be found."""
        self._missing = len(logs) + 1
        found = iter(logs)
        for topic in self._request.topic_data:
            batches = topic.partition_data
            answers: list[_Answer | None] = [None] * len(batches)
            self._answers.append((topic.key, answers))
            for position, data in enumerate(batches):
                append = _PartitionAppend(self, answers, position, data.index)
                append.queue(topic.key, data, self._request, next(found))
        self.answered()

    def answered(self) -> None:
        """One more of the batches has its answer."""
        self._missing -= 1
        if not self._missing:
            self._respond()

    def _respond(self) -> None:
        if self.response.done():
            return  # its client has left
        answers, self._answers = self._answers, []  # else only a garbage collection would free them
        try:
            if self._request.acks == 0:
                _close_if_failed(answers)
                self.response.set_result(None)
            else:
                self.response.set_result(_response(self.ctx.header, answers))
        except Exception as error:
            self.response.set_exception(error)


class _PartitionAppend:
    """The batch for one partition: checked and queued, then answered."""

    __slots__ = ("_answers", "_appends", "_header", "_index", "_partition", "_position")

    _partition: PartitionLog
    _header: BatchHeader

    def __init__(
        self, appends: _Appends, answers: list[_Answer | None], position: int, index: int
    ) -> None:
        """The answer belongs at this position of `answers`."""
        self._appends = appends
        self._answers = answers
        self._position = position
        self._index = index

    def queue(
        self,
        key: str | UUID,
        data: ProducePartition,
        request: ProduceMessage,
        log: PartitionLog | None,
    ) -> None:
        """Check the batch and queue it."""
        ctx, acks = self._appends.ctx, request.acks
        try:
            if acks not in _ACKS:
                raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {acks}.")
            self._partition = partition = log or self._find_log(find_topic(ctx, key), data)
            self._header = header = _check_batch(data, partition.topic, ctx.header.api_version)
            may_begin = (
                self._asked(request.transactional_id, header) if header.transactional else None
            )
        except KafkaError as error:
            self._end(_failed(self._index, error))
            return
        ctx.broker.refused_batches.tell(partition, header)
        append = PendingAppend(partition, data.frame, header, self._told, ctx.sender, acks != 0)
        if may_begin is None:
            ctx.broker.appender.append(append)
        else:
            may_begin.add_done_callback(partial(self._append_if_allowed, append))

    def _asked(
        self, transactional_id: str | None, header: BatchHeader
    ) -> asyncio.Task[object] | None:
        """The question to the coordinator, if this batch may begin a transaction here."""
        if transactional_id is None:
            raise InvalidTxnState("A batch of a transaction needs a transactional id.")
        if self._partition.transactions.has_open(header.producer_id, header.producer_epoch):
            return None
        ctx = self._appends.ctx
        return ctx.broker.transaction_checks.may_begin(
            self._partition, transactional_id, header, ctx.version
        )

    def _append_if_allowed(self, append: PendingAppend, asked: asyncio.Task[object]) -> None:
        if asked.cancelled():
            append.answer(NotLeaderOrFollower("The broker is shutting down."))
            return
        error = asked.exception()
        if error is None:
            append.verified = asked.result()
            self._appends.ctx.broker.appender.append(append)
        elif isinstance(error, KafkaError):
            append.answer(error)
        else:
            log.error("bug: cannot check a transaction", exc_info=error, extra=counted())
            append.answer(UnknownServerError("The request failed; see the broker's log."))

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
        self._answers[self._position] = answer
        self._appends.answered()


def _check_batch(data: ProducePartition, topic: Topic, api_version: int) -> BatchHeader:
    """The header of the only batch for a partition, after all checks that need only the header."""
    try:
        headers = parse_headers(data.frame, data.start, data.end)
    except UnsupportedForMessageFormat as error:
        raise InvalidRecord(error.message) from error
    if len(headers) != 1:
        raise InvalidRecord(
            f"A request must have one record batch per partition, not {len(headers)}."
        )
    header = headers[0]
    size = header.end - header.start
    if size > topic.config.max_message_bytes:
        raise MessageTooLarge(
            f"The record batch has {size} bytes; {topic.name} accepts "
            f"{topic.config.max_message_bytes} (max.message.bytes)."
        )
    check_crc(data.frame, header)
    if header.codec == _ZSTD and api_version < _ZSTD_SINCE:
        raise UnsupportedCompressionType("The codec zstd needs Produce version 7 or newer.")
    if header.control:
        raise InvalidRecord("Only the broker may write control batches.")
    if header.transactional and header.producer_id < 0:
        raise InvalidRecord("A batch of a transaction needs a producer id.")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord("An idempotent batch needs a sequence and an epoch of 0 or more.")
    _check_timestamps(header, topic)
    return header


def _check_timestamps(header: BatchHeader, topic: Topic) -> None:
    """KIP-937, with the first and the largest timestamp of the batch, which the header has."""
    if topic.config.message_timestamp_type == "LogAppendTime":
        return
    if header.timestamp_type:
        raise InvalidTimestamp("Only the broker may set the timestamp type LogAppendTime.")
    now_ms = wall_ms()
    if (
        header.max_timestamp != _NO_TIMESTAMP
        and header.max_timestamp - now_ms > topic.config.timestamp_after_max_ms
    ):
        raise InvalidTimestamp(
            f"Timestamp {header.max_timestamp} is further in the future than "
            f"message.timestamp.after.max.ms={topic.config.timestamp_after_max_ms} allows."
        )
    if (
        header.base_timestamp != _NO_TIMESTAMP
        and min(now_ms - header.base_timestamp, _INT64_MAX) > topic.config.timestamp_before_max_ms
    ):
        raise InvalidTimestamp(
            f"Timestamp {header.base_timestamp} is further in the past than "
            f"message.timestamp.before.max.ms={topic.config.timestamp_before_max_ms} allows."
        )


def _response(header: RequestHeader, answers: _Answers) -> ProduceResponse | list[bytes]:
    stored = produce_response(header.api_version, header.correlation_id, answers)
    if stored is not None:
        return [stored]
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


def _close_if_failed(answers: _Answers) -> None:
    """With acks=0 there is no answer to hold an error, so the connection is closed, as in Kafka."""
    for _, found in answers:
        for one in found:
            if not isinstance(one, StoredBatch):
                assert one is not None, "every batch has its answer"
                raise CloseConnection(f"an append with acks=0 failed: {one.error_message}")


API = Api(
    ProduceRequest,
    ProduceResponse,
    versions=(3, 13),
    first_listed=0,
    handler=produce,
    decode=decode_produce_request,
)
