"""OffsetFetch: one partition with a committed offset, one without; two groups since version 8."""

from collections.abc import Sequence
from typing import Any

from kafka.protocol.consumer import OffsetFetchRequest

from tests.support import messages
from tests.support.messages import NO_GROUP, Target
from tests.support.samples import OFFSETS_GROUP, Asked, Sample


def request(target: Target, version: int) -> OffsetFetchRequest:
    groups: dict[str, Sequence[tuple[Target, Sequence[int]]] | None] = {
        OFFSETS_GROUP: [(target, [0, 1])]
    }
    if version >= 8:
        groups[NO_GROUP] = None
    return messages.offset_fetch(version, groups)


def check(asked: Asked, answer: Any) -> None:
    topics = answer.topics
    if 2 <= asked.version < 8:
        assert answer.error_code == 0
    elif asked.version >= 8:
        ours, others = answer.groups
        assert (ours.group_id, ours.error_code) == (OFFSETS_GROUP, 0)
        assert (others.group_id, others.error_code, others.topics) == (NO_GROUP, 0, [])
        topics = ours.topics
    (topic,) = topics
    asked.is_named_in(topic)
    first, second = topic.partitions
    assert (first.partition_index, first.error_code) == (0, 0)
    assert (first.committed_offset, first.metadata) == (1, "a note")
    assert (second.partition_index, second.error_code) == (1, 0)
    assert (second.committed_offset, second.metadata) == (-1, "")
    if asked.version >= 5:
        assert first.committed_leader_epoch == second.committed_leader_epoch == -1


SAMPLE = Sample(request, check, throttle_time_since=3)
