"""What a handler knows: the broker, who asks, and in which version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from broker.node import Broker
from protocol.codec import RequestHeader


class CloseConnection(Exception):
    """Raised by a handler whose request cannot be answered in any other way; says why."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request on one connection. `peer` is the client's address, for the log."""

    broker: Broker
    header: RequestHeader
    peer: str


# A request class in, the response class of the same API out; None answers nothing (acks=0).
Handler = Callable[[RequestContext, Any], Awaitable[Any]]
