"""The tables of consumer groups as this broker fills them: columns in the order of their values."""

from __future__ import annotations

from brokerhouse.storage.blocks import (
    BOOL,
    BYTES,
    DATETIME64_MS,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    UUIDS,
    Table,
    array_of,
    map_of,
    nullable,
    tuple_of,
)

GROUPS = Table(
    "consumer_group_versions",
    (
        ("group_id", STRING),
        ("version", UINT64),
        ("state", STRING),
        ("state_time", DATETIME64_MS),
        ("generation", INT32),
        ("protocol_type", STRING),
        ("protocol_name", STRING),
        ("leader", STRING),
        ("members", UINT32),
        ("removed", BOOL),
        ("coordinator", INT32),
    ),
)
MEMBERS = Table(
    "group_member_versions",
    (
        ("group_id", STRING),
        ("member_id", STRING),
        ("version", UINT64),
        ("generation", INT32),
        ("group_instance_id", nullable(STRING)),
        ("client_id", STRING),
        ("client_host", STRING),
        ("session_timeout_ms", INT32),
        ("rebalance_timeout_ms", INT32),
        ("protocol_name", STRING),
        ("protocols", array_of(tuple_of(name=STRING, metadata=BYTES))),
        ("assignment", map_of(STRING, map_of(INT32, STRING))),
        ("assignment_bytes", BYTES),
        ("join_time", DATETIME64_MS),
        ("removed", BOOL),
        ("coordinator", INT32),
    ),
)
HEARTBEATS = Table(
    "group_heartbeats",
    (
        ("group_id", STRING),
        ("member_id", STRING),
        ("heartbeat_time", DATETIME64_MS),
        ("coordinator", INT32),
    ),
)
_COMMIT = (
    ("topic", STRING),
    ("topic_id", UUIDS),
    ("partition", INT32),
    ("offset", INT64),
    ("leader_epoch", INT32),
    ("metadata", STRING),
    ("member_id", STRING),
    ("client_id", STRING),
    ("client_host", STRING),
    ("generation", INT32),
    ("commit_time", DATETIME64_MS),
)
"""What a group commits, and who."""
OFFSETS = Table(
    "consumer_offsets",
    (
        ("group_id", STRING),
        *_COMMIT,
        ("expire_time", nullable(DATETIME64_MS)),
        ("deleted", BOOL),
        ("version", UINT64),
        ("coordinator", INT32),
    ),
)
TRANSACTIONS = Table(
    "transaction_versions",
    (
        ("transactional_id", STRING),
        ("version", UINT64),
        ("producer_id", INT64),
        ("producer_epoch", INT16),
        ("last_epoch", INT16),
        ("previous_producer_id", INT64),
        ("next_producer_id", INT64),
        ("timeout_ms", INT32),
        ("state", STRING),
        ("client_version", INT8),
        ("partitions", array_of(tuple_of(topic=STRING, topic_id=UUIDS, partition=INT32))),
        ("groups", array_of(STRING)),
        ("start_time", DATETIME64_MS),
        ("update_time", DATETIME64_MS),
        ("removed", BOOL),
        ("coordinator", INT32),
    ),
)
TRANSACTION_OFFSETS = Table(
    "transaction_offsets",
    (
        ("group_id", STRING),
        ("producer_id", INT64),
        ("producer_epoch", INT16),
        *_COMMIT,
        ("version", UINT64),
        ("ended", BOOL),
        ("coordinator", INT32),
    ),
)
