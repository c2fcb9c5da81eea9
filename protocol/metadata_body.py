"""The body of a Metadata response, out of topics that were encoded before.

A topic's description changes seldom and is asked for by every client: encoding one of 50 partitions
takes 0.5 ms with kafka-python's objects. Both sides of the list of topics are encoded by
kafka-python; here the list is put between them. tests/unit/test_metadata_body.py compares the
result with the whole response in every version.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.metadata import MetadataResponse

from protocol.varints import array_length

_OPERATIONS_SINCE, _FLEXIBLE, _OPERATIONS_UNTIL, _ERROR_SINCE = 8, 9, 10, 13  # versions


def encoded_topic(topic: MetadataResponse.MetadataResponseTopic, version: int) -> bytes:
    """One element of the list of topics."""
    body = _encoded(_response([topic]), version)
    head = len(_encoded(_response([]), version)) - _size_behind(version)
    return body[head : len(body) - _size_behind(version)]


def metadata_body(response: MetadataResponse, topics: Sequence[bytes], version: int) -> bytes:
    """The body of `response`, whose list of topics is empty, with these topics."""
    body = _encoded(response, version)
    behind = len(body) - _size_behind(version)
    compact = version >= _FLEXIBLE
    before = behind - len(array_length((), compact))
    return b"".join((body[:before], array_length(topics, compact), *topics, body[behind:]))


def _size_behind(version: int) -> int:
    """The size of the fields that follow the list of topics."""
    operations = 4 if _OPERATIONS_SINCE <= version <= _OPERATIONS_UNTIL else 0
    return operations + (2 if version >= _ERROR_SINCE else 0) + (version >= _FLEXIBLE)


def _response(topics: Sequence[MetadataResponse.MetadataResponseTopic]) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=0, brokers=[], cluster_id="", controller_id=0, topics=list(topics),
        authorized_operations=set(), error_code=0,
    )  # fmt: skip


def _encoded(response: MetadataResponse, version: int) -> bytes:
    response.API_VERSION = version
    return bytes(response.encode(header=False, framed=False))
