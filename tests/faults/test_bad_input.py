"""What a broken or hostile client can send, and what the broker does about it.

Every test ends in a clear answer or a closed connection with one log line, while another client
works on undisturbed (`Bystander`). Memory is measured from outside, as the process's resident set.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import zstandard
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest

from broker.api import APIS
from protocol import errors
from protocol.compression import compress
from protocol.decoder import ELEMENTS_MAX
from protocol.versions import ApiKey
from tests.conftest import OwnBrokers
from tests.faults.bystander import Bystander
from tests.support import messages, samples
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Batch, Record, batch_of, encode_records
from tests.support.sql_rows import SqlError
from tests.support.wire import Closed, Wire, decode, frame, header, request_body

REQUEST_MAX_BYTES = 104_857_600  # the default of request_max_bytes
MIB = 1 << 20
DEFECT = re.compile(r"Traceback|\[(error|critical) |never (retrieved|awaited)")
LAST_VERSIONS = [pytest.param(api.key, api.max_version, id=api.key.name) for api in APIS.values()]


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker) as connection:
        yield connection


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return messages.create_topic(wire, topic)


@pytest.fixture(autouse=True)
def no_defects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a client sends makes the broker log an error of its own."""
    if "broker" not in request.fixturenames:
        yield
        return
    broker: BrokerProcess = request.getfixturevalue("broker")
    before = broker.log_size()
    yield
    printed = broker.log(before, MIB)
    assert not DEFECT.search(printed), printed


@contextlib.contextmanager
def undisturbed(broker: BrokerProcess, topic: str) -> Iterator[Bystander]:
    with Bystander(broker, f"{topic}-bystander") as bystander:
        yield bystander


def is_closed(broker: BrokerProcess, data: bytes) -> str:
    """Send this on a new connection; the one line that the broker logged on hanging up."""
    before = broker.log_size()
    with Wire(broker) as wire:
        host, port = wire.socket.getsockname()
        wire.send(data)
        assert wire.frames_until_closed() == []
    lines = [line for line in broker.log(before, MIB).splitlines() if f"{host}:{port} " in line]
    (line,) = lines
    assert " closed: " in line
    return line.split(" closed: ")[1]


class TestFrames:
    @pytest.mark.parametrize(("key", "version"), LAST_VERSIONS)
    def test_a_request_that_ends_early_closes_the_connection(
        self, broker: BrokerProcess, target: Target, key: ApiKey, version: int
    ) -> None:
        body = request_body(samples.sample(key, version, target), version)
        for end in range(len(body)):
            assert is_closed(broker, frame(body[:end]))

    @pytest.mark.parametrize(("key", "version"), LAST_VERSIONS)
    def test_a_client_that_leaves_within_a_request_is_forgotten(
        self, broker: BrokerProcess, target: Target, key: ApiKey, version: int
    ) -> None:
        data = frame(request_body(samples.sample(key, version, target), version))
        for end in range(len(data)):
            with Wire(broker) as wire:
                wire.send(data[:end])
        with Wire(broker) as wire:
            wire.ask(ApiVersionsRequest(), 0)

    @pytest.mark.parametrize("claim", [-1, -(2**31), 2**31 - 1, REQUEST_MAX_BYTES + 1])
    def test_a_size_out_of_range_closes_the_connection(
        self, broker: BrokerProcess, claim: int
    ) -> None:
        reason = is_closed(broker, frame(b"", claim))
        assert str(claim) in reason
        assert str(REQUEST_MAX_BYTES) in reason

    def test_what_came_before_a_bad_frame_is_not_lost_and_what_follows_is_not_read(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        request = frame(request_body(messages.produce(target, messages.small_batch()), 9))
        wire.send(request)
        wire.receive()
        wire.send(frame(b"", -1) + request * 3)
        with pytest.raises(Closed):
            wire.receive()
        with Wire(broker) as other:
            (found,) = other.ask(messages.list_offsets(target, -1), 7).topics[0].partitions
        assert found.offset == 2

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", id="HTTP"),
            pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), id="TLS"),
            pytest.param(b"SSH-2.0-OpenSSH_9.2p1\r\n", id="SSH"),
            pytest.param(b"\0" * 64, id="zeros"),
            pytest.param(b"\xff" * 64, id="ones"),
        ],
    )
    def test_another_protocol_closes_the_connection(
        self, broker: BrokerProcess, data: bytes
    ) -> None:
        assert is_closed(broker, data)

    def test_a_request_that_comes_byte_by_byte_is_answered(
        self, broker: BrokerProcess, target: Target
    ) -> None:
        wires = [Wire(broker) for _ in range(20)]
        data = frame(request_body(messages.produce(target, messages.small_batch()), 9))
        for at in range(len(data)):
            for wire in wires:
                wire.send(data[at : at + 1])
        offsets = set()
        for wire in wires:
            _, answer = decode(APIS[ApiKey.Produce].response, 9, wire.receive())
            offsets.add(answer.responses[0].partition_responses[0].base_offset)
            wire.close()
        assert offsets == set(range(0, 40, 2))

    def test_bytes_that_are_not_utf_8_close_the_connection(self, broker: BrokerProcess) -> None:
        topics = struct.pack(">ih", 1, 2) + b"\xc3\x28"
        assert "utf-8" in is_closed(broker, frame(header(3, 1) + topics))
        assert "utf-8" in is_closed(broker, frame(header(3, 1, client_id=b"\xff\xfe") + topics))

    def test_what_a_client_names_cannot_break_a_log_line(self, broker: BrokerProcess) -> None:
        nowhere = Target("nowhere\nforged\x1b[2J", UUID(int=1))
        request = messages.produce(nowhere, messages.small_batch(), acks=0)
        reason = is_closed(broker, frame(request_body(request, 9)))
        assert "nowhere\\nforged\\x1b[2J" in reason


