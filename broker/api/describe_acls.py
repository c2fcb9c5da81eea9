"""DescribeAcls (29), versions 1 to 3: the access control lists of resources (KIP-140).

    v1 patterns of resource names (KIP-290); v2 flexible; v3 resources of type USER (KIP-373)

This broker has no authorizer. As Kafka without one it answers SECURITY_DISABLED, with Kafka's
sentence, which tools print.
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeAclsRequest, DescribeAclsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import SecurityDisabled

NO_AUTHORIZER = "No Authorizer is configured"


async def describe_acls(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        throttle_time_ms=0,
        error_code=SecurityDisabled.code,
        error_message=f"{NO_AUTHORIZER} on the broker",
        resources=[],
    )


API = Api(DescribeAclsRequest, DescribeAclsResponse, versions=(1, 3), handler=describe_acls)
