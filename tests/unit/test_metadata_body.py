"""The body of a Metadata response with topics encoded apart, against kafka-python's whole one."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataResponse

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from brokerhouse.protocol.response_bodies import encoded_topic, metadata_body
from brokerhouse.protocol.versions import ApiKey
from tests.support.encoded_responses import response_frame

API = APIS[ApiKey.Metadata]
VERSIONS = range(API.min_version, API.max_version + 1)
Topic: TypeAlias = MetadataResponse.MetadataResponseTopic

int32 = st.integers(-(2**31), 2**31 - 1)
names = st.text(min_size=1, max_size=300)
partitions = st.builds(
    Topic.MetadataResponsePartition,
    error_code=st.integers(-1, 100),
    partition_index=int32,
    leader_id=int32,
    leader_epoch=int32,
    replica_nodes=st.lists(int32, max_size=3),
    isr_nodes=st.lists(int32, max_size=3),
    offline_replicas=st.lists(int32, max_size=3),
)
topics = st.lists(
    st.builds(
        Topic,
        error_code=st.integers(-1, 100),
        name=names,
        topic_id=st.uuids(),
        is_internal=st.booleans(),
        partitions=st.lists(partitions, max_size=4),
        authorized_operations=st.sampled_from([NOT_ASKED, TOPIC_OPERATIONS]),
    ),
    max_size=200,
)
brokers = st.lists(
    st.builds(
        MetadataResponse.MetadataResponseBroker,
        node_id=int32,
        host=names,
        port=int32,
        rack=st.none() | names,
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics, brokers, st.sampled_from([NOT_ASKED, CLUSTER_OPERATIONS]), st.none() | names)
def test_a_metadata_body_is_the_one_that_kafka_python_encodes(
    version: int,
    described: list[Topic],
    nodes: list[MetadataResponse.MetadataResponseBroker],
    operations: set[int],
    cluster_id: str | None,
) -> None:
    def response(listed: list[Topic]) -> MetadataResponse:
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=nodes,
            cluster_id=cluster_id,
            controller_id=1,
            topics=listed,
            authorized_operations=operations,
            error_code=0,
        )

    encoded = [encoded_topic(topic, version) for topic in described]
    body = metadata_body(response([]), encoded, version)
    assert response_frame(API, version, body) == response_frame(API, version, response(described))
