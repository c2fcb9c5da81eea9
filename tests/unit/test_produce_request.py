"""The decoder of Produce requests against the one that is generated from kafka-python's schema."""

from __future__ import annotations

import random
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol._produce_request import ProduceMessage, decode_produce_request
from brokerhouse.protocol.decoder import ELEMENTS_MAX, MalformedMessage, decoder
from brokerhouse.protocol.versions import ApiKey

API = APIS[ApiKey.Produce]
VERSIONS = range(API.min_version, API.max_version + 1)
FLEXIBLE, BY_ID = 9, 13
REFUSED = (MalformedMessage, struct.error, IndexError, UnicodeDecodeError)

int32 = st.integers(-(2**31), 2**31 - 1)
topic = ProduceRequest.TopicProduceData
partitions = st.builds(
    topic.PartitionProduceData, index=int32, records=st.none() | st.binary(max_size=300)
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=200),
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=int32,
    topic_data=st.lists(
        st.builds(
            topic,
            name=st.text(max_size=200),
            topic_id=st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2**128 - 1)]),
            partition_data=st.lists(partitions, max_size=3),
        ),
        max_size=3,
    ),
)


Fields = tuple[str | None, int, int, list[tuple[str | UUID, list[tuple[int, bytes]]]]]


def fields(message: ProduceMessage) -> Fields:
    topics = [
        (one.key, [(part.index, part.records) for part in one.partition_data])
        for one in message.topic_data
    ]
    return message.transactional_id, message.acks, message.timeout_ms, topics


def fields_by_schema(version: int, message: ProduceRequest) -> Fields:
    topics = [
        (
            one.topic_id if version >= BY_ID else one.name,
            [(part.index, part.records or b"") for part in one.partition_data],
        )
        for one in message.topic_data
    ]
    return message.transactional_id, message.acks, message.timeout_ms, topics


def outcome(version: int, data: bytes, position: int) -> object:
    """What the decoder of the broker makes of the bytes, and where the message ends."""
    try:
        message, end = decode_produce_request(data, position, version)
    except REFUSED:
        return "refused"
    return fields(message), end


def expected(version: int, data: bytes, position: int) -> object:
    """The same with the generated decoder."""
    try:
        message, end = decoder(ProduceRequest, version)(data, position)
    except REFUSED:
        return "refused"
    return "refused" if end > len(data) else (fields_by_schema(version, message), end)


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests)
def test_every_request_is_read_alike(version: int, request: ProduceRequest) -> None:
    data = bytes(request.encode(version=version))
    found = outcome(version, b"before" + data + b"after", 6)
    assert found == expected(version, b"before" + data + b"after", 6)
    assert isinstance(found, tuple)
    assert found[1] == 6 + len(data)


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests, seed=st.integers(0, 2**32))
def test_damaged_requests_are_read_or_refused_alike(
    version: int, request: ProduceRequest, seed: int
) -> None:
    rnd = random.Random(seed)
    data = bytearray(request.encode(version=version))
    for _ in range(rnd.randrange(1, 4)):
        data[rnd.randrange(len(data))] = rnd.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    cut = bytes(data[: rnd.randrange(len(data) + 1)])
    for spoilt in (bytes(data), cut, bytes(data) + rnd.randbytes(20)):
        assert outcome(version, spoilt, 0) == expected(version, spoilt, 0)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.binary(max_size=100))
def test_random_bytes_are_read_or_refused_alike(version: int, data: bytes) -> None:
    assert outcome(version, data, 0) == expected(version, data, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_stay_in_the_frame(version: int) -> None:
    records = [b"first", b"", None, b"x" * 20_000]
    request = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1,
        topic_data=[
            topic(
                name="t",
                topic_id=UUID(int=7),
                partition_data=[
                    topic.PartitionProduceData(index=n, records=one)
                    for n, one in enumerate(records)
                ],
            )
        ],
    )
    frame = bytes(request.encode(version=version))
    message, _ = decode_produce_request(frame, 0, version)
    (found,) = message.topic_data
    assert found.key == (UUID(int=7) if version >= BY_ID else "t")
    for part, sent in zip(found.partition_data, records, strict=True):
        assert part.frame is frame
        assert part.frame[part.start : part.end] == part.records == (sent or b"")


def test_tagged_fields_are_skipped() -> None:
    tags = b"\2" + b"\0\3abc" + b"\x80\1\0"
    body = b"\0" + struct.pack(">hi", 1, 5)
    partition = struct.pack(">i", 3) + b"\4abc" + tags
    data = body + b"\2" + b"\2t" + b"\2" + partition + tags + tags
    message, end = decode_produce_request(data, 0, FLEXIBLE)
    assert end == len(data)
    assert fields(message) == (None, 1, 5, [("t", [(3, b"abc")])])


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (struct.pack(">i", -1), "topic_data is null"),
        (struct.pack(">i", -2), "negative"),
        (struct.pack(">i", 2**31 - 1), "more elements than it has bytes"),
        (struct.pack(">ihi", 1, -1, 0), "name is null"),
        (struct.pack(">ih", 1, 7) + bytes(4), "name reaches beyond the frame"),
        (struct.pack(">ihiii", 1, 0, 1, 0, 9), "records reaches beyond the frame"),
        (struct.pack(">i", ELEMENTS_MAX + 1) + bytes(6 * (ELEMENTS_MAX + 1)), "may have"),
    ],
)
def test_impossible_lengths_are_refused_with_a_reason(arrays: bytes, reason: str) -> None:
    data = struct.pack(">hhi", -1, 1, 1) + arrays
    with pytest.raises(MalformedMessage, match=reason):
        decode_produce_request(data, 0, 3)
    with pytest.raises(MalformedMessage, match=reason):
        decoder(ProduceRequest, 3)(data, 0)


def test_a_request_with_more_topic_ids_than_are_cached_is_read() -> None:
    for number in range(3000):
        data = b"\0" + struct.pack(">hi", 1, 5) + b"\2" + UUID(int=number).bytes + b"\1\0\0"
        message, _ = decode_produce_request(data, 0, BY_ID)
        assert message.topic_data[0].key == UUID(int=number)
