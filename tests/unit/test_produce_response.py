"""A Produce response without errors, against kafka-python's in every version."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from brokerhouse.broker.api import APIS
from brokerhouse.protocol._produce_response import StoredBatch, produce_response
from brokerhouse.protocol.versions import ApiKey
from tests.support.encoded_responses import response_frame

API = APIS[ApiKey.Produce]
VERSIONS = range(API.min_version, API.max_version + 1)
BY_ID = 13
CORRELATION_ID = 99  # of `response_frame`

Topics: TypeAlias = list[tuple[str | UUID, list[StoredBatch]]]

int64 = st.integers(-(2**63), 2**63 - 1)
batches = st.lists(st.builds(StoredBatch, st.integers(-(2**31), 2**31 - 1), int64, int64, int64))


def topics(version: int) -> st.SearchStrategy[Topics]:
    keys = st.uuids() if version >= BY_ID else st.text(max_size=300)
    return st.lists(st.tuples(keys, batches), max_size=4)


def encoded_by_kafka_python(version: int, stored: Topics) -> bytes:
    topic = ProduceResponse.TopicProduceResponse
    response = ProduceResponse(
        responses=[
            topic(
                **({"topic_id": key} if isinstance(key, UUID) else {"name": key}),
                partition_responses=[
                    topic.PartitionProduceResponse(
                        index=batch.partition,
                        error_code=0,
                        base_offset=batch.base_offset,
                        log_append_time_ms=batch.log_append_time_ms,
                        log_start_offset=batch.log_start_offset,
                        record_errors=[],
                        error_message=None,
                    )
                    for batch in batches
                ],
            )
            for key, batches in stored
        ],
        throttle_time_ms=0,
    )
    return response_frame(API, version, response)


def packed(version: int, stored: Topics) -> bytes | None:
    return produce_response(version, CORRELATION_ID, stored)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_produce_response_is_the_one_that_kafka_python_encodes(
    version: int, data: st.DataObject
) -> None:
    stored = data.draw(topics(version))
    assert packed(version, stored) == encoded_by_kafka_python(version, stored)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [126, 127, 128, 2_000])
def test_a_produce_response_has_counts_of_any_length(version: int, count: int) -> None:
    batches = [StoredBatch(n, n, -1, 0) for n in range(count)]
    by_id = version >= BY_ID
    stored: Topics = [(UUID(int=1) if by_id else "t" * count, batches)]
    stored += [(UUID(int=0) if by_id else "", [])] * count
    assert packed(version, stored) == encoded_by_kafka_python(version, stored)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_quick_response_is_made_if_a_batch_was_not_stored(version: int) -> None:
    key = UUID(int=1) if version >= BY_ID else "t"
    stored = StoredBatch(0, 0, -1, 0)
    for answers in ([None], [stored, None], [None, stored]):
        assert produce_response(version, 1, [(key, [stored]), (key, answers)]) is None


def test_a_produce_response_has_a_correlation_id_of_any_sign() -> None:
    for correlation_id in (-(2**31), -1, 0, 2**31 - 1):
        frame = produce_response(9, correlation_id, [])
        assert frame is not None
        assert int.from_bytes(frame[4:8], "big", signed=True) == correlation_id
