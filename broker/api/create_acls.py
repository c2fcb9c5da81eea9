"""CreateAcls (30), versions 1 to 3: adds entries to access control lists (KIP-140).

    v1 patterns of resource names (KIP-290); v2 flexible; v3 resources of type USER (KIP-373)

This broker has no authorizer: every entry is refused with SECURITY_DISABLED, as by Kafka without
one.
"""

from __future__ import annotations

from kafka.protocol.admin import CreateAclsRequest, CreateAclsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.describe_acls import NO_AUTHORIZER
from brokerhouse.protocol.errors import SecurityDisabled


async def create_acls(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refused = CreateAclsResponse.AclCreationResult(
        error_code=SecurityDisabled.code, error_message=f"{NO_AUTHORIZER}."
    )
    return CreateAclsResponse(throttle_time_ms=0, results=[refused] * len(request.creations))


API = Api(CreateAclsRequest, CreateAclsResponse, versions=(1, 3), handler=create_acls)
