"""Fetch that waits: what ends the wait, and what does not."""

from __future__ import annotations

import time

import pytest
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.metadata import ApiVersionsRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import FETCH, offsets_of, read, write
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

LONG_MS = 600_000
"""Far longer than a `Wire` waits for an answer: what is answered did not wait for this to end."""


class TestLongPolls:
    def test_a_fetch_of_no_records_is_answered_after_max_wait(
        self, wire: Wire, target: Target
    ) -> None:
        began = time.monotonic()
        found = read(wire, target, 0, max_wait_ms=300, min_bytes=1)
        assert time.monotonic() - began > 0.29
        assert (found.error_code, found.high_watermark) == (0, 0)

    @pytest.mark.parametrize(
        "limits",
        [{"max_wait_ms": 0, "min_bytes": 1}, {"max_wait_ms": LONG_MS, "min_bytes": 0}],
        ids=["no time to wait", "no bytes to wait for"],
    )
    def test_a_fetch_with_nothing_to_wait_for_is_answered_at_once(
        self, wire: Wire, target: Target, limits: dict[str, int]
    ) -> None:
        assert read(wire, target, 0, **limits).high_watermark == 0

    def test_an_error_is_answered_at_once(self, wire: Wire, target: Target) -> None:
        found = read(wire, target, 5, max_wait_ms=LONG_MS, min_bytes=1)
        assert found.error_code == errors.OffsetOutOfRange.code

    def test_an_append_wakes_only_the_fetches_of_its_partition(
        self, broker: BrokerProcess, wire: Wire, topic: str
    ) -> None:
        target = messages.create_topic(wire, topic, partitions=2)
        waiting = messages.fetch(target, 0, max_wait_ms=LONG_MS, min_bytes=1)
        waiting.topics[0].partitions += messages.fetch(target, 0, partition=1).topics[0].partitions
        with Wire(broker) as poller, Wire(broker) as other:
            poll = poller.send_request(waiting, FETCH)
            elsewhere = messages.fetch(target, 0, partition=1, max_wait_ms=LONG_MS, min_bytes=1)
            other.send_request(elsewhere, FETCH)
            assert poller.is_silent_for(0.1)
            write(wire, target, messages.small_batch())
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions
            assert other.is_silent_for(0.1), "woken by another partition"
        assert [len(offsets_of(item)) for item in found] == [1, 0]

    def test_a_fetch_waits_until_min_bytes_have_come(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        size = len(messages.small_batch())
        waiting = messages.fetch(target, 0, max_wait_ms=LONG_MS, min_bytes=3 * size)
        with Wire(broker) as poller:
            poll = poller.send_request(waiting, FETCH)
            for _ in range(2):
                write(wire, target, messages.small_batch())
            assert poller.is_silent_for(0.1)
            write(wire, target, messages.small_batch())
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions[0]
        assert offsets_of(found) == [0, 2, 4]

    def test_a_fetch_of_fewer_than_min_bytes_is_answered_after_max_wait(
        self, wire: Wire, target: Target
    ) -> None:
        write(wire, target, messages.small_batch())
        assert offsets_of(read(wire, target, 0, max_wait_ms=200, min_bytes=1 << 20)) == [0]

    def test_deleting_the_topic_ends_a_long_poll(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        waiting = messages.fetch(target, 0, max_wait_ms=LONG_MS, min_bytes=1)
        with Wire(broker) as poller:
            poll = poller.send_request(waiting, FETCH)
            assert poller.is_silent_for(0.1)
            state = DeleteTopicsRequest.DeleteTopicState(name=target.name, topic_id=None)
            wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=10_000), 6)
            found = poller.receive_response(waiting, FETCH, poll).responses[0].partitions[0]
        assert found.error_code in (3, 100)

    def test_a_long_poll_holds_up_no_other_connection(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        pollers = [Wire(broker) for _ in range(50)]
        for poller in pollers:
            poller.send_request(messages.fetch(target, 0, max_wait_ms=LONG_MS, min_bytes=1), FETCH)
        wire.ask(ApiVersionsRequest(), 0)
        write(wire, target, messages.small_batch())
        for poller in pollers:
            poller.receive()
            poller.close()