class TestVersions:
    @pytest.mark.parametrize("key", [24, 26, 68, 999, 2**15 - 1, -1, -(2**15)])
    def test_an_unknown_api_closes_the_connection(self, broker: BrokerProcess, key: int) -> None:
        assert f"API key {key} version 0" in is_closed(broker, frame(header(key, 0)))

    @pytest.mark.parametrize(
        ("key", "version"),
        [case for case in LAST_VERSIONS if case.values[0] is not ApiKey.ApiVersions],
    )
    def test_an_unknown_version_closes_the_connection(
        self, broker: BrokerProcess, target: Target, key: ApiKey, version: int
    ) -> None:
        body = request_body(samples.sample(key, version, target), version)
        first = APIS[key].min_version
        for unknown in {version + 1, 2**15 - 1, -1, -(2**15), *range(first)}:
            spoilt = body[:2] + struct.pack(">h", unknown) + body[4:]
            assert f"version {unknown} is not served" in is_closed(broker, frame(spoilt))

    @pytest.mark.parametrize("version", [5, 6, 99, 2**15 - 1, -1])
    def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
        self, broker: BrokerProcess, wire: Wire, version: int
    ) -> None:
        """KIP-511: so that the client can ask again with a version that it now knows."""
        wire.send(frame(struct.pack(">hhih", 18, version, 77, -1) + b"whatever it is \xff"))
        correlation_id, answer = decode(APIS[ApiKey.ApiVersions].response, 0, wire.receive())
        assert correlation_id == 77
        assert answer.error_code == 35
        assert {item.api_key for item in answer.api_keys} == {int(key) for key in APIS}
        assert wire.ask(ApiVersionsRequest(), 0).error_code == 0


