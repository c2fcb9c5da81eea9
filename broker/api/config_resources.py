"""What has configs: resource types, and the checks of a resource's type and name."""

from __future__ import annotations

from enum import IntEnum

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.protocol.errors import InvalidRequest


class ResourceType(IntEnum):
    """What has configs, by its number in Kafka's protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type(number: int) -> ResourceType:
    """Raises `InvalidRequest` for a number that is no resource type."""
    if number not in set(ResourceType):
        known = ", ".join(f"{kind.name} ({kind.value})" for kind in ResourceType)
        raise InvalidRequest(f"There is no resource type {number}; there are {known}.")
    return ResourceType(number)


def check_broker_name(ctx: RequestContext, name: str) -> None:
    """Raises `InvalidRequest` unless `name` is the id of this broker."""
    if name != str(ctx.broker.node_id):
        raise InvalidRequest(f"This is broker {ctx.broker.node_id}; the request names {name!r}.")


def check_name(kind: ResourceType, name: str) -> None:
    """Raises `InvalidRequest` for an empty name: these resources have no common default."""
    if not name:
        raise InvalidRequest(f"The resource of type {kind.name} has no name.")
