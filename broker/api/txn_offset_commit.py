"""TxnOffsetCommit (28), versions 0 to 5: sends offsets of a group to a transaction.

    v2 leader epochs; v3 flexible, with the member and its generation (KIP-447)
    v4 TRANSACTION_ABORTABLE
    v5 the broker makes the group part of the transaction (KIP-890)

The offsets count when the transaction is committed (coordinator/pending_offsets.py).

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, those of the group as
in OffsetCommit, those of the transaction as in AddOffsetsToTxn, and INVALID_TXN_STATE (the group is
not part of it).
"""

from __future__ import annotations

from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from broker.api.context import Api, RequestContext
from broker.api.topic_lookup import find_topic, has_partition
from broker.api.transaction_requests import as_known
from coordinator.messages import Committer, OffsetCommit
from coordinator.transaction_states import Producer
from protocol.errors import (
    IllegalGeneration,
    InvalidTxnState,
    KafkaError,
    OffsetMetadataTooLarge,
    TransactionAbortable,
    UnknownTopicOrPartition,
)

_ABORTABLE_SINCE, _ADDS_SINCE = 4, 5


async def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    commits: list[OffsetCommit] = []
    codes = {
        (topic.name, partition.partition_index): _collect(ctx, topic.name, partition, commits)
        for topic in request.topics
        for partition in topic.partitions
    }
    try:
        await _commit(ctx, request, commits)
    except KafkaError as error:
        known = as_known(error, knows_fenced=False)
        if isinstance(known, TransactionAbortable) and ctx.version < _ABORTABLE_SINCE:
            known = InvalidTxnState(known.message)
        codes = {key: code or known.code for key, code in codes.items()}
    topic_class = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            topic_class(
                name=topic.name,
                partitions=[
                    topic_class.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[topic.name, partition.partition_index],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _collect(
    ctx: RequestContext,
    name: str,
    asked: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition,
    commits: list[OffsetCommit],
) -> int:
    """Add what can be committed to `commits`; the error code."""
    metadata = asked.committed_metadata or ""
    try:
        topic = find_topic(ctx, name)
    except KafkaError as error:
        return error.code
    if not has_partition(topic, asked.partition_index):
        return UnknownTopicOrPartition.code
    if len(metadata) > ctx.broker.settings.offset_metadata_max_bytes:
        return OffsetMetadataTooLarge.code
    epoch = asked.committed_leader_epoch if ctx.version >= 2 else -1
    commits.append(
        OffsetCommit(
            name, topic.topic_id, asked.partition_index, asked.committed_offset, epoch, metadata,
            None,
        )
    )  # fmt: skip
    return 0


async def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, commits: list[OffsetCommit]
) -> None:
    producer = Producer(request.producer_id, request.producer_epoch)
    is_member = ctx.version >= 3
    committer = Committer(
        member_id=request.member_id if is_member else "",
        group_instance_id=request.group_instance_id if is_member else None,
        generation=request.generation_id if is_member else -1,
        client=ctx.client,
    )
    await ctx.broker.transaction_checks.may_send_offsets(
        ctx.broker.groups.coordinator_of(request.group_id).pending,
        request.transactional_id,
        producer,
        request.group_id,
        adds=ctx.version >= _ADDS_SINCE,
    )
    await ctx.broker.groups.coordinator_of(request.group_id).commit(
        request.group_id,
        committer,
        commits,
        group_must_exist_error=IllegalGeneration,
        producer=producer,
    )


API = Api(
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, versions=(0, 5), handler=txn_offset_commit
)