class TestCounts:
    @pytest.mark.parametrize("count", [2**31 - 1, 2**30, 100_000, -2, -(2**31)])
    @pytest.mark.parametrize(
        ("key", "version", "before"),
        [
            pytest.param(ApiKey.Metadata, 1, b"", id="Metadata"),
            pytest.param(ApiKey.Produce, 3, struct.pack(">hhi", -1, 1, 1000), id="Produce"),
            pytest.param(ApiKey.Fetch, 4, struct.pack(">iiiib", -1, 0, 0, 0, 0), id="Fetch"),
            pytest.param(ApiKey.ListOffsets, 1, struct.pack(">i", -1), id="ListOffsets"),
            pytest.param(ApiKey.CreateTopics, 2, b"", id="CreateTopics"),
            pytest.param(ApiKey.DeleteTopics, 1, b"", id="DeleteTopics"),
            pytest.param(ApiKey.DescribeConfigs, 1, b"", id="DescribeConfigs"),
        ],
    )
    def test_a_count_that_the_frame_cannot_hold_closes_the_connection(
        self, broker: BrokerProcess, key: ApiKey, version: int, before: bytes, count: int
    ) -> None:
        before_bytes = broker.rss_bytes()
        claimed = frame(header(key, version) + before + struct.pack(">i", count) + bytes(60))
        assert is_closed(broker, claimed)
        assert broker.rss_bytes() - before_bytes < 20 * MIB

    def test_a_request_of_very_many_elements_closes_the_connection(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        names = struct.pack(">i", 40 * MIB) + bytes(2 * 40 * MIB)
        with undisturbed(broker, topic):
            assert "more elements" in is_closed(broker, frame(header(3, 1) + names))

    def test_requests_about_very_many_partitions_hold_up_nobody(
        self, broker: BrokerProcess, wire: Wire, topic: str, target: Target
    ) -> None:
        asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
        offsets = messages.list_offsets(target, 0)
        offsets.topics[0].partitions = [
            asked(partition_index=index, current_leader_epoch=-1, timestamp=0)
            for index in range(ELEMENTS_MAX - 10)
        ]
        reading = messages.fetch(target, 0)
        reading.topics[0].partitions *= 20_000
        writing = messages.produce(target, messages.small_batch())
        writing.topic_data[0].partition_data *= 1000
        with undisturbed(broker, topic):
            listed = wire.ask(offsets, 7).topics[0].partitions
            assert [item.error_code for item in listed[1:]] == [3] * (ELEMENTS_MAX - 11)
            wire.ask(reading, 12)
            wire.ask(writing, 9)


class TestMemory:
    def test_claims_of_hundreds_of_connections_cost_nothing(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        with undisturbed(broker, topic), contextlib.ExitStack() as wires:
            before_bytes = broker.rss_bytes()
            for _ in range(300):
                wire = wires.enter_context(Wire(broker))
                wire.send(frame(b"\0" * 100, REQUEST_MAX_BYTES))
            for _ in range(300):
                assert is_closed(broker, frame(b"", 2**31 - 1))
            assert broker.rss_bytes() - before_bytes < 50 * MIB

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
            with Wire(broker) as wire:
                target = messages.create_topic(wire, topic)
                batch = batch_of(Record(value=bytes(8 * MIB))).data
                assert _written(wire, target, batch) == 0
            assert broker.rss_bytes() - before_bytes < 250 * MIB
            for wire in hoarders:
                wire.reset()
            for thread in threads:
                thread.join(10)
        assert "stopped arriving while others wait" in broker.log()

    def test_clients_that_never_read_their_answers_cost_bounded_memory(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker(tail_cache_bytes=str(64 * MIB), in_flight_max_bytes=str(128 * MIB))
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            batch = batch_of(Record(value=os.urandom(900_000)), max_timestamp=messages.TIME_MS)
            for _ in range(50):
                wire.ask(messages.produce(target, batch.data), 9)
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

    def test_a_thousand_connections_that_come_and_go_leave_nothing_behind(
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
            _wait_until(lambda: len(list(descriptors.iterdir())) <= open_before + 5)
            assert broker.rss_bytes() - before_bytes < 30 * MIB

    def test_connections_past_the_limit_are_closed_and_the_others_served(
        self, own_broker: OwnBrokers
    ) -> None:
        broker = own_broker(max_connections="20")
        with contextlib.ExitStack() as wires:
            served = [wires.enter_context(Wire(broker)) for _ in range(20)]
            for wire in served:
                wire.ask(ApiVersionsRequest(), 0)
            refused = wires.enter_context(Wire(broker))
            with pytest.raises(Closed):
                refused.ask(ApiVersionsRequest(), 0)
            for wire in served:
                wire.ask(ApiVersionsRequest(), 0)
            served[0].close()
            _wait_until(lambda: _is_served(broker))
        assert "the limit of connections is reached" in broker.log()

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
            _wait_until(lambda: len(list(descriptors.iterdir())) <= open_before + 5)
        assert _written(wire, target, messages.small_batch()) == 0

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
        # A reset may overtake the request; what came whole is stored.
        _wait_until(lambda: _end(wire, target, 0) >= 100)
        assert _end(wire, target, 0) % 2 == 0


def _batch_cases() -> Iterator[tuple[str, bytes | None, int]]:
    sound = batch_of(Record(0, b"key", b"value"), Record(1, None, b"x"))
    payload = sound.payload
    corrupt, invalid = errors.CorruptMessage.code, errors.InvalidRecord.code
    yield "no records at all", None, invalid
    yield "an empty set of records", b"", invalid
    yield "two batches", sound.data * 2, invalid
    yield "a batch and a byte", sound.data + b"\0", corrupt
    yield "a CRC of something else", sound.data[:-1] + b"\x7f", corrupt
    for size in (0, 48, -1, -(2**31), 2**31 - 1):
        yield f"a length of {size}", sound.data[:8] + struct.pack(">i", size) + sound.data[12:], (
            corrupt
        )  # fmt: skip
    for magic in (0, 1):
        yield f"message format {magic}", replace(sound, magic=magic).data, invalid
    for magic in (3, 127, -1):
        yield f"magic {magic}", replace(sound, magic=magic).data, corrupt
    for count in (0, -1, 1, 3, 2**31 - 1, -(2**31)):
        yield f"a count of {count}", replace(sound, count=count, last_offset_delta=1).data, invalid
    for delta in (0, 2, -1, 2**31 - 1, -(2**31)):
        yield f"a last offset of {delta}", replace(sound, last_offset_delta=delta).data, invalid
    for cut in range(len(payload)):
        yield f"records cut at {cut}", replace(sound, payload=payload[:cut]).data, invalid
    yield "a byte after the records", replace(sound, payload=payload + b"\0").data, invalid
    yield "endless varints", replace(sound, payload=b"\xff" * 1000).data, invalid
    yield "a control batch", replace(sound, attributes=0x20).data, invalid
    yield "a transaction", replace(sound, attributes=0x10, producer_id=1).data, invalid
    yield "a producer without a sequence", replace(sound, producer_id=1).data, invalid
    for codec in (5, 6, 7):
        yield f"codec {codec}", replace(sound, attributes=codec).data, (
            errors.UnsupportedCompressionType.code
        )  # fmt: skip
    for codec in (1, 2, 3, 4):
        compressed = compress(codec, payload)
        for name, spoilt in (
            ("nothing", b""),
            ("something else", b"this is not compressed at all"),
            ("half of it", compressed[: len(compressed) // 2]),
            ("all but a byte", compressed[:-1]),
        ):
            yield (
                f"codec {codec} of {name}",
                replace(sound, payload=spoilt, attributes=codec).data,
                (corrupt),
            )


BATCHES = [pytest.param(data, code, id=name) for name, data, code in _batch_cases()]


class TestRecordBatches:
    @pytest.mark.parametrize(("records", "code"), BATCHES)
    def test_a_wrong_batch_is_refused_and_the_right_one_beside_it_stored(
        self, wire: Wire, shared_target: Target, records: bytes | None, code: int
    ) -> None:
        request = messages.produce(shared_target, records)
        beside = messages.produce(shared_target, messages.small_batch(), partition=1)
        request.topic_data[0].partition_data += beside.topic_data[0].partition_data
        wrong, right = wire.ask(request, 9).responses[0].partition_responses
        assert (wrong.error_code, wrong.base_offset) == (code, -1)
        assert wrong.error_message
        assert right.error_code == 0
        assert _end(wire, shared_target, 0) == 0
        assert _end(wire, shared_target, 1) == right.base_offset + 2

    def test_every_flipped_bit_under_the_crc_is_found(
        self, wire: Wire, shared_target: Target
    ) -> None:
        data = batch_of(Record(0, b"key", b"value", ((b"h", None),))).data
        first_checked = 16  # base offset, length and leader epoch are not under the CRC
        for at in range(first_checked, len(data)):
            for bit in range(8):
                spoilt = bytearray(data)
                spoilt[at] ^= 1 << bit
                assert _error(wire, shared_target, bytes(spoilt)) != 0, f"bit {bit} of byte {at}"
        assert _end(wire, shared_target, 0) == 0

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_a_bomb_is_refused_before_it_goes_off(
        self, broker: BrokerProcess, wire: Wire, topic: str, shared_target: Target, codec: int
    ) -> None:
        """Far more than the 128 MB that are allowed, in less than the 1 MB of a batch."""
        bomb = _bomb(codec)
        batch = Batch(bomb, 1, attributes=codec).data
        assert len(batch) < MIB
        with undisturbed(broker, topic):
            before_bytes = broker.rss_bytes()
            expected = errors.CorruptMessage if codec == 2 else errors.MessageTooLarge
            for _ in range(10):
                assert _error(wire, shared_target, batch) == expected.code
            assert broker.rss_bytes() - before_bytes < 200 * MIB

    def test_many_batches_that_grow_on_decompression_are_stored_in_bounded_memory(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """Each is sound, small, and 32 MB once decompressed; as one block they were 1 GB."""
        broker = own_broker(lanes="1")
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            payload = encode_records([Record(value=bytes(32 * MIB))])
            batch = Batch(compress(4, payload), 1, attributes=4).data
            assert len(batch) < 64 * 1024
            request = messages.produce(target, batch)
            for number in range(4):
                assert _written(wire, target, batch) == number
            before_bytes = most_bytes = broker.rss_bytes()
            for correlation_id in [wire.send_request(request, 9) for _ in range(30)]:
                answer = wire.receive_response(request, 9, correlation_id)
                assert answer.responses[0].partition_responses[0].error_code == 0
                most_bytes = max(most_bytes, broker.rss_bytes())
        grown = most_bytes - before_bytes
        assert grown < 800 * MIB, f"grew by {grown // MIB} MB"

    def test_a_batch_larger_than_the_topic_takes_is_refused(
        self, wire: Wire, shared_target: Target
    ) -> None:
        batch = batch_of(Record(value=bytes(1_048_588))).data
        assert _error(wire, shared_target, batch) == errors.MessageTooLarge.code


@pytest.fixture(scope="module")
def shared_target(broker: BrokerProcess) -> Target:
    """A topic whose partition 0 never takes anything, because all that comes is wrong."""
    with Wire(broker) as wire:
        return messages.create_topic(wire, "bad-input-shared", partitions=2)


class TestSql:
    def test_sql_that_fails_disturbs_no_producer(self, broker: BrokerProcess, topic: str) -> None:
        wrong = [
            "SELECT",
            "SELECT nothing FROM nowhere",
            "SELECT * FROM messages WHERE throwIf(1)",
            "SELECT toUInt8('x')",
            "SELECT sleep(4)",
            "INSERT INTO messages (topic) VALUES ('forged')",
            "DROP TABLE messages",
            "SELECT * FROM file('/etc/passwd', 'LineAsString')",
            "SELECT range(1000000000)",
            "SELECT '" + "x" * 300_000,
            "(" * 5000,
            "\x00\xff",
        ]
        with undisturbed(broker, topic):
            before_bytes = broker.rss_bytes()
            for _ in range(5):
                for query in wrong:
                    with pytest.raises(SqlError):
                        broker.sql(query)
            assert broker.rss_bytes() - before_bytes < 300 * MIB
        assert broker.sql("SELECT 1 AS one") == [{"one": 1}]

    def test_http_that_is_none_disturbs_nobody(self, broker: BrokerProcess, topic: str) -> None:
        host, port = broker.http.rsplit(":", 1)
        with undisturbed(broker, topic):
            for data in (
                b"\0" * 1000,
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET " + b"/" * 100_000,
                b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nSELECT 1",
                b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                frame(request_body(ApiVersionsRequest(), 0)),
            ):
                with socket.create_connection((host, int(port)), 10) as connection:
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(data)
                        connection.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionError):
                        while connection.recv(65536):
                            pass
        assert broker.sql("SELECT 1 AS one") == [{"one": 1}]


def _send_all(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(OSError, Closed):
        wire.send(data)


def _is_served(broker: BrokerProcess) -> bool:
    try:
        with Wire(broker) as wire:
            wire.ask(ApiVersionsRequest(), 0)
    except Closed:
        return False
    return True


def _wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def _error(wire: Wire, target: Target, records: bytes) -> int:
    answer = wire.ask(messages.produce(target, records), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def _written(wire: Wire, target: Target, records: bytes) -> int:
    answer = wire.ask(messages.produce(target, records), 9).responses[0].partition_responses[0]
    assert answer.error_code == 0
    return int(answer.base_offset)


def _end(wire: Wire, target: Target, partition: int) -> int:
    asked = messages.list_offsets(target, -1, partition)
    return int(wire.ask(asked, 7).topics[0].partitions[0].offset)


def _bomb(codec: int) -> bytes:
    """200 MB of zeros or more; snappy shrinks nothing that much, so there it is a claim."""
    zeros = bytes(200 * MIB)
    if codec == 1:
        return gzip.compress(zeros, 1)
    if codec == 2:
        return b"\x80\x80\x80\x80\x04" + bytes(MIB // 2)
    if codec == 3:
        return compress(codec, zeros)
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    return b"".join([*(compressor.compress(bytes(MIB)) for _ in range(1024)), compressor.flush()])
