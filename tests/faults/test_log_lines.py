"""What clients can cause at will does not fill the log: it is counted, and said once a minute."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from tests.conftest import RunBroker
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import NOWHERE, Target, create_topic
from tests.support.one_partition import NO_ID
from tests.support.record_batches import Record, batch_of
from tests.support.sql_rows import SqlError
from tests.support.waiting import until
from tests.support.wire import Closed, Wire, frame, header

TIMES = 200
SLOW_TIMES = 20
"""Of what costs the broker much."""
CONNECTIONS_MAX = 50
LINES_MAX = 4
"""Of one kind of fault: two lines, and one with a number for each minute that ends meanwhile."""


@pytest.fixture(scope="module")
def quiet(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """A broker that writes a line only once, which the shared one of other tests does not."""
    with run_broker("quiet", max_connections=str(CONNECTIONS_MAX)) as process:
        yield process


def closed_after(broker: BrokerProcess, data: bytes) -> None:
    """Send this on a new connection, which the broker closes."""
    with Wire(broker) as wire, suppress(Closed):
        wire.send(data)
        wire.frames_until_closed()


def fail_without_acks(broker: BrokerProcess, name: str, times: int) -> None:
    nowhere = Target(NOWHERE, NO_ID)
    for _ in range(times):
        with Wire(broker) as wire:
            wire.send_request(messages.produce(nowhere, messages.small_batch(), acks=0), 9)
            wire.frames_until_closed()


def send_no_frames(broker: BrokerProcess, name: str, times: int) -> None:
    for number in range(times):
        closed_after(broker, frame(b"", claimed=-1 - number))


def send_bad_requests(broker: BrokerProcess, name: str, times: int) -> None:
    for number in range(times):
        closed_after(broker, frame(header(1000 + number, 0)))


def leave_within_a_request(broker: BrokerProcess, name: str, times: int) -> None:
    for number in range(times):
        with Wire(broker) as wire:
            wire.send(frame(header(3, 9), claimed=1000 + number))
            wire.reset()


def send_no_http(broker: BrokerProcess, name: str, times: int) -> None:
    host, port = broker.http.rsplit(":", 1)
    for number in range(times):
        with socket.create_connection((host, int(port)), 30.0) as client:
            client.sendall(b"\x16\x03\x01 %d\r\n\r\n" % number)
            with suppress(ConnectionResetError):
                client.recv(1)


def send_wrong_statements(broker: BrokerProcess, name: str, times: int) -> None:
    for number in range(times):
        with pytest.raises(SqlError):
            broker.sql(f"SELECT throwIf(1), not_there_{number}")


def ask_for_wrong_topics(broker: BrokerProcess, name: str, times: int) -> None:
    asked = MetadataRequest.MetadataRequestTopic
    with Wire(broker) as wire:
        for number in range(times):
            wire.ask(MetadataRequest(topics=[asked(name=f"/{number}")]), 1)


def leave_gaps_in_sequences(broker: BrokerProcess, name: str, times: int) -> None:
    with Wire(broker) as wire:
        target = create_topic(wire, name)
        for number in range(times):
            batch = batch_of(Record(), producer_id=7, producer_epoch=0, base_sequence=number * 10)
            wire.ask(messages.produce(target, batch.data), 9)


def create_and_delete_topics(broker: BrokerProcess, name: str, times: int) -> None:
    with Wire(broker) as wire:
        for number in range(times):
            topic = create_topic(wire, f"{name}-{number}").name
            wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 5)


def open_too_many_connections(broker: BrokerProcess, name: str, times: int) -> None:
    wires = [Wire(broker) for _ in range(times)]
    for wire in wires:
        wire.close()


@pytest.mark.parametrize(
    ("cause", "times"),
    [
        (fail_without_acks, TIMES),
        (send_no_frames, TIMES),
        (send_bad_requests, TIMES),
        (leave_within_a_request, TIMES),
        (send_no_http, TIMES),
        (send_wrong_statements, SLOW_TIMES),
        (ask_for_wrong_topics, TIMES),
        (leave_gaps_in_sequences, TIMES),
        (create_and_delete_topics, SLOW_TIMES),
        (open_too_many_connections, CONNECTIONS_MAX + TIMES),
    ],
)
def test_a_fault_that_a_client_repeats_is_a_handful_of_lines(
    quiet: BrokerProcess, topic: str, cause: Callable[[BrokerProcess, str, int], None], times: int
) -> None:
    before = quiet.log_size()
    cause(quiet, topic, times)
    with Wire(quiet) as wire:  # a connection of those before may still be open
        until(lambda: wire.ask(MetadataRequest(topics=[]), 1), "the broker answers")
    lines = quiet.log(before, 1 << 24).splitlines()
    assert len(lines) <= LINES_MAX, lines[:20]


@pytest.mark.test_all
def test_a_broker_that_stops_says_how_many_lines_it_left_out(
    own_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = own_broker()
    fail_without_acks(broker, topic, TIMES)
    broker.stop()
    printed = broker.log(0, 1 << 20)
    written = len(re.findall(r"acks=0 failed: .*\[broker", printed))
    left_out = sum(map(int, re.findall(r"acks=0 failed: .*\((\d+) lines like this", printed)))
    assert written <= LINES_MAX
    assert left_out + 1 == TIMES or written > 2, printed
