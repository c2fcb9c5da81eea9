"""DeleteAcls (31), versions 1 to 3: removes entries from access control lists (KIP-140).

    v1 patterns of resource names (KIP-290); v2 flexible; v3 resources of type USER (KIP-373)

This broker has no authorizer: every filter is refused with SECURITY_DISABLED, as by Kafka without
one.
"""

from __future__ import annotations

from kafka.protocol.admin import DeleteAclsRequest, DeleteAclsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.describe_acls import NO_AUTHORIZER
from brokerhouse.protocol.errors import SecurityDisabled


async def delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=SecurityDisabled.code, error_message=f"{NO_AUTHORIZER}.", matching_acls=[]
    )
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[refused] * len(request.filters))


API = Api(DeleteAclsRequest, DeleteAclsResponse, versions=(1, 3), handler=delete_acls)
