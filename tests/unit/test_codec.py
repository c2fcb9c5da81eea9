"""Whole frames: the header of a request, the end of a frame, and responses as a client reads them.

What lies between header and end is in test_decoder.py.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import Api
from brokerhouse.protocol._produce_request import ProduceMessage
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.codec import (
    MalformedRequest,
    Request,
    decode_request,
    encode_response,
)
from brokerhouse.protocol.versions import ApiKey

EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.key.name}-{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
FLEXIBLE_API_VERSIONS = 3


def header(
    key: int, version: int, correlation_id: int = 7, client_id: bytes | None = b"client"
) -> bytes:
    name = b"" if client_id is None else client_id
    size = -1 if client_id is None else len(name)
    return struct.pack(">hhih", key, version, correlation_id, size) + name


def decoded(frame: bytes) -> Request[Api]:
    return decode_request(frame, APIS)


def encoded(header: RequestHeader, response: ApiMessage) -> bytes:
    """The answer to a request with this header."""
    api = APIS[header.api_key]
    message = api.request() if api.serves(header.api_version) else None
    return b"".join(encode_response(Request(header, api, message), response))


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_request_as_kafka_python_frames_it_is_understood(api: Api, version: int) -> None:
    sent = api.request[version]()
    sent.with_header(correlation_id=99, client_id="someone")
    request = decoded(bytes(sent.encode(header=True, framed=False)))
    assert request.header == RequestHeader(api.key, version, 99, "someone")
    assert request.api is api
    kind = ProduceMessage if api.key == ApiKey.Produce else api.request[None]
    assert isinstance(request.message, kind)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_is_read_by_kafka_python_in_the_version_of_its_request(
    api: Api, version: int
) -> None:
    sent = api.response()
    frame = encoded(RequestHeader(api.key, version, 99, None), sent)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read = api.response.decode(frame[4:], version=version, header=True)
    assert read.header.correlation_id == 99
    assert version == read.API_VERSION
    read._header = None
    assert bytes(read.encode()) == bytes(api.response[version]().encode())


@given(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=40))
def test_correlation_id_and_client_id_are_taken_as_sent(
    correlation_id: int, client_id: str | None
) -> None:
    name = None if client_id is None else client_id.encode()
    request = decoded(header(ApiKey.ApiVersions, 0, correlation_id, name))
    assert request.header == RequestHeader(ApiKey.ApiVersions, 0, correlation_id, client_id)


def test_a_response_has_the_correlation_id_of_its_request() -> None:
    for correlation_id in (-(2**31), -1, 0, 2**31 - 1):
        frame = encoded(
            RequestHeader(ApiKey.InitProducerId, 0, correlation_id, None),
            APIS[ApiKey.InitProducerId].response(),
        )
        assert int.from_bytes(frame[4:8], "big", signed=True) == correlation_id


def test_tagged_fields_in_the_header_are_skipped() -> None:
    tags = b"\2" + b"\0\3abc" + b"\x80\1\0"
    body = b"\2a\2b\0"
    request = decoded(header(ApiKey.ApiVersions, FLEXIBLE_API_VERSIONS) + tags + body)
    assert request.message is not None
    assert request.message.client_software_name == "a"


@pytest.mark.parametrize("version", [-1, 5, 2**15 - 1])
def test_an_api_versions_request_of_an_unknown_version_is_not_decoded(version: int) -> None:
    request = decoded(header(ApiKey.ApiVersions, version) + b"whatever follows")
    assert request.message is None
    assert request.api is APIS[ApiKey.ApiVersions]


@pytest.mark.parametrize("version", [5, 2**15 - 1])
def test_an_api_versions_request_of_an_unknown_version_is_answered_in_version_0(
    version: int,
) -> None:
    answer = ApiVersionsResponse(error_code=35, api_keys=[])
    frame = encoded(RequestHeader(ApiKey.ApiVersions, version, 3, None), answer)
    assert frame == struct.pack(">iihi", 10, 3, 35, 0)


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    """KIP-511: a client reads it before it knows what the broker can do."""
    answer = ApiVersionsResponse(error_code=0, api_keys=[], throttle_time_ms=0)
    frame = encoded(RequestHeader(ApiKey.ApiVersions, 3, 3, None), answer)
    assert frame[8:10] == b"\0\0"  # the error code follows the correlation id at once


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.Metadata, 99), (ApiKey.Metadata, -1), (4, 0), (-1, 0), (9999, 0)]
)
def test_a_key_or_version_that_is_not_served_is_refused_by_name(key: int, version: int) -> None:
    with pytest.raises(MalformedRequest, match=f"API key {key} version {version} is not served"):
        decoded(header(key, version))


def test_bytes_after_the_end_of_the_message_are_not_read() -> None:
    # As Kafka: librdkafka 2.16 leaves three behind when it asks for the metadata of all topics.
    sent = MetadataRequest[1](topics=[])
    frame = header(ApiKey.Metadata, 1) + bytes(sent.encode())
    assert decoded(frame + b"\0\0\0").message == decoded(frame).message


@pytest.mark.parametrize("size", [7, 1000, 2**15 - 1])
def test_a_client_id_that_reaches_beyond_the_frame_is_refused(size: int) -> None:
    with pytest.raises(MalformedRequest, match="client id"):
        decoded(struct.pack(">hhih", ApiKey.ApiVersions, 0, 1, size) + b"client")


def test_a_client_id_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedRequest):
        decoded(header(ApiKey.ApiVersions, 0, client_id=b"\xff"))


@pytest.mark.parametrize("api", [ApiKey.InitProducerId, ApiKey.ApiVersions, ApiKey.Metadata])
def test_a_frame_cut_anywhere_is_refused(api: ApiKey) -> None:
    version = APIS[api].max_version
    sent = APIS[api].request[version]()
    sent.with_header(correlation_id=1, client_id="someone")
    frame = bytes(sent.encode(header=True, framed=False))
    for end in range(len(frame)):
        with pytest.raises(MalformedRequest):
            decoded(frame[:end])


@given(st.binary(max_size=200), st.sampled_from(list(APIS)), st.integers(0, 18))
def test_any_bytes_are_decoded_or_refused_as_malformed(
    body: bytes, key: ApiKey, version: int
) -> None:
    for frame in (body, header(key, version) + body):
        try:
            request = decoded(frame)
        except MalformedRequest:
            continue
        assert request.header.api_version == version or frame is body


def test_a_refused_request_names_what_is_wrong() -> None:
    too_short = InitProducerIdRequest[0](transactional_id=None, transaction_timeout_ms=0)
    frame = header(ApiKey.InitProducerId, 0) + bytes(too_short.encode())[:-1]
    with pytest.raises(MalformedRequest, match="the request ends too early"):
        decoded(frame)


def test_records_of_a_fetch_response_are_carried_byte_for_byte() -> None:
    records = bytes(range(256)) * 10
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(partition_index=0, records=[records])
    for version in (4, 11, 12):
        sent = FetchResponse(responses=[topic(topic="t", partitions=[partition])])
        frame = encoded(RequestHeader(ApiKey.Fetch, version, 1, None), sent)
        read = FetchResponse.decode(frame[4:], version=version, header=True)
        assert bytes(read.responses[0].partitions[0].records) == records


def test_a_null_list_and_an_empty_list_are_told_apart() -> None:
    for version in (9, 12):
        sent = MetadataResponse(topics=[], brokers=[])
        frame = encoded(RequestHeader(ApiKey.Metadata, version, 1, None), sent)
        assert MetadataResponse.decode(frame[4:], version=version, header=True).topics == []
    assert decoded(_metadata(None)).message.topics is None
    assert decoded(_metadata([])).message.topics == []


def _metadata(topics: list[str] | None) -> bytes:
    return header(ApiKey.Metadata, 1) + bytes(MetadataRequest[1](topics=topics).encode())
