"""Subscriptions and assignments: read as Kafka's clients write them, and nothing else is read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from brokerhouse.broker.feeds.groups import assignments_of
from brokerhouse.coordinator.messages import JoinedMember
from brokerhouse.protocol import consumer_protocol
from brokerhouse.protocol.consumer_protocol import assigned_partitions, subscribed_topics, user_data

VERSIONS = range(4)
Assigned = list[tuple[str, list[int]]]


def subscription(version: int, topics: list[str], user_data: bytes | None = None) -> bytes:
    data: bytes = ConsumerProtocolSubscription(
        version=version,
        topics=topics,
        user_data=user_data,
        owned_partitions=[("owned", [1])],
        generation_id=7,
        rack_id="rack",
    ).encode(version=version)
    return data


def assignment(version: int, assigned: Assigned, user_data: bytes | None = None) -> bytes:
    data: bytes = ConsumerProtocolAssignment(
        version=version, assigned_partitions=assigned, user_data=user_data
    ).encode(version=version)
    return data


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("user_data", [None, b"", b"\xff\x00"])
@pytest.mark.parametrize("topics", [[], ["a"], ["b", "a", "é"], ["a", "a"]])
def test_the_topics_of_a_subscription_are_read(
    version: int, user_data: bytes | None, topics: list[str]
) -> None:
    assert subscribed_topics(subscription(version, topics, user_data)) == frozenset(topics)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("user_data", [None, b"", b"\xff\x00"])
@pytest.mark.parametrize(
    "assigned", [[], [("a", [])], [("a", [0, 1, 2**31 - 1]), ("é", [-1])], [("a", [2]), ("b", [2])]]
)
def test_the_partitions_of_an_assignment_are_read(
    version: int, user_data: bytes | None, assigned: Assigned
) -> None:
    assert assigned_partitions(assignment(version, assigned, user_data)) == dict(assigned)


def test_a_topic_that_is_named_twice_is_counted_once() -> None:
    assert assigned_partitions(assignment(1, [("a", [0]), ("b", [5]), ("a", [2])])) == {
        "a": [0, 2],
        "b": [5],
    }


@pytest.mark.parametrize("version", [4, 5, 2**15 - 1])
def test_a_future_version_is_read_as_far_as_it_is_known(version: int) -> None:
    future = struct.pack(">h", version)
    assert subscribed_topics(future + subscription(3, ["a"])[2:] + b"more") == frozenset({"a"})
    assert assigned_partitions(future + assignment(3, [("a", [1])])[2:] + b"more") == {"a": [1]}


def test_a_negative_version_is_not_read() -> None:
    past = struct.pack(">h", -1)
    assert subscribed_topics(past + subscription(3, ["a"])[2:]) is None
    assert assigned_partitions(past + assignment(3, [("a", [1])])[2:]) is None


def test_a_truncated_subscription_is_not_read() -> None:
    whole = subscription(0, ["topic", "other"], b"data")
    assert subscribed_topics(whole) is not None
    assert [subscribed_topics(whole[:end]) for end in range(len(whole))] == [None] * len(whole)
    whole = assignment(0, [("topic", [1, 2]), ("other", [3])], b"data")
    assert assigned_partitions(whole) is not None
    assert [assigned_partitions(whole[:end]) for end in range(len(whole))] == [None] * len(whole)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">i", -1),  # the topics are null
        struct.pack(">i", 2**31 - 1) + b"\0" * 64,  # more of them than there are bytes
        struct.pack(">ih", 1, -1) + b"\0" * 8,  # the name is null
        struct.pack(">ih2si", 1, 2, b"\xff\xfe", -1),  # the name is not UTF-8
        struct.pack(">ii", 0, -2),  # user data of a negative size
        struct.pack(">ii", 0, 5) + b"four",
    ],
)
def test_a_malformed_subscription_or_assignment_is_not_read(body: bytes) -> None:
    for version in (b"\0\0", b"\0\3", b"\x7f\xff"):
        assert subscribed_topics(version + body) is None
        assert assigned_partitions(version + body) is None


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_wrong_count_of_partitions_is_not_read(count: int) -> None:
    body = struct.pack(">ih1si", 1, 1, b"a", count) + struct.pack(">i", 7) + b"\xff\xff\xff"
    assert assigned_partitions(b"\0\0" + body) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_yield_none(data: bytes) -> None:
    """With None or with something that is no larger than they are."""
    for prefix in (b"", b"\0\1", b"\0\1\0\0\0\1"):
        topics = subscribed_topics(prefix + data)
        assert topics is None or sum(2 + len(t.encode()) for t in topics) <= len(prefix + data)
        assigned = assigned_partitions(prefix + data)
        assert assigned is None or sum(6 + 4 * len(p) for p in assigned.values()) <= len(
            prefix + data
        )


@given(st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(-(2**31), 2**31 - 1)))))
def test_subscriptions_and_assignments_of_kafka_python_are_read(assigned: Assigned) -> None:
    expected: dict[str, list[int]] = {}
    for topic, partitions in assigned:
        expected.setdefault(topic, []).extend(partitions)
    assert assigned_partitions(assignment(2, assigned)) == expected
    topics = [topic for topic, _ in assigned]
    assert subscribed_topics(subscription(1, topics)) == frozenset(topics)


@pytest.mark.parametrize("topics", [[], ["a"], ["b", "é"]])
def test_a_written_subscription_is_read_by_kafka_python(topics: list[str]) -> None:
    written = consumer_protocol.subscription(topics, b"\xff")
    assert subscribed_topics(written) == frozenset(topics)
    assert user_data(written) == b"\xff"
    assert written == subscription(0, topics, b"\xff")


@pytest.mark.parametrize("partitions", [{}, {"a": [0, 2]}, {"a": [1], "é": [0]}])
def test_a_written_assignment_is_read_by_kafka_python(
    partitions: dict[str, list[int]],
) -> None:
    written = consumer_protocol.assignment(partitions)
    assert assigned_partitions(written) == partitions
    assert written == assignment(0, list(partitions.items()), b"")


def test_each_feeding_process_is_assigned_what_it_feeds_and_no_partition_twice() -> None:
    said = {"one": {"a": [0, 1], "b": [0]}, "two": {"a": [1, 2]}, "strange": None}
    members = [
        JoinedMember(
            name,
            name,
            b"?"
            if partitions is None
            else consumer_protocol.subscription(
                sorted(partitions), consumer_protocol.assignment(partitions, b"1")
            ),
        )
        for name, partitions in said.items()
    ]
    assigned = {name: assigned_partitions(data) for name, data in assignments_of(members).items()}
    assert assigned == {"one": {"a": [0, 1], "b": [0]}, "two": {"a": [2]}, "strange": {}}
