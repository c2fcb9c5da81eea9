"""TxnOffsetCommit (28), versions 0 to 5: sends offsets of a group to a transaction.

    v2 leader epochs; v3 flexible, with the member and its generation (KIP-447)
    v4 TRANSACTION_ABORTABLE
    v5 the broker makes the group part of the transaction (KIP-890)

The offsets count when the transaction is committed (coordinator/pending_offsets.py). The producer's
epoch fences a commit without a member id, also while the group has members. Who else may commit, in
which state of the group: `coordinator.commit_rules`.

Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE; those of the group:
INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION (also for a group that
does not exist), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; those of the transaction as in
AddOffsetsToTxn, and INVALID_TXN_STATE (the group is not part of it).
"""

from __future__ import annotations

from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.group_offsets import GROUP_DECIDES, look_for_topics
from brokerhouse.broker.api.topic_lookup import find_readable_topic, has_partition
from brokerhouse.coordinator.messages import Committer, OffsetCommit
from brokerhouse.coordinator.transaction_states import Producer
from brokerhouse.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OffsetMetadataTooLarge,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)

_MEMBER_SINCE, _ADDS_SINCE = 3, 5
_OLDER_ERRORS: tuple[tuple[int | None, type[KafkaError], type[KafkaError]], ...] = (
    # A producer before Kafka 2.0 may crash when the coordinator loads (KAFKA-7296).
    (2, CoordinatorLoadInProgress, CoordinatorNotAvailable),
    (4, TransactionAbortable, InvalidTxnState),
    (None, GroupIdNotFound, IllegalGeneration),
    (None, ProducerFenced, InvalidProducerEpoch),
)
"""An error is replaced before a version; None: in every version."""


async def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    await look_for_topics(ctx, request.topics)
    commits: list[OffsetCommit] = []
    codes = {
        (topic.name, partition.partition_index): _collect(ctx, topic.name, partition, commits)
        for topic in request.topics
        for partition in topic.partitions
    }
    if GROUP_DECIDES.intersection(codes.values()):
        try:
            await _commit(ctx, request, commits)
        except KafkaError as error:
            refused = _as_known(error, ctx.version).code
            codes = {key: refused if code in GROUP_DECIDES else code for key, code in codes.items()}
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


def _as_known(error: KafkaError, version: int) -> KafkaError:
    """The error as this version of the request knows it."""
    for since, newer, older in _OLDER_ERRORS:
        if isinstance(error, newer) and (since is None or version < since):
            return older(error.message)
    return error


def _collect(
    ctx: RequestContext,
    name: str,
    asked: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition,
    commits: list[OffsetCommit],
) -> int:
    """Add what can be committed to `commits`; the error code."""
    metadata = asked.committed_metadata or ""
    try:
        topic = find_readable_topic(ctx, name)
    except KafkaError as error:
        return error.code
    if not has_partition(topic, asked.partition_index):
        return UnknownTopicOrPartition.code
    if len(metadata) > ctx.broker.settings.offset_metadata_max_bytes:
        return OffsetMetadataTooLarge.code
    epoch = asked.committed_leader_epoch if ctx.version >= 2 else -1
    commits.append(
        OffsetCommit(
            name,
            topic.topic_id,
            asked.partition_index,
            asked.committed_offset,
            epoch,
            metadata,
            None,
        )
    )
    return 0


async def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, commits: list[OffsetCommit]
) -> None:
    if not request.group_id:
        raise InvalidGroupId("The request has no group id.")
    producer = Producer(request.producer_id, request.producer_epoch)
    is_member = ctx.version >= _MEMBER_SINCE
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
        producer=producer,
    )


API = Api(
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, versions=(0, 5), handler=txn_offset_commit
)
