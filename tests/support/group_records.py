"""Groups and members as the coordinator stores them."""

from __future__ import annotations

import struct
from uuid import UUID

from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.group_cache import GroupCache
from brokerhouse.coordinator.messages import Client, Committer, GroupRecord, MemberRecord

TOPIC_ID = UUID(int=1)
COMMITTER = Committer("a", None, 1, Client("c", "h"))


def assignment(*partitions: int, topic: bytes = b"t") -> bytes:
    count = len(partitions)
    layout = f">hih{len(topic)}si{count}ii"
    return struct.pack(layout, 1, 1, len(topic), topic, count, *partitions, -1)


def member(name: str, *partitions: int, static: str | None = None) -> MemberRecord:
    return MemberRecord(
        name,
        static,
        Client(f"client of {name}", "10.0.0.1"),
        45_000,
        300_000,
        (("range", b"\xff\x00sub"), ("sticky", b"")),
        assignment(*partitions) if partitions else b"",
        1_700_000_000_000 + sum(name.encode()),
    )


def group(
    cache: GroupCache,
    clock: Clock,
    *members: MemberRecord,
    group_id: str = "g",
    generation: int = 1,
    state: str = "Stable",
) -> GroupRecord:
    return GroupRecord(
        group_id,
        cache.next_version(clock.wall_ms()),
        state,
        clock.wall_ms(),
        generation,
        "consumer",
        "range" if members else "",
        members[0].member_id if members else "",
        members,
    )
