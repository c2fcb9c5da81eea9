"""IncrementalAlterConfigs (44), versions 0 to 1: changes single configs of topics (KIP-339).

    v1 flexible

A config is set, deleted, appended to or subtracted from. Rules and errors: `config_changes.py`.
"""

from __future__ import annotations

from kafka.protocol.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

from brokerhouse.broker.api.config_changes import ConfigChange, alter_all
from brokerhouse.broker.api.context import Api, RequestContext


async def incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    changes = ConfigChange.of_request(
        request, lambda config: config.config_operation, keeps_others=True
    )
    response = IncrementalAlterConfigsResponse
    return await alter_all(ctx, changes, response, validate_only=request.validate_only)


API = Api(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    versions=(0, 1),
    handler=incremental_alter_configs,
)
