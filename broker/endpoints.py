"""A broker as clients reach it, and the leader of a partition as they see it.

Which brokers there are and what each leads is decided by broker/slots/leadership.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brokerhouse.broker.net.named_addresses import DEFAULT_LISTENER, NamedAddress

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
