"""What has configs: resource types, and the check of a broker's name."""

from __future__ import annotations

from enum import IntEnum

from broker.api.context import RequestContext
from protocol.errors import InvalidRequest


class ResourceType(IntEnum):
    """What has configs, by its number in Kafka's protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def check_broker_name(ctx: RequestContext, name: str) -> None:
    """Raises `InvalidRequest` unless `name` is the id of this broker."""
    if name != str(ctx.broker.node_id):
        raise InvalidRequest(f"This is broker {ctx.broker.node_id}; the request names {name!r}.")
