"""DescribeCluster (60), versions 0 to 2: the brokers of the cluster.

    v1 endpoint type (KIP-919): only brokers can be reached, there are no controllers
    v2 fenced brokers (KIP-1073): this broker has none

Errors: MISMATCHED_ENDPOINT_TYPE (the request asks for controllers), UNSUPPORTED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeClusterRequest, DescribeClusterResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.operations import CLUSTER_OPERATIONS, NOT_ASKED
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.protocol.errors import KafkaError, MismatchedEndpointType, UnsupportedEndpointType

_BROKERS = 1
_CONTROLLERS = 2


async def describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    error = _endpoint_error(ctx.version, request.endpoint_type)
    leadership = ctx.broker.leadership
    asked = request.include_cluster_authorized_operations and error is None
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=error.code if error else 0,
        error_message=error.message if error else None,
        endpoint_type=_BROKERS,
        cluster_id=ctx.broker.cluster_id,
        controller_id=leadership.controller_id,
        brokers=[] if error else [_broker(node) for node in ctx.seen(leadership.brokers())],
        authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )


def _broker(node: BrokerEndpoint) -> DescribeClusterResponse.DescribeClusterBroker:
    return DescribeClusterResponse.DescribeClusterBroker(
        broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=False
    )


def _endpoint_error(version: int, endpoint_type: int) -> KafkaError | None:
    if version == 0 or endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        return MismatchedEndpointType("The request asks for controllers; this is a broker.")
    return UnsupportedEndpointType(f"There is no endpoint type {endpoint_type}.")


API = Api(
    DescribeClusterRequest, DescribeClusterResponse, versions=(0, 2), handler=describe_cluster
)
