"""Which brokers exist and what each leads, by the slot map and the sessions.

Metadata and FindCoordinator answer from `SlotLeadership`. In a cluster it reads what
broker/cluster/registry_view.py has seen, and changes nothing; on a single broker the map and its
one session never change. The owner of a slot leads its partitions and coordinates its groups. While
a slot has no owner, or its owner cannot reach the shard, clients get LEADER_NOT_AVAILABLE or
COORDINATOR_NOT_AVAILABLE. A broker whose session was not renewed in time is gone, also before it is
declared dead.

Whether this broker may serve a partition is decided elsewhere: broker/led_partitions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from brokerhouse.broker.endpoints import NO_NODE, BrokerEndpoint, Leader
from brokerhouse.broker.slots.sessions import LATELY_MS, BrokerSession, LatelyAlive
from brokerhouse.coordinator.messages import OFFSETS_TOPIC_ID
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.storage.slot_map import SlotMap, slot_of_group, slot_of_partition


class KnownSlots(Protocol):
    """What this broker knows of all slots and their owners.

    `RegistryView` in a cluster, else `UnchangingSlots`.
    """

    @property
    def slot_map(self) -> SlotMap | None: ...

    @property
    def sessions(self) -> Mapping[int, BrokerSession]: ...

    @property
    def lately_alive(self) -> LatelyAlive: ...

    def is_silent(self, session_id: int) -> bool:
        """Whether a session was not renewed in time."""


@dataclass(frozen=True, slots=True)
class UnchangingSlots:
    """The slots of a single broker."""

    slot_map: SlotMap
    sessions: Mapping[int, BrokerSession]
    lately_alive: LatelyAlive

    def is_silent(self, session_id: int) -> bool:
        return False


class SlotLeadership:
    """Who leads each partition and coordinates each group.

    If the owner of a partition cannot reach its shard, the partition has no leader: clients then
    write records without a key to other partitions.
    """

    def __init__(
        self, known: KnownSlots, own: BrokerEndpoint, only_leader: Leader | None = None
    ) -> None:
        """`own`: this broker; it is listed even while it has no session.

        `only_leader`: of every partition, for ever. Metadata of 1,000 topics needs no look at their
        slots then.
        """
        self._known = known
        self._own = own
        self._only_leader = only_leader

    @classmethod
    def alone(cls, own: BrokerEndpoint) -> SlotLeadership:
        """That of a single broker."""
        slots = tuple(OwnSlots.alone().owned.values())
        owner, epoch = slots[0].owner, slots[0].epoch
        session = BrokerSession(
            owner, own.node_id, own.host, own.port, own.rack, ttl_ms=0, listeners=own.listeners
        )
        known = UnchangingSlots(SlotMap(slots), {owner: session}, LatelyAlive(LATELY_MS))
        return cls(known, own, Leader(own.node_id, epoch))

    def brokers(self) -> Sequence[BrokerEndpoint]:
        """Every broker that is alive, by node id."""
        nodes = {
            session.node_id: _node(session)
            for session_id in self._known.sessions
            if (session := self._live(session_id)) is not None
        }
        nodes[self._own.node_id] = self._own
        return [nodes[node_id] for node_id in sorted(nodes)]

    def contacts(self) -> Sequence[BrokerEndpoint]:
        """The brokers that Metadata names, by node id: those that are alive.

        Some clients (aiokafka 0.14) ask only the brokers of the last answer, never their bootstrap
        servers: if these are away, such a client fails although other brokers are back. So a broker
        that is left alone also names those that were alive lately.
        """
        alive = self.brokers()
        if len(alive) > 1:
            return alive
        lately = self._known.lately_alive.sessions(LATELY_MS)
        nodes = {one.node_id: _node(one) for one in lately} | {one.node_id: one for one in alive}
        return [nodes[node_id] for node_id in sorted(nodes)]

    @property
    def controller_id(self) -> int:
        """The broker to which admin clients send their requests; any broker would do."""
        return self.brokers()[0].node_id

    @property
    def controller_epoch(self) -> int:
        """At least 1, the same at every broker, and higher once slots have moved."""
        slot_map = self._known.slot_map
        return 1 + max((slot.epoch for slot in slot_map.slots), default=0) if slot_map else 1

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        """The current leader of this partition."""
        if self._only_leader is not None:
            return self._only_leader
        slot_map = self._known.slot_map
        if slot_map is None:
            return Leader(NO_NODE, 0)
        if topic_id == OFFSETS_TOPIC_ID:
            return self._offsets_leader(slot_map, partition)
        slot = slot_map.slots[slot_of_partition(topic_id, partition, len(slot_map.slots))]
        session = self._live(slot.owner)
        if session is None or slot.writes_to in session.away:
            return Leader(NO_NODE, slot.epoch)
        return Leader(session.node_id, slot.epoch)

    def _live(self, session_id: int) -> BrokerSession | None:
        """The session, unless it is over."""
        session = self._known.sessions.get(session_id)
        if session is None or session.is_over or self._known.is_silent(session_id):
            return None
        return session

    def _offsets_leader(self, slot_map: SlotMap, number: int) -> Leader:
        """Of a partition of `__consumer_offsets`: who coordinates the groups of the slot."""
        owner = self.owner_of(number)
        epoch = slot_map.slots[number].epoch if 0 <= number < len(slot_map.slots) else 0
        return Leader(NO_NODE if owner is None else owner.node_id, epoch)

    def leaders(self, topic_id: UUID, partitions: int) -> Sequence[Leader]:
        """The current leaders of the topic's first `partitions` partitions."""
        if self._only_leader is not None:
            return (self._only_leader,) * partitions
        return tuple(self.leader(topic_id, index) for index in range(partitions))

    def coordinator(self, key: str) -> BrokerEndpoint | None:
        """The coordinator of a group or of a transactional id; None while there is none."""
        slot_map = self._known.slot_map
        if slot_map is None:
            return None
        return self.owner_of(slot_of_group(key, len(slot_map.slots)))

    def owner_of(self, number: int) -> BrokerEndpoint | None:
        """The coordinator of the groups in a slot."""
        slot_map = self._known.slot_map
        if slot_map is None or not 0 <= number < len(slot_map.slots):
            return None
        slot = slot_map.slots[number]
        session = self._live(slot.owner)
        if session is None or slot.shards[0] in session.away:
            return None
        return _node(session)

    def leading(self, topic_id: UUID, partition: int) -> BrokerEndpoint | None:
        """The broker that leads a partition."""
        node_id = self.leader(topic_id, partition).node_id
        return next((one for one in self.brokers() if one.node_id == node_id), None)


def _node(session: BrokerSession) -> BrokerEndpoint:
    return BrokerEndpoint(
        session.node_id, session.host, session.port, session.rack, session.listeners
    )
