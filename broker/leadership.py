"""Which brokers there are, and who looks after what: what Metadata and FindCoordinator tell.

`SingleBroker` is the whole cluster by itself. For several brokers see broker/cluster/leadership.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from broker.log.partition import SINGLE_BROKER_EPOCH

NO_NODE = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that clients can connect to."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, and since which epoch. `node_id` is NO_NODE while nobody does."""

    node_id: int
    epoch: int


class Leadership(Protocol):
    def brokers(self) -> Sequence[Node]:
        """Every broker that is alive, by node id."""

    @property
    def controller_id(self) -> int:
        """Whom admin clients ask; any broker would do."""

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        """Who leads this partition now."""

    def coordinator(self, key: str) -> Node | None:
        """Who looks after a group or a transactional id; None while nobody does."""


class SingleBroker:
    """`Leadership` of a broker that is alone."""

    def __init__(self, node_id: int, advertised: Callable[[], tuple[str, int]]) -> None:
        self._node_id = node_id
        self._advertised = advertised

    def brokers(self) -> Sequence[Node]:
        return [Node(self._node_id, *self._advertised())]

    @property
    def controller_id(self) -> int:
        return self._node_id

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        return Leader(self._node_id, SINGLE_BROKER_EPOCH)

    def coordinator(self, key: str) -> Node | None:
        return self.brokers()[0]
