"""What an API key declares, and what its handler gets.

The file of a key ends with its `Api`. A handler gets the decoded request and a
`RequestContext`, and returns the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from brokerhouse.broker.broker import Broker
from brokerhouse.broker.endpoints import NO_NODE, BrokerEndpoint, Leader
from brokerhouse.broker.log.block import Sender
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.memory import ResponseCharge
from brokerhouse.broker.net.named_addresses import DEFAULT_LISTENER
from brokerhouse.coordinator.messages import Client
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.versions import ServedApi

NAME_MAX_BYTES = 16_384
"""Limit of a client id or a group instance id. A member id is such an id with 37 more characters,
and must fit into the 32,767 bytes that a string of the protocol may have."""


class CloseConnection(Exception):
    """Raised by a handler that cannot answer the request in any other way. The message says why."""


class RequestContext(NamedTuple):
    """One request on one connection. `peer` is the client's HOST:PORT, `sender` its connection."""

    broker: Broker
    header: RequestHeader
    peer: str
    apis: Mapping[int, Api]
    charge: ResponseCharge
    """Of the connection: what a response holds before it is encoded is counted here."""
    sender: Sender | None = None
    listener: str = DEFAULT_LISTENER
    """The name of the one that the client is connected to."""

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client(self) -> Client:
        """The client of the request, with its host as Kafka's tools show it."""
        host, _, _ = self.peer.rpartition(":")
        name = (self.header.client_id or "").encode()[:NAME_MAX_BYTES].decode(errors="ignore")
        return Client(name, f"/{host}")

    def seen(self, brokers: Iterable[BrokerEndpoint]) -> list[BrokerEndpoint]:
        """These brokers as the client reaches them; none that has no listener of this name."""
        found = (broker.seen_from(self.listener) for broker in brokers)
        return [broker for broker in found if broker is not None]

    def reached(self) -> Collection[int] | None:
        """The node ids of brokers that the client can reach. None: all, there is one listener."""
        if not self.broker.endpoint.listeners:
            return None
        return {broker.node_id for broker in self.seen(self.broker.leadership.contacts())}

    def leaders(self, topic: Topic, reached: Collection[int] | None) -> Sequence[Leader]:
        """The leaders of a topic's partitions; NO_NODE also for one that is not `reached`."""
        leaders = self.broker.leadership.leaders(topic.topic_id, topic.partitions)
        if reached is None:
            return leaders
        return tuple(
            leader if leader.node_id in reached else replace(leader, node_id=NO_NODE)
            for leader in leaders
        )


Handler = Callable[[RequestContext, Any], Awaitable[Any]]
"""Takes a request and returns the response of the same API, its body in bytes, its whole frame in a
list of pieces, or None: no answer (acks=0). A coroutine function begins in a later turn of the
event loop, and in the order of the requests; a function that returns a future has done its first
part when it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(ServedApi):
    """One API key as this broker serves it.

    The versions are those of Apache Kafka 4 brokers: versions that Kafka 4.0 removed (KIP-896) are
    not served, nor are versions that Kafka itself calls unstable (InitProducerId 6).
    """

    handler: Handler
    first_listed: int | None = None
    """The first version that ApiVersions lists, if that is not the first one served."""

    @property
    def advertised_min(self) -> int:
        return self.min_version if self.first_listed is None else self.first_listed
