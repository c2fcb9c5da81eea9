"""The body of an OffsetCommit response, against kafka-python's encoder in every version."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetCommitResponse

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.response_bodies import AnsweredTopic, offset_commit_body
from brokerhouse.protocol.versions import ApiKey
from tests.support.encoded_responses import response_frame

API = APIS[ApiKey.OffsetCommit]
VERSIONS = range(API.min_version, API.max_version + 1)

partitions = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**15), 2**15 - 1))
topics = st.builds(
    AnsweredTopic,
    st.text(max_size=300),
    st.uuids(),
    st.lists(partitions, max_size=300),
)


def encoded_by_kafka_python(version: int, asked: list[AnsweredTopic]) -> bytes:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    response = OffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            topic(
                name=one.name,
                topic_id=one.topic_id,
                partitions=[
                    topic.OffsetCommitResponsePartition(partition_index=index, error_code=code)
                    for index, code in one.partitions
                ],
            )
            for one in asked
        ],
    )
    return response_frame(API, version, response)


@pytest.mark.parametrize("version", VERSIONS)
@given(asked=st.lists(topics, max_size=4))
def test_an_offset_commit_body_is_the_one_that_kafka_python_encodes(
    version: int, asked: list[AnsweredTopic]
) -> None:
    assert response_frame(
        API, version, offset_commit_body(version, asked)
    ) == encoded_by_kafka_python(version, asked)


@pytest.mark.parametrize(
    ("version", "count"),
    [
        *((version, count) for version in VERSIONS for count in (126, 127, 128)),
        (API.max_version, 20_000),
    ],
)
def test_an_offset_commit_body_has_counts_of_any_length(version: int, count: int) -> None:
    asked = [AnsweredTopic("t" * count, UUID(int=1), [(n, 0) for n in range(count)])]
    asked += [AnsweredTopic("", UUID(int=0), [])] * count
    assert response_frame(
        API, version, offset_commit_body(version, asked)
    ) == encoded_by_kafka_python(version, asked)
