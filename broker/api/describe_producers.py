"""DescribeProducers (61), version 0: the producers that partitions know (KIP-664).

A producer that has not written since the broker started may be missing: it is read back from the
rows when it writes again. One with an open transaction is never missing.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR
(ClickHouse cannot be read).
"""

from __future__ import annotations

from typing import TypeAlias

from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import find_readable_topic
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_recovery import stored_producer
from brokerhouse.protocol.errors import KafkaError, KafkaStorageError
from brokerhouse.storage.engine import EngineError

_Topic: TypeAlias = DescribeProducersResponse.TopicResponse
_Partition: TypeAlias = DescribeProducersResponse.TopicResponse.PartitionResponse
_UNKNOWN = -1


async def describe_producers(
    ctx: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    await ctx.broker.partitions.await_open(
        [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    )
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    await _described(ctx, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ],
    )


async def _described(ctx: RequestContext, topic: str, index: int) -> _Partition:
    try:
        log = ctx.broker.partitions.log_of(find_readable_topic(ctx, topic), index)
        producers = await _producers(ctx, log)
    except (KafkaError, EngineError) as error:
        if isinstance(error, EngineError):
            error = KafkaStorageError(f"Cannot read {topic}-{index}: {error}")
        return _Partition(
            partition_index=index,
            error_code=error.code,
            error_message=error.message,
            active_producers=[],
        )
    return _Partition(
        partition_index=index, error_code=0, error_message=None, active_producers=producers
    )


async def _producers(ctx: RequestContext, log: PartitionLog) -> list[object]:
    producers, opened = dict(log.producers), dict(log.transactions.open)
    # A new leader knows no producers before they write, and who aborts what hangs has to know the
    # epoch of the coordinator.
    for producer_id in opened.keys() - producers.keys():
        stored = await stored_producer(log, producer_id, ctx.broker.row_sources.engines(log))
        if stored is not None:
            producers[producer_id] = stored
    states = []
    for producer_id in sorted(producers.keys() | opened.keys()):
        entry = producers.get(producer_id)
        begun = opened.get(producer_id)
        ranges = () if entry is None else entry.ranges
        known = entry or begun
        states.append(
            _Partition.ProducerState(
                producer_id=producer_id,
                producer_epoch=_UNKNOWN if known is None else known.epoch,
                last_sequence=ranges[-1].last if ranges else _UNKNOWN,
                last_timestamp=_UNKNOWN if entry is None else entry.last_append_ms,
                coordinator_epoch=_UNKNOWN if entry is None else entry.coordinator_epoch,
                current_txn_start_offset=_UNKNOWN if begun is None else begun.first_offset,
            )
        )
    return states


API = Api(
    DescribeProducersRequest, DescribeProducersResponse, versions=(0, 0), handler=describe_producers
)
