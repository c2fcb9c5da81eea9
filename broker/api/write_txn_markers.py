"""WriteTxnMarkers (27), versions 1 to 2: ends transactions on partitions that this broker leads.

    v1 flexible; v2 the transaction version of the client

A partition of `__consumer_offsets` is a slot: it stands for the offsets of the groups
in it. Coordinators send this request, and `kafka-transactions abort`, which ends a transaction that
no coordinator knows any more.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, INVALID_PRODUCER_EPOCH,
TRANSACTION_COORDINATOR_FENCED, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import find_topic
from brokerhouse.broker.transactions.transaction_markers import Marker
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import KafkaError, KafkaStorageError
from brokerhouse.storage.engine import EngineError

_Marker: TypeAlias = WriteTxnMarkersRequest.WritableTxnMarker
_Result: TypeAlias = WriteTxnMarkersResponse.WritableTxnMarkerResult


async def write_txn_markers(
    ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    await ctx.broker.partitions.await_open(
        [
            (topic.name, index)
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
            if topic.name != OFFSETS_TOPIC
        ]
    )
    return WriteTxnMarkersResponse(
        markers=[await _written(ctx, marker) for marker in request.markers]
    )


async def _written(ctx: RequestContext, marker: _Marker) -> _Result:
    topic_class = _Result.WritableTxnMarkerTopicResult
    partition_class = topic_class.WritableTxnMarkerPartitionResult
    return _Result(
        producer_id=marker.producer_id,
        topics=[
            topic_class(
                name=topic.name,
                partitions=[
                    partition_class(partition_index=index, error_code=code)
                    for index, code in zip(
                        topic.partition_indexes,
                        await asyncio.gather(
                            *(
                                _write(ctx, marker, topic.name, index)
                                for index in topic.partition_indexes
                            )
                        ),
                        strict=True,
                    )
                ],
            )
            for topic in marker.topics
        ],
    )


async def _write(ctx: RequestContext, marker: _Marker, topic: str, index: int) -> int:
    try:
        one = Marker(
            Producer(marker.producer_id, marker.producer_epoch),
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            raises_epoch=ctx.version >= 2 and marker.transaction_version >= 2,
        )
        if topic == OFFSETS_TOPIC:
            ctx.broker.groups.check_partition(index)
            await ctx.broker.groups.end_transaction(index, one, ctx.sender)
        else:
            log = ctx.broker.partitions.log_of(find_topic(ctx, topic), index)
            await ctx.broker.marker_writer.write(log, one, ctx.sender)
    except KafkaError as error:
        return error.code
    except EngineError:
        return KafkaStorageError.code
    return 0


API = Api(
    WriteTxnMarkersRequest, WriteTxnMarkersResponse, versions=(1, 2), handler=write_txn_markers
)
