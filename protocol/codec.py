"""Frames to requests and responses to frames, with kafka-python's message classes.

No connection is needed for it: tests give it bytes.

The header is not decoded by kafka-python, which copies the whole frame for it. A frame is
refused if a length inside it reaches beyond its end. Bytes after the last field are ignored, as in
Kafka (librdkafka 2.16 sends three of them in some Metadata requests).

A key or version that is not served is refused here (`MalformedRequest`), and
broker/net/connection.py closes the connection. Only ApiVersions in an unknown version is answered
(KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchResponse

from brokerhouse.protocol._request_head import RequestHeader, decode_head
from brokerhouse.protocol.decoder import MalformedMessage, decoder, skip_tagged_fields
from brokerhouse.protocol.response_bodies import fetch_frame
from brokerhouse.protocol.versions import ApiKey, ServedT, served

_HEADER = struct.Struct(">ii")  # of a response: length of the frame, correlation id
_FLEXIBLE_HEADER = struct.Struct(">iix")  # and no tagged fields, which is a zero


class MalformedRequest(Exception):
    """The bytes are not a request that can be answered. The connection is closed."""


class Request(NamedTuple, Generic[ServedT]):
    """A decoded request. `message` is None for an unknown version of ApiVersions (KIP-511)."""

    header: RequestHeader
    api: ServedT
    message: Any


def decode_request(frame: bytes, apis: Mapping[int, ServedT]) -> Request[ServedT]:
    """The request in `frame`, of one of the `apis`. Raises `MalformedRequest`."""
    try:
        header, position = decode_head(frame)
        version = header.api_version
        api = served(apis, header.api_key, version)
        if api is None:
            if header.api_key == ApiKey.ApiVersions:
                return Request(header, apis[ApiKey.ApiVersions], None)
            raise MalformedRequest(f"API key {header.api_key} version {version} is not served")
        if version >= api.flexible_since:
            position = skip_tagged_fields(frame, position)
        if api.decode is not None:
            message, end = api.decode(frame, position, version)
        else:
            message, end = decoder(api.request, version)(frame, position)
    except MalformedRequest:
        raise
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the request cannot be decoded: {error}") from error
    except (IndexError, struct.error) as error:
        raise MalformedRequest("the request ends too early") from error
    if end > len(frame):
        raise MalformedRequest(
            f"the {api.key.name} request of version {version} has {len(frame)} bytes,"
            f" but its fields need {end}"
        )
    return Request(header, api, message)


def encode_response(
    request: Request[ServedT], response: ApiMessage | bytes
) -> Sequence[bytes | bytearray]:
    """The whole frame, length first, in the version of the request; in pieces.

    `response` as bytes is the body, encoded already. An ApiVersions request of an unknown version
    is answered in version 0 (KIP-511).
    """
    header = request.header
    if isinstance(response, FetchResponse):
        return fetch_frame(response, header.api_version, header.correlation_id)
    if isinstance(response, bytes):
        flexible = request.api.response.flexible_version_q(header.api_version)
        head = _FLEXIBLE_HEADER if flexible else _HEADER
        return (head.pack(head.size - 4 + len(response), header.correlation_id) + response,)
    response.API_VERSION = 0 if request.message is None else header.api_version
    response.with_header(correlation_id=header.correlation_id)
    frame: bytes | bytearray = response.encode(header=True, framed=True)
    return (frame,)
