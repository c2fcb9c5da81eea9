"""ListPartitionReassignments (46), version 0: the partitions that are being moved (KIP-455).

There are none: see `alter_partition_reassignments.py`. As in Kafka, a topic that does not exist is
no error.
"""

from __future__ import annotations

from kafka.protocol.admin import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from brokerhouse.broker.api.context import Api, RequestContext


async def list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=0, error_message=None, topics=[]
    )


API = Api(
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    versions=(0, 0),
    handler=list_partition_reassignments,
)
