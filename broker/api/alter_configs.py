"""AlterConfigs (33), versions 0 to 2: replaces all overrides of topics.

    v2 flexible

Rules and errors: `config_changes.py`.
"""

from __future__ import annotations

from kafka.protocol.admin import AlterConfigsRequest, AlterConfigsResponse

from brokerhouse.broker.api.config_changes import ConfigChange, Operation, alter_all
from brokerhouse.broker.api.context import Api, RequestContext


async def alter_configs(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    changes = ConfigChange.of_request(request, lambda _: Operation.SET, keeps_others=False)
    validate_only = request.validate_only
    return await alter_all(ctx, changes, AlterConfigsResponse, validate_only=validate_only)


API = Api(AlterConfigsRequest, AlterConfigsResponse, versions=(0, 2), handler=alter_configs)
