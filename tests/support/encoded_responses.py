"""Responses as the broker frames them."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

from brokerhouse.broker.api.context import Api
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.codec import Request, encode_response


def response_frame(api: Api, version: int, response: ApiMessage | bytes) -> bytes:
    request = Request(RequestHeader(api.key, version, 99, None), api, api.request())
    return b"".join(encode_response(request, response))
