"""Frames of fetch responses: byte for byte as kafka-python makes them, and in few pieces."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from brokerhouse.broker.api.fetch import API
from brokerhouse.protocol.response_bodies import fetch_frame

Topic: TypeAlias = FetchResponse.FetchableTopicResponse
Partition: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
Diverging: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.EpochEndOffset
Aborted: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BATCHES = st.lists(
    st.binary(max_size=300) | st.integers(0, 5).map(lambda n: bytes([n]) * 20_000), max_size=4
)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    aborted = st.none() | st.lists(
        st.builds(
            lambda pair: Aborted(producer_id=pair[0], first_offset=pair[1]), st.tuples(INT64, INT64)
        ),
        max_size=2,
    )
    diverging = st.none() | st.builds(
        lambda pair: Diverging(epoch=pair[0], end_offset=pair[1]),
        # kafka-python writes no tag for the values that stand for none
        st.tuples(INT32, INT64).filter(lambda pair: pair != (-1, -1)),
    )
    return Partition(
        partition_index=draw(INT32),
        error_code=draw(st.integers(-1, 130)),
        high_watermark=draw(INT64),
        last_stable_offset=draw(INT64),
        log_start_offset=draw(INT64),
        diverging_epoch=draw(diverging),
        aborted_transactions=draw(aborted),
        preferred_read_replica=draw(INT32),
        records=draw(st.none() | BATCHES),
    )


@st.composite
def responses(draw: st.DrawFn) -> FetchResponse:
    return FetchResponse(
        throttle_time_ms=draw(INT32),
        error_code=draw(st.integers(-1, 130)),
        session_id=draw(INT32),
        responses=[
            Topic(
                topic=draw(st.text(max_size=200)),
                topic_id=draw(st.uuids()),
                partitions=draw(st.lists(partitions(), max_size=3)),
            )
            for _ in range(draw(st.integers(0, 3)))
        ],
        node_endpoints=[],
    )


def as_kafka_python(response: FetchResponse, version: int, correlation_id: int) -> bytes:
    joined = deepcopy(response)
    for topic in joined.responses:
        for partition in topic.partitions:
            if partition.records is not None:
                partition.records = b"".join(partition.records)
    joined.API_VERSION = version
    joined.with_header(correlation_id=correlation_id)
    return bytes(joined.encode(header=True, framed=True))


@given(responses(), st.integers(API.min_version, API.max_version), INT32)
def test_a_fetch_frame_is_that_of_kafka_python(
    response: FetchResponse, version: int, correlation_id: int
) -> None:
    pieces = fetch_frame(response, version, correlation_id)
    assert b"".join(pieces) == as_kafka_python(response, version, correlation_id)


@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
def test_large_batches_are_not_copied_and_small_ones_are_joined(version: int) -> None:
    large, small = [bytes(500_000) for _ in range(3)], [bytes(100)] * 1000
    partitions = [
        Partition(partition_index=n, records=r) for n, r in enumerate((small, large, small))
    ]
    response = FetchResponse(
        responses=[Topic(topic="t", topic_id=UUID(int=1), partitions=partitions)]
    )
    pieces = fetch_frame(response, version, 1)
    assert b"".join(pieces) == as_kafka_python(response, version, 1)
    assert [piece for piece in pieces if len(piece) == 500_000] == large
    assert all(piece is batch for piece, batch in zip(pieces[1:4], large, strict=True))
    assert len(pieces) == 5
