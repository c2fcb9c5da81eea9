"""The request decoders against kafka-python's encoder, and against bytes that no client sends."""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import Api
from brokerhouse.protocol.decoder import ELEMENTS_MAX, MalformedMessage, decoder, unsigned_varint
from tests.support.examples import up_to

VERSIONS = [
    pytest.param(api, version, id=f"{api.key.name}-{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
REFUSED = (MalformedMessage, struct.error, IndexError, UnicodeDecodeError)

_MAKE: dict[str, Callable[[random.Random], object]] = {
    "string": lambda rnd: "text é" * rnd.randrange(40),
    "bytes": lambda rnd: rnd.randbytes(rnd.randrange(300)),
    "records": lambda rnd: rnd.randbytes(rnd.randrange(300)),
    "uuid": lambda rnd: uuid.UUID(int=rnd.choice([0, rnd.getrandbits(128)])),
    "bool": lambda rnd: rnd.random() < 0.5,
    "int8": lambda rnd: rnd.randrange(-(2**7), 2**7),
    "int16": lambda rnd: rnd.randrange(-(2**15), 2**15),
    "int32": lambda rnd: rnd.randrange(-(2**31), 2**31),
    "int64": lambda rnd: rnd.randrange(-(2**63), 2**63),
    "float64": lambda rnd: rnd.uniform(-1e300, 1e300),
}


def filled(struct_field: Any, data_class: Any, version: int, rnd: random.Random) -> Any:
    """A message with something in every field that the version has."""
    message = data_class()
    message._version = version
    for field in struct_field._fields:
        if field.for_version_q(version):
            null = field.nullable_for_version_q(version) and rnd.random() < 0.3
            setattr(message, field.name, None if null else _value(field, version, rnd))
    return message


def _value(field: Any, version: int, rnd: random.Random) -> object:
    if field.is_struct_array():
        element = field.array_of
        return [filled(element, element.data_class, version, rnd) for _ in range(rnd.randrange(4))]
    if field.is_array():
        return [_MAKE[field.array_of._type_str](rnd) for _ in range(rnd.randrange(4))]
    if field.is_struct():
        return filled(field, field.data_class, version, rnd)
    return _MAKE[field._type_str](rnd)


def encoded(api: Api, version: int, rnd: random.Random) -> bytes:
    message = filled(api.request._struct, api.request[None], version, rnd)
    return bytes(message.encode(version=version))


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_request_is_read_back_as_it_was_written(api: Api, version: int) -> None:
    rnd = random.Random(version)
    for _ in range(20):
        data = encoded(api, version, rnd)
        message, end = decoder(api.request, version)(b"before" + data, 6)
        assert end == 6 + len(data)
        message._header = None
        assert bytes(message.encode(version=version)) == data


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_request_that_is_cut_anywhere_is_refused(api: Api, version: int) -> None:
    data = encoded(api, version, random.Random(1))
    decode = decoder(api.request, version)
    for end in range(len(data)):
        with pytest.raises(REFUSED):
            decode(data[:end], 0)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_damaged_request_is_refused_or_read_to_its_end_at_most(api: Api, version: int) -> None:
    rnd = random.Random(2)
    decode = decoder(api.request, version)
    for _ in range(up_to(200)):
        data = bytearray(encoded(api, version, rnd)) or bytearray(1)
        for _ in range(rnd.randrange(1, 4)):
            data[rnd.randrange(len(data))] = rnd.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            _, end = decode(bytes(data), 0)
        except REFUSED:
            continue
        assert end <= len(data)


def request_of(request: type[ApiMessage], version: int) -> Callable[[bytes], ApiMessage]:
    return lambda data: decoder(request, version)(data, 0)[0]


def test_null_is_refused_where_the_protocol_has_none() -> None:
    metadata = request_of(MetadataRequest, 1)
    assert metadata(struct.pack(">i", -1)).topics is None
    with pytest.raises(MalformedMessage, match="topics is null"):
        request_of(MetadataRequest, 0)(struct.pack(">i", -1))
    with pytest.raises(MalformedMessage, match="name is null"):
        metadata(struct.pack(">ih", 1, -1))
    with pytest.raises(MalformedMessage, match="null"):
        request_of(ApiVersionsRequest, 3)(b"\0\x02a\0")


@pytest.mark.parametrize("count", [-2, -(2**31)])
def test_a_negative_count_is_refused(count: int) -> None:
    with pytest.raises(MalformedMessage, match="negative"):
        request_of(MetadataRequest, 1)(struct.pack(">i", count))


@pytest.mark.parametrize("count", [2, 1000, 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_made(count: int) -> None:
    with pytest.raises(MalformedMessage, match="more elements than it has bytes"):
        request_of(MetadataRequest, 1)(struct.pack(">ih", count, 0))


def test_the_elements_of_all_arrays_together_are_limited() -> None:
    metadata = request_of(MetadataRequest, 1)
    names = struct.pack(">i", ELEMENTS_MAX) + struct.pack(">h", 0) * ELEMENTS_MAX
    assert len(metadata(names).topics) == ELEMENTS_MAX
    names = struct.pack(">i", ELEMENTS_MAX + 1) + struct.pack(">h", 0) * (ELEMENTS_MAX + 1)
    with pytest.raises(MalformedMessage, match="more elements than a request may have"):
        metadata(names)


@pytest.mark.parametrize("data", [b"\xff" * 6, b"\xff\xff\xff\xff\x7f", b"\x80" * 5 + b"\x01"])
def test_a_varint_has_32_bits_at_most(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unsigned_varint(data, 0)
    assert unsigned_varint(b"\xff\xff\xff\xff\x0f", 0) == (2**32 - 1, 5)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff" * (10 << 20), id="a varint of 10 MB"),
        pytest.param(
            # topics, each with one unknown tagged field
            b"\xa1\x8d\x06" + (b"\x01" + b"\x01\x63\x00") * 99_999,
            id="many tagged fields",
        ),
    ],
)
def test_the_time_to_decode_grows_only_with_the_bytes(data: bytes) -> None:
    """Both took minutes with the decoders of kafka-python."""
    began = time.process_time()
    with pytest.raises(REFUSED):
        request_of(MetadataRequest, 9)(data)
    assert time.process_time() - began < 5


def test_a_known_tagged_field_must_have_the_size_that_it_says() -> None:
    def with_cluster_id(size: int) -> bytes:
        fixed = struct.pack(">iiib", 0, 0, 0, 0) + struct.pack(">ii", 0, 0)
        return fixed + b"\x01\x01" + b"\x01" + b"\x01" + b"\x00" + bytes([size]) + b"\x03ab"

    fetch = request_of(FetchRequest, 15)
    assert fetch(with_cluster_id(3)).cluster_id == "ab"
    for size in (2, 4):
        with pytest.raises(REFUSED):
            fetch(with_cluster_id(size))
