"""Keys and values of `__consumer_offsets`, in the versions that monitors know.

Each begins with its version. Keys: 1 an offset, 2 a group. Values: of an offset 3, or 1 if it has a
time at which it expires; of a group 3. Source: `OffsetCommitKey`, `OffsetCommitValue`,
`GroupMetadataKey` and `GroupMetadataValue` in the messages of Kafka's group coordinator.
"""

from __future__ import annotations

import struct

from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.messages import (
    CommittedOffset,
    GroupRecord,
    MemberRecord,
    TopicPartition,
)
from brokerhouse.protocol.plain_batches import PlainRecord
from brokerhouse.protocol.varints import string

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_KEY = _INT16.pack(1)
_GROUP_KEY = _INT16.pack(2)
_EXPIRING = _INT16.pack(1)
_VALUE = _INT16.pack(3)
_STRING_MAX_BYTES = 32_767


def offset_record(
    group_id: str, partition: TopicPartition, committed: CommittedOffset | None, now_ms: int
) -> PlainRecord:
    """`committed` None: the offset was deleted, at `now_ms`."""
    topic, index = partition
    key = _OFFSET_KEY + _string(group_id) + _string(topic) + _INT32.pack(index)
    if committed is None:
        return PlainRecord(key, None, now_ms)
    offset, time = _INT64.pack(committed.offset), _INT64.pack(committed.commit_time_ms)
    if committed.expire_time_ms is not None:
        expiry = _INT64.pack(committed.expire_time_ms)
        value = b"".join((_EXPIRING, offset, _string(committed.metadata), time, expiry))
    else:
        epoch = _INT32.pack(committed.leader_epoch)
        value = b"".join((_VALUE, offset, epoch, _string(committed.metadata), time))
    return PlainRecord(key, value, committed.commit_time_ms)


def group_record(record: GroupRecord) -> PlainRecord:
    """A group that is Dead is a tombstone."""
    key = _GROUP_KEY + _string(record.group_id)
    if record.state == GroupState.DEAD:
        return PlainRecord(key, None, record.state_time_ms)
    members = [_member(one, record.protocol_name) for one in record.members]
    value = b"".join(
        (
            _VALUE,
            _string(record.protocol_type),
            _INT32.pack(record.generation),
            _string_or_null(record.protocol_name),
            _string_or_null(record.leader),
            _INT64.pack(record.state_time_ms),
            _INT32.pack(len(members)),
            *members,
        )
    )
    return PlainRecord(key, value, record.state_time_ms)


def _member(member: MemberRecord, protocol_name: str) -> bytes:
    return b"".join(
        (
            _string(member.member_id),
            _string_or_null(member.group_instance_id),
            _string(member.client.client_id),
            _string(member.client.host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(dict(member.protocols).get(protocol_name, b"")),
            _bytes(member.assignment),
        )
    )


def _string(text: str) -> bytes:
    """Cut where it is longer than a string may be: clients may send longer ones (KIP-482)."""
    if len(text) > _STRING_MAX_BYTES // 4:
        text = text.encode()[:_STRING_MAX_BYTES].decode(errors="ignore")
    return string(text, compact=False)


def _string_or_null(text: str | None) -> bytes:
    return _string(text) if text else _INT16.pack(-1)


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data
