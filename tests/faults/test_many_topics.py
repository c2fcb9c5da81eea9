"""A single broker with 100,000 topics: docs/lab-notes/2026-11.md says what they cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import NO_ID
from tests.support.wire import Wire

TOPICS = 100_000
AT_ONCE = 5_000
LIMIT_S = 300.0
TOPIC_MAX_BYTES = 5_000
STALL_MAX_PART = 0.5
"""The part of the time for the first Metadata answer that a producer may wait for its own."""


def create(broker: BrokerProcess, first: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=f"topic-{number:06}",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            for number in range(first, first + AT_ONCE)
        ],
        timeout_ms=int(LIMIT_S * 1000),
        validate_only=False,
    )
    with Wire(broker, limit_s=LIMIT_S) as wire:
        assert {made.error_code for made in wire.ask(request, 5).topics} == {0}


def longest_append_s(broker: BrokerProcess, until: threading.Event) -> float:
    """How long a producer had to wait at most."""
    target = Target("topic-000007", NO_ID)
    longest = 0.0
    with Wire(broker, limit_s=LIMIT_S) as wire:
        while not until.is_set():
            began = time.monotonic()
            wire.ask(messages.produce(target, messages.small_batch()), 9)
            longest = max(longest, time.monotonic() - began)
    return longest


def metadata_of_all(broker: BrokerProcess) -> bytes:
    """Not decoded: that would keep the producer of this process waiting."""
    with Wire(broker, limit_s=LIMIT_S) as wire:
        wire.send_request(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9)
        return wire.receive()


@pytest.mark.test_all
def test_a_hundred_thousand_topics_cost_what_the_page_of_limits_says(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    broker = own_broker()
    empty_bytes = broker.rss_bytes()
    for first in range(0, TOPICS, AT_ONCE):
        create(broker, first)
    broker.stop()
    broker.start()
    assert broker.rss_bytes() - empty_bytes < TOPICS * TOPIC_MAX_BYTES
    answered = threading.Event()
    took_s: list[float] = []

    def ask() -> None:
        began = time.monotonic()
        try:
            assert metadata_of_all(broker).count(b"topic-") == TOPICS
            took_s.append(time.monotonic() - began)
        finally:
            answered.set()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        longest_s = longest_append_s(broker, answered)
    finally:
        asking.join()
    assert longest_s < STALL_MAX_PART * took_s[0]
