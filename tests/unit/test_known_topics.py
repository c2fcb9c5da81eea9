"""broker/topics/known_topics.py: topics by name and id, in order, and whether one is compacted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.known_topics import KnownTopics
from brokerhouse.protocol.errors import InvalidTopic, TopicAlreadyExists
from tests.support.log_parts import make_topic


def topic(name: str, policy: str = "delete") -> Topic:
    return make_topic(name, configs={"cleanup.policy": policy})


def test_topics_stay_listed_by_name_after_changes() -> None:
    known = KnownTopics()
    b, a = topic("b"), topic("a")
    known.put(b)
    assert known.all() == [b]
    known.put(a)
    assert known.all() == [a, b]
    changed = replace(b, version=2)
    known.put(changed)
    assert known.all() == [a, changed]
    assert known.by_id(b.topic_id) is changed
    known.drop(a)
    assert known.all() == [changed]
    assert (known.get("a"), len(known)) == (None, 1)


def test_a_compacted_topic_is_noticed_until_its_policy_changes_or_it_is_deleted() -> None:
    known = KnownTopics()
    known.put(topic("a"))
    assert not known.has_compacted
    first, second = topic("b", "compact"), topic("c", "compact,delete")
    known.put(first)
    known.put(second)
    assert known.has_compacted
    known.put(replace(first, config=topic("b").config))
    assert known.has_compacted
    known.drop(second)
    assert not known.has_compacted


def test_a_name_is_taken_until_its_topic_is_deleted() -> None:
    known = KnownTopics()
    made = topic("a.b")
    known.put(made)
    with pytest.raises(TopicAlreadyExists):
        known.check_free("a.b")
    with pytest.raises(InvalidTopic):
        known.check_free("a_b")
    known.drop(made)
    known.check_free("a.b")
    known.check_free("a_b")
