"""DeleteGroups (42), versions 0 to 2: deletes groups without members, with their offsets.

    v2 flexible

A group that is named twice is deleted once.

Errors of a group: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, INVALID_GROUP_ID, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio

from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import KafkaError

_deleting: set[asyncio.Task[None]] = set()


async def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            await _delete(ctx, group_id)
            error_code = 0
        except KafkaError as error:
            error_code = error.code
        results.append(
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error_code)
        )
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


async def _delete(ctx: RequestContext, group_id: str) -> None:
    """A deletion that has begun is finished even if the client disconnects.

    Half of one would leave a group whose offsets are deleted.
    """
    coordinator = ctx.broker.groups.coordinator_of(group_id)
    deletion = asyncio.create_task(coordinator.delete_group(group_id))
    _deleting.add(deletion)
    deletion.add_done_callback(_deleting.discard)
    await asyncio.shield(deletion)


API = Api(DeleteGroupsRequest, DeleteGroupsResponse, versions=(0, 2), handler=delete_groups)
