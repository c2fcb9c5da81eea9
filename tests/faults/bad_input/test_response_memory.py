"""Crowds of clients that ask for much and do not read it: the memory of responses is bounded.

All connections are open before the first one asks, and then all ask at once, so that each request
starts while nobody holds anything yet. Memory is the resident set of the broker's process.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest

from tests.conftest import OwnBrokers
from tests.faults.bystander import Bystander
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of
from tests.support.waiting import until
from tests.support.wire import Wire, frame, request_body

MIB = 1 << 20
CROWD = 300
BUDGET_BYTES = 64 * MIB
MARGIN_BYTES = 100 * MIB
"""Python objects of 300 connections, what the engine and the allocator keep, 8 cold reads."""
STORED_BYTES = 48 * MIB

Asked = Callable[[Target, int], bytes]
"""What the nth client of a crowd sends."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def framed(request: ApiMessage, version: int) -> bytes:
    return frame(request_body(request, version))


def fetches(times: int) -> Asked:
    """Fetches of everything, from offset 0 on."""

    def asked(target: Target, number: int) -> bytes:
        request = messages.fetch(target, 0, partition_max_bytes=50 * MIB)
        return framed(request, 4) * times

    return asked


def fetches_of_different_batches(target: Target, number: int) -> bytes:
    request = messages.fetch(target, number * 13, partition_max_bytes=50 * MIB)
    return framed(request, 4) * 3


def long_polls(target: Target, number: int) -> bytes:
    request = messages.fetch(
        target, 0, partition_max_bytes=50 * MIB, min_bytes=2**31 - 1, max_wait_ms=600_000
    )
    return framed(request, 4)


def metadata(target: Target, number: int) -> bytes:
    return framed(MetadataRequest(topics=None, allow_auto_topic_creation=False), 9) * 20


def half_a_frame(target: Target, number: int) -> bytes:
    return frame(bytes(200_000), 1_000_000)


def fill(broker: BrokerProcess, topic: str, batch_bytes: int) -> Target:
    """Store records in batches of this size."""
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        batch = batch_of(
            Record(value=os.urandom(batch_bytes - 100)), max_timestamp=messages.TIME_MS
        )
        produce = framed(messages.produce(target, batch.data), 9)
        count = STORED_BYTES // batch_bytes
        for first in range(0, count, 50):
            batches = min(50, count - first)
            wire.send(produce * batches)
            for _ in range(batches):
                wire.receive()
        rows = broker.sql("SELECT count() AS n FROM messages")  # they are not in the journal then
        assert rows == [{"n": count}]
        wire.ask(messages.fetch(target, 0), 12)
    return target


@pytest.mark.usefixtures("many_descriptors")
class TestCrowd:
    @pytest.mark.test_all
    @pytest.mark.parametrize(
        ("batch_bytes", "tail_cache_bytes", "asked"),
        [
            pytest.param(4_000, 256 * MIB, fetches(1), id="small batches that are cached"),
            pytest.param(900_000, 0, fetches(20), id="large batches of the table, pipelined"),
            pytest.param(
                20_000, 256 * MIB, fetches_of_different_batches, id="everybody reads other batches"
            ),
            pytest.param(4_000, 256 * MIB, long_polls, id="fetches that wait for more"),
        ],
    )
    def test_responses_that_nobody_reads_stay_within_their_budget(
        self,
        own_broker: OwnBrokers,
        topic: str,
        batch_bytes: int,
        tail_cache_bytes: int,
        asked: Asked,
    ) -> None:
        broker = own_broker(
            response_memory_bytes=str(BUDGET_BYTES),
            tail_cache_bytes=str(tail_cache_bytes),
            cold_cache_bytes=str(16 * MIB),
        )
        target = fill(broker, topic, batch_bytes)
        grown = growth_under(broker, topic, target, [asked])
        assert grown < BUDGET_BYTES + MARGIN_BYTES, f"grew by {grown // MIB} MB"

    def test_responses_of_every_kind_and_half_sent_requests_stay_within_their_budgets(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(
            response_memory_bytes=str(BUDGET_BYTES),
            in_flight_max_bytes=str(32 * MIB),
            request_max_bytes=str(32 * MIB),
            response_send_timeout_ms="3000",
        )
        with Wire(broker) as wire:
            for number in range(20):
                messages.create_topic(wire, f"{topic}-{number}", 50)
        target = fill(broker, topic, 10_000)
        kinds = [fetches(1), fetches_of_different_batches, long_polls, metadata, half_a_frame]
        grown = growth_under(
            broker, topic, target, kinds, until_told="its client has read nothing for"
        )
        assert grown < BUDGET_BYTES + 32 * MIB + MARGIN_BYTES, f"grew by {grown // MIB} MB"


def growth_under(
    broker: BrokerProcess,
    topic: str,
    target: Target,
    kinds: list[Asked],
    *,
    until_told: str = "",
) -> int:
    """How much the broker grew while a crowd asked, and another client went on undisturbed.

    The crowd asks for 4 s at least, until the other client has got on and the broker has logged
    `until_told`.
    """
    with (
        ExitStack() as wires,
        Bystander(broker, f"{topic}-bystander") as bystander,
    ):
        crowd = [wires.enter_context(Wire(broker, receive_buffer_bytes=4096)) for _ in range(CROWD)]
        before_bytes = broker.rss_bytes()
        for number, wire in enumerate(crowd):
            wire.send(kinds[number % len(kinds)](target, number))
        most_bytes, end = 0, time.monotonic() + 4
        stored = bystander.stored

        def is_over() -> bool:
            nonlocal most_bytes
            most_bytes = max(most_bytes, broker.rss_bytes())
            for wire in crowd[::10]:
                trickle(wire)
            got_on = bystander.stored > stored + 5
            return time.monotonic() > end and got_on and until_told in broker.log()

        until(is_over, "the bystander gets on", every_s=0.05)
    return most_bytes - before_bytes


def trickle(wire: Wire) -> None:
    """Read one byte if there is one, or the end of a closed connection."""
    try:
        wire.socket.setblocking(False)
        wire.socket.recv(1)
    except (BlockingIOError, ConnectionResetError):
        pass
    finally:
        wire.socket.settimeout(30)
