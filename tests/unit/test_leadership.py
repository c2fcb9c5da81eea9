"""The leaders and coordinators that clients see, from the slot map and the sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from brokerhouse.broker.endpoints import NO_NODE, BrokerEndpoint, Leader
from brokerhouse.broker.net.named_addresses import NamedAddress
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.sessions import LATELY_MS, BrokerSession, LatelyAlive, SessionState
from brokerhouse.storage.slot_map import SlotMap, slot_of_group, slot_of_partition

TOPIC = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
SLOTS = 8
OWN = BrokerEndpoint(1, "one", 9092)


def session(session_id: int, node_id: int) -> BrokerSession:
    return BrokerSession(session_id, node_id, f"host{node_id}", 9092, None, 9000)


@dataclass
class Seen:
    """Node 1 owns the first half of the slots, on shard a; node 2 the rest, on b."""

    slot_map: SlotMap | None = field(
        default_factory=lambda: (
            SlotMap.first([("a", range(4)), ("b", range(4, SLOTS))], SLOTS)
            .claim(range(4), 11)
            .claim(range(4, SLOTS), 12)
        )
    )
    sessions: Mapping[int, BrokerSession] = field(
        default_factory=lambda: {11: session(11, 1), 12: session(12, 2)}
    )

    lately_alive: LatelyAlive = field(default_factory=lambda: LatelyAlive(LATELY_MS))
    silent: set[int] = field(default_factory=set)

    def is_silent(self, session_id: int) -> bool:
        return session_id in self.silent


def partition_in(slots: range) -> int:
    return next(n for n in range(1000) if slot_of_partition(TOPIC, n, SLOTS) in slots)


def group_in(slots: range) -> str:
    return next(f"g{n}" for n in range(1000) if slot_of_group(f"g{n}", SLOTS) in slots)


ONES, TWOS = range(4), range(4, SLOTS)


def test_the_owner_of_the_slot_leads_and_coordinates() -> None:
    leadership = SlotLeadership(Seen(), OWN)
    assert leadership.leader(TOPIC, partition_in(ONES)) == Leader(1, 1)
    assert leadership.leader(TOPIC, partition_in(TWOS)) == Leader(2, 1)
    assert leadership.coordinator(group_in(TWOS)) == BrokerEndpoint(2, "host2", 9092)
    assert [node.node_id for node in leadership.brokers()] == [1, 2]
    assert leadership.controller_id == 1


def test_partitions_have_no_leader_before_the_map_is_known() -> None:
    leadership = SlotLeadership(Seen(slot_map=None, sessions={}), OWN)
    assert leadership.leader(TOPIC, 0).node_id == NO_NODE
    assert leadership.coordinator("g") is None
    assert leadership.brokers() == [OWN]


@pytest.mark.parametrize("state", [SessionState.DEAD, SessionState.CLOSED, None])
def test_a_broker_whose_session_ended_leads_nothing(state: SessionState | None) -> None:
    seen = Seen()
    alive = {11: seen.sessions[11]}
    gone = {} if state is None else {12: seen.sessions[12].ended(state)}
    seen.sessions = alive | gone
    leadership = SlotLeadership(seen, OWN)
    assert leadership.leader(TOPIC, partition_in(TWOS)) == Leader(NO_NODE, 1)
    assert leadership.coordinator(group_in(TWOS)) is None
    assert [node.node_id for node in leadership.brokers()] == [1]


def test_partitions_on_a_shard_that_their_owner_cannot_reach_have_no_leader() -> None:
    seen = Seen()
    seen.sessions = {11: seen.sessions[11], 12: replace(seen.sessions[12], away=frozenset("b"))}
    leadership = SlotLeadership(seen, OWN)
    assert leadership.leader(TOPIC, partition_in(TWOS)).node_id == NO_NODE
    assert leadership.leader(TOPIC, partition_in(ONES)).node_id == 1
    assert leadership.coordinator(group_in(TWOS)) is None


def test_a_moved_slot_is_led_where_its_owner_writes() -> None:
    seen = Seen()
    assert seen.slot_map is not None
    seen.slot_map = seen.slot_map.move(range(4), "b")
    seen.sessions = {11: replace(seen.sessions[11], away=frozenset("b")), 12: seen.sessions[12]}
    leadership = SlotLeadership(seen, OWN)
    assert leadership.leader(TOPIC, partition_in(ONES)).node_id == 1, "it still writes to a"
    seen.slot_map = seen.slot_map.claim(range(4), 11)
    assert leadership.leader(TOPIC, partition_in(ONES)) == Leader(NO_NODE, 2)


def test_a_broker_lists_itself_even_without_a_session() -> None:
    leadership = SlotLeadership(Seen(sessions={12: session(12, 2)}), OWN)
    assert list(leadership.brokers()) == [OWN, BrokerEndpoint(2, "host2", 9092)]


def test_a_broker_that_has_not_renewed_its_session_in_time_leads_nothing() -> None:
    seen = Seen(silent={12})
    leadership = SlotLeadership(seen, OWN)
    assert leadership.leader(TOPIC, partition_in(TWOS)) == Leader(NO_NODE, 1)
    assert leadership.coordinator(group_in(TWOS)) is None
    assert [node.node_id for node in leadership.brokers()] == [1]


def test_clients_are_told_only_of_live_brokers_while_there_are_any() -> None:
    seen = Seen()
    leadership = SlotLeadership(seen, OWN)
    seen.lately_alive.saw([session(11, 1), session(12, 2), session(13, 3)], 0)
    assert [node.node_id for node in leadership.contacts()] == [1, 2]


def test_a_broker_that_is_left_alone_lists_the_brokers_that_were_recently_alive() -> None:
    """Clients that ask only the brokers of the last answer find those that are back."""
    seen = Seen()
    leadership = SlotLeadership(seen, OWN)
    seen.lately_alive.saw([session(11, 1), session(12, 2), session(13, 3)], 0)
    seen.sessions = {11: seen.sessions[11], 12: seen.sessions[12].ended(SessionState.DEAD)}
    assert list(leadership.contacts()) == [
        OWN,
        BrokerEndpoint(2, "host2", 9092),
        BrokerEndpoint(3, "host3", 9092),
    ]
    assert list(leadership.brokers()) == [OWN]
    assert leadership.controller_id == 1


def test_a_single_broker_leads_everything() -> None:
    own = BrokerEndpoint(3, "alone", 1, "rack", (NamedAddress("INSIDE", "alone", 1),))
    leadership = SlotLeadership.alone(own)
    assert leadership.leader(TOPIC, 5) == Leader(3, 0)
    assert leadership.leaders(TOPIC, 3) == (Leader(3, 0),) * 3
    assert leadership.leading(TOPIC, 5) == own
    assert {leadership.coordinator("g"), leadership.owner_of(0), leadership.owner_of(49)} == {own}
    assert leadership.contacts() == leadership.brokers() == [own]
    assert (leadership.controller_id, leadership.controller_epoch) == (3, 1)
