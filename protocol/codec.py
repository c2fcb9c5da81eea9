"""Frames to requests and responses to frames, on kafka-python's message classes.

The header is read here rather than by kafka-python, which copies the whole frame for it. A frame is
refused when a length inside it reaches beyond its end; bytes left over are not read, as in Kafka
(librdkafka 2.16 leaves three in some Metadata requests).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kafka.protocol.api_message import ApiMessage

from protocol.decoder import MalformedMessage, decoder, skip_tagged_fields
from protocol.versions import APIS, Api, ApiKey, served

_FIXED = struct.Struct(">hhih")  # key, version, correlation id, length of client id


class MalformedRequest(Exception):
    """The bytes are no request that can be answered; the connection is closed."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request; `message` is None for ApiVersions in a version that is not known."""

    header: RequestHeader
    api: Api
    message: ApiMessage | None


def decode_request(frame: bytes) -> Request:
    """Raises `MalformedRequest`."""
    try:
        header, position = _decode_header(frame)
        api = served(header.api_key, header.api_version)
        if api is None:
            if header.api_key == ApiKey.ApiVersions:
                return Request(header, APIS[ApiKey.ApiVersions], None)
            raise MalformedRequest(
                f"API key {header.api_key} version {header.api_version} is not served"
            )
        if api.request.flexible_version_q(header.api_version):
            position = skip_tagged_fields(frame, position)
        message, end = decoder(api.request, header.api_version)(frame, position)
    except MalformedRequest:
        raise
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise MalformedRequest(f"a request that cannot be decoded: {error}") from error
    except (IndexError, struct.error) as error:
        raise MalformedRequest("a request that ends too early") from error
    if end > len(frame):
        raise MalformedRequest(
            f"{api.key.name} version {header.api_version} ends at byte {end} of {len(frame)}"
        )
    return Request(header, api, message)


def encode_response(header: RequestHeader, response: ApiMessage) -> bytes | bytearray:
    """The whole frame, length first, in the version of the request."""
    version = header.api_version
    if header.api_key == ApiKey.ApiVersions and not APIS[ApiKey.ApiVersions].serves(version):
        version = 0  # KIP-511: a version the broker does not know is answered with version 0
    response.API_VERSION = version
    response.with_header(correlation_id=header.correlation_id)
    frame: bytes | bytearray = response.encode(header=True, framed=True)
    return frame


def _decode_header(frame: bytes) -> tuple[RequestHeader, int]:
    api_key, version, correlation_id, client_id_bytes = _FIXED.unpack_from(frame)
    position = _FIXED.size
    client_id = None
    if client_id_bytes >= 0:
        end = position + client_id_bytes
        if end > len(frame):
            raise MalformedRequest("the client id reaches beyond the frame")
        client_id = frame[position:end].decode()
        position = end
    return RequestHeader(api_key, version, correlation_id, client_id), position
