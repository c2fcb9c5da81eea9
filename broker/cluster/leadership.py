"""Which brokers exist and what each leads, by the slot map and the sessions in the registry.

Metadata and FindCoordinator answer from `SlotLeadership`; a single broker has `SingleBroker`
(broker/leadership.py). `SlotLeadership` reads what registry_view.py has seen, and changes nothing.
The owner of a slot leads its partitions and coordinates its groups. While a slot has no owner, or
its owner cannot reach the shard, clients get LEADER_NOT_AVAILABLE or COORDINATOR_NOT_AVAILABLE.
A broker whose session was not renewed in time is gone, also before it is declared dead.

Whether this broker may serve a partition is decided elsewhere: broker/led_partitions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from broker.cluster.leases import LATELY_MS, BrokerSession, LatelyAlive
from broker.leadership import NO_NODE, BrokerEndpoint, Leader
from coordinator.messages import OFFSETS_TOPIC_ID
from storage.slot_map import SlotMap, slot_of_group, slot_of_partition


class Slotted(Protocol):
    """What this broker has read from the registry: broker/cluster/registry_view.py."""

    @property
    def slot_map(self) -> SlotMap | None: ...

    @property
    def sessions(self) -> Mapping[int, BrokerSession]: ...

    @property
    def lately_alive(self) -> LatelyAlive: ...

    def is_silent(self, session_id: int) -> bool:
        """Whether a session was not renewed in time."""


class SlotLeadership:
    """`Leadership` by slots.

    If the owner of a partition cannot reach its shard, the partition has no leader: clients then
    write records without a key to other partitions.
    """

    def __init__(self, ownership: Slotted, own: BrokerEndpoint) -> None:
        """`own`: this broker; it is listed even while it has no session."""
        self._ownership = ownership
        self._own = own

    def brokers(self) -> Sequence[BrokerEndpoint]:
        nodes = {
            session.node_id: _node(session)
            for session_id in self._ownership.sessions
            if (session := self._live(session_id)) is not None
        }
        nodes[self._own.node_id] = self._own
        return [nodes[node_id] for node_id in sorted(nodes)]

    def contacts(self) -> Sequence[BrokerEndpoint]:
        alive = self.brokers()
        if len(alive) > 1:
            return alive
        lately = self._ownership.lately_alive.sessions(LATELY_MS)
        nodes = {one.node_id: _node(one) for one in lately} | {one.node_id: one for one in alive}
        return [nodes[node_id] for node_id in sorted(nodes)]

    @property
    def controller_id(self) -> int:
        return self.brokers()[0].node_id

    @property
    def controller_epoch(self) -> int:
        slot_map = self._ownership.slot_map
        return 1 + max((slot.epoch for slot in slot_map.slots), default=0) if slot_map else 1

    def leader(self, topic_id: UUID, partition: int) -> Leader:
        slot_map = self._ownership.slot_map
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
        session = self._ownership.sessions.get(session_id)
        if session is None or session.is_over or self._ownership.is_silent(session_id):
            return None
        return session

    def _offsets_leader(self, slot_map: SlotMap, number: int) -> Leader:
        """Of a partition of `__consumer_offsets`: who coordinates the groups of the slot."""
        owner = self.owner_of(number)
        epoch = slot_map.slots[number].epoch if 0 <= number < len(slot_map.slots) else 0
        return Leader(NO_NODE if owner is None else owner.node_id, epoch)

    def leaders(self, topic_id: UUID, partitions: int) -> Sequence[Leader]:
        return tuple(self.leader(topic_id, index) for index in range(partitions))

    def coordinator(self, key: str) -> BrokerEndpoint | None:
        slot_map = self._ownership.slot_map
        if slot_map is None:
            return None
        return self.owner_of(slot_of_group(key, len(slot_map.slots)))

    def owner_of(self, number: int) -> BrokerEndpoint | None:
        slot_map = self._ownership.slot_map
        if slot_map is None or not 0 <= number < len(slot_map.slots):
            return None
        slot = slot_map.slots[number]
        session = self._live(slot.owner)
        if session is None or slot.shards[0] in session.away:
            return None
        return _node(session)

    def leading(self, topic_id: UUID, partition: int) -> BrokerEndpoint | None:
        node_id = self.leader(topic_id, partition).node_id
        return next((one for one in self.brokers() if one.node_id == node_id), None)


def _node(session: BrokerSession) -> BrokerEndpoint:
    return BrokerEndpoint(
        session.node_id, session.host, session.port, session.rack, session.listeners
    )
