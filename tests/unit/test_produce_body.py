"""The body of a Produce response without errors, against kafka-python's in every version."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from broker.api import APIS
from protocol.produce_body import StoredBatch, StoredTopic, produce_body
from protocol.versions import ApiKey
from tests.support.encoded_responses import response_frame

API = APIS[ApiKey.Produce]
VERSIONS = range(API.min_version, API.max_version + 1)
BY_ID = 13

int64 = st.integers(-(2**63), 2**63 - 1)
batches = st.lists(st.builds(StoredBatch, st.integers(-(2**31), 2**31 - 1), int64, int64, int64))


def topics(version: int) -> st.SearchStrategy[list[StoredTopic]]:
    keys = st.uuids() if version >= BY_ID else st.text(max_size=300)
    return st.lists(st.builds(StoredTopic, keys, batches), max_size=4)


def encoded_by_kafka_python(version: int, stored: Sequence[StoredTopic]) -> bytes:
    topic = ProduceResponse.TopicProduceResponse
    response = ProduceResponse(
        responses=[
            topic(
                **({"topic_id": one.key} if isinstance(one.key, UUID) else {"name": one.key}),
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
                    for batch in one.batches
                ],
            )
            for one in stored
        ],
        throttle_time_ms=0,
    )
    return response_frame(API, version, response)


def packed(version: int, stored: Sequence[StoredTopic]) -> bytes:
    return response_frame(API, version, produce_body(version, stored))


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_it_is_what_kafka_python_encodes(version: int, data: st.DataObject) -> None:
    stored = data.draw(topics(version))
    assert packed(version, stored) == encoded_by_kafka_python(version, stored)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [126, 127, 128, 2_000])
def test_counts_of_any_length(version: int, count: int) -> None:
    batches = [StoredBatch(n, n, -1, 0) for n in range(count)]
    by_id = version >= BY_ID
    stored = [StoredTopic(UUID(int=1) if by_id else "t" * count, batches)]
    stored += [StoredTopic(UUID(int=0) if by_id else "", [])] * count
    assert packed(version, stored) == encoded_by_kafka_python(version, stored)
