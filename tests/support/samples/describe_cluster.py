"""DescribeCluster: the only broker."""

from typing import Any

from kafka.protocol.admin import DescribeClusterRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DescribeClusterRequest:
    return DescribeClusterRequest(
        include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=True
    )


def check(asked: Asked, answer: Any) -> None:
    (node,) = answer.brokers
    assert f"{node.host}:{node.port}" == asked.broker.kafka
    assert (answer.error_code, answer.error_message) == (0, None)
    assert answer.controller_id == node.broker_id
    assert len(answer.cluster_id) == 22
    if asked.version >= 1:
        assert answer.endpoint_type == 1
    if asked.version >= 2:
        assert node.is_fenced is False


SAMPLE = Sample(request, check)
