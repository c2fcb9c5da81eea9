"""Clients that would fill the memory of the broker, its connections or its time.

Every test ends in a clear answer or a closed connection with one log line, while another client
works on undisturbed (`Bystander`). Memory is measured from outside, as the
process's resident set.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from tests.conftest import OwnBrokers, RunBroker
from tests.faults.bystander import undisturbed
from tests.support import messages
from tests.support.broker_log import closing_reason
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import end_of, write
from tests.support.record_batches import Record, batch_of
from tests.support.waiting import until
from tests.support.wire import Closed, Wire, frame, request_body

REQUEST_MAX_BYTES = 104_857_600  # the default of request_max_bytes
MIB = 1 << 20


@pytest.fixture(scope="module")
def narrow(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """A broker that takes twenty connections."""
    with run_broker("narrow", max_connections="20") as process:
        yield process


class TestMemory:
    def test_hundreds_of_connections_that_announce_large_requests_cost_no_memory(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        with undisturbed(broker, topic), contextlib.ExitStack() as wires:
            before_bytes = broker.rss_bytes()
            for _ in range(300):
                wire = wires.enter_context(Wire(broker))
                wire.send(frame(b"\0" * 100, REQUEST_MAX_BYTES))
            for _ in range(300):
                assert closing_reason(broker, frame(b"", 2**31 - 1))
            assert broker.rss_bytes() - before_bytes < 50 * MIB

    @pytest.mark.test_all
    def test_half_sent_requests_that_fill_the_budget_hold_up_others_for_seconds_only(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """30 clients send 4 MB each of a request of 32 MB; the limit for all of them is 32 MB."""
        broker = own_broker(
            in_flight_max_bytes=str(32 * MIB),
            request_max_bytes=str(32 * MIB),
            message_max_bytes=str(16 * MIB),
        )
        with undisturbed(broker, topic), contextlib.ExitStack() as wires:
            before_bytes = broker.rss_bytes()
            hoarders = [wires.enter_context(Wire(broker)) for _ in range(30)]
            data = frame(bytes(4 * MIB), 32 * MIB)
            threads = [
                threading.Thread(target=_send_all, args=(wire, data), daemon=True)
                for wire in hoarders
            ]
            for thread in threads:
                thread.start()
            until(
                lambda: broker.rss_bytes() - before_bytes > 28 * MIB, "the hoarders fill the budget"
            )
            with Wire(broker) as wire:
                target = messages.create_topic(wire, topic)
                batch = batch_of(Record(value=bytes(8 * MIB))).data
                assert write(wire, target, batch, 9) == 0
            assert broker.rss_bytes() - before_bytes < 250 * MIB
            for wire in hoarders:
                wire.reset()
            for thread in threads:
                thread.join(10)
        assert "stopped arriving while other connections wait" in broker.log()

    @pytest.mark.test_all
    def test_clients_that_never_read_their_answers_cost_bounded_memory(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(tail_cache_bytes=str(64 * MIB), response_memory_bytes=str(128 * MIB))
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            batch = batch_of(Record(value=os.urandom(900_000)), max_timestamp=messages.TIME_MS)
            for _ in range(50):
                wire.ask(messages.produce(target, batch.data), 9)
        assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 50}]  # not in the journal
        asked = frame(request_body(messages.fetch(target, 0, partition_max_bytes=50 * MIB), 12))
        with undisturbed(broker, topic), contextlib.ExitStack() as wires:
            before_bytes = broker.rss_bytes()
            for _ in range(60):
                wire = wires.enter_context(Wire(broker, receive_buffer_bytes=4096))
                wire.send(asked * 20)
            with Wire(broker) as wire:
                wire.ask(messages.fetch(target, 0), 12)
            grown = broker.rss_bytes() - before_bytes
        assert grown < 300 * MIB, f"grew by {grown // MIB} MB"

    def test_a_thousand_connections_that_come_and_go_leave_no_descriptors_and_no_memory(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        descriptors = Path(f"/proc/{broker.pid}/fd")
        with undisturbed(broker, topic):
            open_before, before_bytes = len(list(descriptors.iterdir())), broker.rss_bytes()
            for kind in range(4):
                wires = [Wire(broker) for _ in range(250)]
                for wire in wires:
                    if kind == 1:
                        wire.send(b"\0\0")
                    if kind == 2:
                        wire.ask(ApiVersionsRequest(), 0)
                    if kind == 3:
                        wire.reset()
                    wire.close()
            until(lambda: len(list(descriptors.iterdir())) <= open_before + 5)
            assert broker.rss_bytes() - before_bytes < 30 * MIB

    def test_connections_past_the_limit_are_closed_and_the_others_served(
        self, narrow: BrokerProcess
    ) -> None:
        with contextlib.ExitStack() as wires:
            served = [wires.enter_context(Wire(narrow)) for _ in range(20)]
            for wire in served:
                wire.ask(ApiVersionsRequest(), 0)
            refused = wires.enter_context(Wire(narrow))
            with pytest.raises(Closed):
                refused.ask(ApiVersionsRequest(), 0)
            for wire in served:
                wire.ask(ApiVersionsRequest(), 0)
            served[0].close()
            until(lambda: _is_served(narrow))
        assert "max_connections is reached" in narrow.log()

    @pytest.mark.parametrize("sent", [b"", b"\0\0\1\0half"], ids=["nothing", "half a frame"])
    def test_one_address_that_has_all_connections_loses_one_to_another_address(
        self, narrow: BrokerProcess, sent: bytes
    ) -> None:
        asked = frame(request_body(ApiVersionsRequest(), 0))
        with contextlib.ExitStack() as held:
            for _ in range(25):
                connection = held.enter_context(_connected(narrow, "127.0.0.1"))
                with contextlib.suppress(ConnectionError):  # the last five are refused
                    connection.sendall(sent)
            other = held.enter_context(_connected(narrow, "127.0.0.2"))
            other.sendall(asked)
            assert other.recv(65536)
            with _connected(narrow, "127.0.0.1") as same, contextlib.suppress(ConnectionError):
                same.sendall(asked)
                assert not same.recv(65536)

    def test_clients_that_leave_in_a_long_poll_are_forgotten(
        self, broker: BrokerProcess, wire: Wire, topic: str, target: Target
    ) -> None:
        descriptors = Path(f"/proc/{broker.pid}/fd")
        waiting = messages.fetch(target, 0, max_wait_ms=2**31 - 1, min_bytes=1)
        open_before = len(list(descriptors.iterdir()))
        with undisturbed(broker, topic):
            wires = [Wire(broker) for _ in range(200)]
            for number, waiter in enumerate(wires):
                waiter.send_request(waiting, 12)
                if number % 2:
                    waiter.reset()
            assert wires[0].is_silent_for(0.1)
            for waiter in wires:
                waiter.close()
            until(lambda: len(list(descriptors.iterdir())) <= open_before + 5)
        assert write(wire, target, messages.small_batch(), 9) == 0

    def test_a_client_that_leaves_before_its_answer_has_its_records_stored(
        self, broker: BrokerProcess, wire: Wire, topic: str, target: Target
    ) -> None:
        request = messages.produce(target, messages.small_batch())
        with undisturbed(broker, topic):
            for number in range(100):
                leaver = Wire(broker)
                leaver.send_request(request, 9)
                if number % 2:
                    leaver.reset()
                else:
                    leaver.close()
        # A reset may overtake the request. A request that arrived in full is stored.
        until(lambda: end_of(wire, target, 0) >= 100)
        assert end_of(wire, target, 0) % 2 == 0


def _send_all(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(OSError, Closed):
        wire.send(data)


def _connected(broker: BrokerProcess, source: str) -> socket.socket:
    host, port = broker.kafka.split(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


def _is_served(broker: BrokerProcess) -> bool:
    try:
        with Wire(broker) as wire:
            wire.ask(ApiVersionsRequest(), 0)
    except Closed:
        return False
    return True
