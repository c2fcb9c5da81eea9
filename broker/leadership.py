"""Which brokers exist, which one leads each partition, and which one coordinates each group.

Metadata and FindCoordinator use it. `SingleBroker` is the whole cluster. Several brokers
use broker/cluster/leadership.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from broker.log.partition import SINGLE_BROKER_EPOCH
from broker.named_addresses import DEFAULT_LISTENER, NamedAddress

NO_NODE = -1


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A broker that clients can connect to.

    `host` and `port` are of its first listener, to which other brokers connect. `listeners`: the
    addresses of all; there may be none if PLAINTEXT is the only one.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    listeners: tuple[NamedAddress, ...] = ()

    @property
    def addresses(self) -> tuple[NamedAddress, ...]:
        """Of all listeners."""
        return self.listeners or (NamedAddress(DEFAULT_LISTENER, self.host, self.port),)

    def seen_from(self, listener: str) -> BrokerEndpoint | None:
        """The broker as clients of this listener reach it; None if it has no such listener."""
        for name, host, port in self.addresses:
            if name == listener:
                return replace(self, host=host, port=port)
        return None


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition, and its epoch. `node_id` is NO_NODE while there is no leader."""

    node_id: int
    epoch: int


class Leadership(Protocol):
    def brokers(self) -> Sequence[BrokerEndpoint]:
        """Every broker that is alive, by node id."""

    def contacts(self) -> Sequence[BrokerEndpoint]:
        """The brokers that Metadata names, by node id: those that are alive.

        Some clients (aiokafka 0.14) ask only the brokers of the last answer, never their bootstrap
        servers: if these are away, such a client fails although other brokers are back. So a broker
        that is left alone also names those that were alive lately.
        """

    @property
    def controller_id(self) -> int:
        """The broker to which admin clients send their requests; any broker would do."""

    @property
    def controller_epoch(self) -> int:
        """At least 1, the same at every broker, and higher once slots have moved."""

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        """The current leader of this partition."""

    def leaders(self, topic_id: UUID, partitions: int) -> Sequence[Leader]:
        """The current leaders of the topic's first `partitions` partitions."""

    def coordinator(self, key: str) -> BrokerEndpoint | None:
        """The coordinator of a group or of a transactional id; None while there is none."""

    def owner_of(self, number: int) -> BrokerEndpoint | None:
        """The coordinator of the groups in a slot."""

    def leading(self, topic_id: UUID, partition: int) -> BrokerEndpoint | None:
        """The broker that leads a partition."""


class SingleBroker:
    """`Leadership` of a single broker."""

    def __init__(self, own: BrokerEndpoint) -> None:
        self._own = own
        self._leader = Leader(own.node_id, SINGLE_BROKER_EPOCH)

    def brokers(self) -> Sequence[BrokerEndpoint]:
        return [self._own]

    def contacts(self) -> Sequence[BrokerEndpoint]:
        return [self._own]

    @property
    def controller_id(self) -> int:
        return self._own.node_id

    @property
    def controller_epoch(self) -> int:
        return self._leader.epoch + 1

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        return self._leader

    def leaders(self, topic_id: UUID, partitions: int) -> Sequence[Leader]:
        return (self._leader,) * partitions

    def coordinator(self, key: str) -> BrokerEndpoint | None:
        return self._own

    def owner_of(self, number: int) -> BrokerEndpoint | None:
        return self._own

    def leading(self, topic_id: UUID, partition: int) -> BrokerEndpoint | None:
        return self._own
