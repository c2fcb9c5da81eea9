"""Frames, versions and counts that are wrong.

Every test ends in a clear answer or a closed connection with one log line, while another client
works on undisturbed (`Bystander`).
"""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.decoder import ELEMENTS_MAX
from brokerhouse.protocol.versions import ApiKey
from tests.faults.bystander import undisturbed
from tests.support import messages, samples
from tests.support.broker_log import closing_reason
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.wire import Closed, Wire, decode, frame, header, request_body

REQUEST_MAX_BYTES = 104_857_600  # the default of request_max_bytes
MIB = 1 << 20
LAST_VERSIONS = [pytest.param(api.key, api.max_version, id=api.key.name) for api in APIS.values()]


class TestFrames:
    @pytest.mark.parametrize(("key", "version"), LAST_VERSIONS)
    def test_a_request_that_ends_early_closes_the_connection(
        self, broker: BrokerProcess, target: Target, key: ApiKey, version: int
    ) -> None:
        body = request_body(samples.sample(key, version, target), version)
        for end in range(len(body)):
            assert closing_reason(broker, frame(body[:end]))

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
        reason = closing_reason(broker, frame(b"", claim))
        assert str(claim) in reason
        assert str(REQUEST_MAX_BYTES) in reason

    def test_requests_before_a_bad_frame_are_stored_and_those_after_it_are_not_read(
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
        assert closing_reason(broker, data)

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
        assert "utf-8" in closing_reason(broker, frame(header(3, 1) + topics))
        assert "utf-8" in closing_reason(
            broker, frame(header(3, 1, client_id=b"\xff\xfe") + topics)
        )

    def test_names_that_clients_send_are_escaped_in_log_lines(self, broker: BrokerProcess) -> None:
        nowhere = Target("nowhere\nforged\x1b[2J", UUID(int=1))
        request = messages.produce(nowhere, messages.small_batch(), acks=0)
        reason = closing_reason(broker, frame(request_body(request, 9)))
        assert "nowhere\\nforged\\x1b[2J" in reason


class TestVersions:
    @pytest.mark.parametrize("key", [38, 79, 999, 2**15 - 1, -1, -(2**15)])
    def test_an_unknown_api_closes_the_connection(self, broker: BrokerProcess, key: int) -> None:
        assert f"API key {key} version 0" in closing_reason(broker, frame(header(key, 0)))

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
            assert f"version {unknown} is not served" in closing_reason(broker, frame(spoilt))

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
        assert closing_reason(broker, claimed)
        assert broker.rss_bytes() - before_bytes < 20 * MIB

    def test_a_request_of_very_many_elements_closes_the_connection(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        names = struct.pack(">i", 40 * MIB) + bytes(2 * 40 * MIB)
        with undisturbed(broker, topic):
            assert "more elements" in closing_reason(broker, frame(header(3, 1) + names))

    @pytest.mark.test_all
    def test_requests_about_very_many_partitions_do_not_hold_up_other_clients(
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
