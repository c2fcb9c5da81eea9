"""OffsetForLeaderEpoch (23), versions 2 to 4: where the records of a leader epoch end (KIP-320).

    v3 asks as a replica or as a consumer; v4 flexible

The answer is the largest known epoch up to the requested one, and the offset at which the next one
began, whether any of its records is left or not (broker/log/leader_epochs.py). The current epoch
ends at the high watermark. An epoch before all known ones ended where the first of these began.
Epoch and offset are -1 for an epoch that has not begun.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH.
"""

from __future__ import annotations

from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.topic_lookup import find_partition
from brokerhouse.protocol.errors import KafkaError


async def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0, topics=[_epoch_ends(ctx, topic) for topic in request.topics]
    )


def _epoch_ends(
    ctx: RequestContext, asked: OffsetForLeaderEpochRequest.OffsetForLeaderTopic
) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult:
    return OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
        topic=asked.topic,
        partitions=[_epoch_end(ctx, asked.topic, one) for one in asked.partitions],
    )


def _epoch_end(
    ctx: RequestContext,
    name: str,
    asked: OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition,
) -> OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset:
    end = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
    try:
        partition = find_partition(ctx, name, asked.partition, asked.current_leader_epoch)
        epoch, offset = partition.epochs.end_of(asked.leader_epoch, partition.high_watermark)
    except KafkaError as error:
        return end(error_code=error.code, partition=asked.partition, leader_epoch=-1, end_offset=-1)
    return end(error_code=0, partition=asked.partition, leader_epoch=epoch, end_offset=offset)


API = Api(
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    versions=(2, 4),
    handler=offset_for_leader_epoch,
)
