"""ListGroups (16), versions 0 to 5: the groups, selected by state and type.

    v1 throttle time; v3 flexible; v4 states, in answers and to select by (KIP-518)
    v5 types, in answers and to select by (KIP-848); every group here has the type `classic`

Any broker answers, from the cache that all brokers share.
"""

from __future__ import annotations

from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from brokerhouse.broker.api.context import Api, RequestContext

_CLASSIC = "classic"


async def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    return ListGroupsResponse(
        throttle_time_ms=0,
        error_code=0,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_CLASSIC,
            )
            for group in ctx.broker.groups.records()
            if (not states or group.state.lower() in states) and (not types or _CLASSIC in types)
        ],
    )


API = Api(ListGroupsRequest, ListGroupsResponse, versions=(0, 5), handler=list_groups)
