"""Which broker should own which slot: slots of partitions and groups, the map as text, the plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.broker.cluster.leases import SessionLease, SessionSightings, SlotPlan, plan_slots
from brokerhouse.broker.net.named_addresses import NamedAddress
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession, LatelyAlive, SessionState
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.slot_map import NOBODY, Slot, SlotMap, slot_of_group, slot_of_partition

NAMESPACE = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


# Slots of partitions and groups


def test_the_slots_of_partitions_and_groups_never_change() -> None:
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert [slot_of_partition(topic_id, n, 64) for n in range(6)] == PARTITION_SLOTS
    groups = ["", "g", "orders", "billing-7", "группа"]
    assert [slot_of_group(group, 64) for group in groups] == GROUP_SLOTS


PARTITION_SLOTS = [33, 8, 48, 23, 63, 38]
GROUP_SLOTS = [0, 0, 57, 60, 25]


@pytest.mark.parametrize("shards", [2, 3, 4, 8])
@pytest.mark.parametrize("slots", [16, 64, 256])
def test_partitions_of_a_topic_lie_evenly_over_ranges_of_slots(slots: int, shards: int) -> None:
    """At every count: a topic that is widened later lies evenly as well."""
    for topic in range(50):
        topic_id = uuid5(NAMESPACE, str(topic))
        counts = Counter(dict.fromkeys(range(shards), 0))
        for partition in range(64):
            counts[slot_of_partition(topic_id, partition, slots) * shards // slots] += 1
            # 16 slots cannot be cut in three without one shard having a slot more.
            unevenness = 4 + (partition + 1) * (slots % shards) / slots
            assert max(counts.values()) - min(counts.values()) <= unevenness, partition


def test_groups_are_spread_over_slots() -> None:
    counts = Counter(slot_of_group(f"service-{n}", 64) for n in range(6_400))
    assert len(counts) == 64
    assert max(counts.values()) < 160
    assert min(counts.values()) > 50


@given(st.uuids(), st.integers(0, 2**31 - 1), st.integers(1, 5_000), st.text())
def test_every_partition_and_group_has_a_slot(
    topic_id: UUID, partition: int, slots: int, group_id: str
) -> None:
    assert 0 <= slot_of_partition(topic_id, partition, slots) < slots
    assert 0 <= slot_of_group(group_id, slots) < slots


# The map


def test_a_new_map_gives_each_slot_its_shard_and_no_owner() -> None:
    slot_map = SlotMap.first([("a", range(2)), ("b", range(2, 4))], 4)
    assert slot_map.slots[1] == Slot(NOBODY, 0, ("a",))
    assert slot_map.slots[2] == Slot(NOBODY, 0, ("b",))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([("a", range(3)), ("b", range(2, 4))], "slot 2 belongs to shard a and to shard b"),
        ([("a", range(3))], "slot 3 belongs to no shard"),
        ([("a", range(5))], "there is no slot 4 in a cluster of 4 slots"),
    ],
)
def test_ranges_have_to_cover_every_slot_once(
    ranges: list[tuple[str, range]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SlotMap.first(ranges, 4)


def test_every_claim_raises_the_epoch_and_a_release_keeps_it() -> None:
    slot_map = SlotMap.first([("a", range(2))], 2).claim([1], 7)
    assert slot_map.slots[1] == Slot(7, 1, ("a",))
    assert slot_map.slots[0] == Slot(NOBODY, 0, ("a",))
    slot_map = slot_map.release([1], 7)
    assert slot_map.slots[1] == Slot(NOBODY, 1, ("a",))
    assert slot_map.claim([1], 8).slots[1].epoch == 2
    with pytest.raises(ValueError, match="slot 1 belongs to session 0, not to 7"):
        slot_map.release([1], 7)
    with pytest.raises(ValueError, match="there is no slot 2: the last one is 1"):
        slot_map.claim([2], 7)


def test_a_move_takes_effect_when_the_owner_claims_the_slot_again() -> None:
    slot_map = SlotMap.first([("a", range(2))], 2).claim([0], 7).move([0, 1], "b")
    owned, free = slot_map.slots
    assert owned == Slot(7, 1, ("a", "b"), behind=1)
    assert owned.writes_to == "a", "until it has taken notice"
    assert free == Slot(NOBODY, 0, ("a", "b"))
    assert slot_map.claim([0], 7).slots[0] == Slot(7, 2, ("a", "b"))
    assert slot_map.claim([0], 7).slots[0].writes_to == "b"


def test_a_second_move_replaces_a_move_that_no_owner_has_seen() -> None:
    slot_map = SlotMap.first([("a", range(1))], 1).claim([0], 7).move([0], "b")
    assert slot_map.move([0], "c").slots[0] == Slot(7, 1, ("a", "c"), behind=1)
    assert slot_map.move([0], "a").slots[0] == Slot(7, 1, ("a",))
    assert slot_map.move([0], "b") == slot_map


def test_a_shard_is_retired_once_nothing_needs_it() -> None:
    slot_map = SlotMap((Slot(7, 3, ("a", "b", "a", "c")), Slot(7, 3, ("a", "b", "c"), behind=1)))
    assert slot_map.retire([0], "b").slots[0].shards == ("a", "c")
    with pytest.raises(ValueError, match="the groups of slot 0 are stored on shard a"):
        slot_map.retire([0], "a")
    with pytest.raises(ValueError, match="new rows of slot 0 are written to shard c"):
        slot_map.retire([0], "c")
    with pytest.raises(ValueError, match="new rows of slot 1 are written to shard b"):
        slot_map.retire([1], "b")


# As text


SESSION = BrokerSession(
    session_id=12,
    node_id=3,
    host="broker-3",
    port=9092,
    rack="r1",
    ttl_ms=9_000,
    state=SessionState.LEAVING,
    renewals=4_711,
    day=20_000,
    lanes={"a": (7, 0, 9)},
    append_floors={"a": 1_700_000_000_000},
    away=frozenset({"b", "c"}),
    topics_seen=17,
    listeners=(NamedAddress("IN", "broker-3", 9092), NamedAddress("OUT", "host-3", 9094)),
    failures_ms={"http://a:8123": 1_700_000_000_123},
)


def test_a_session_is_read_back_from_its_text() -> None:
    assert BrokerSession.from_text(SESSION.to_text()) == SESSION
    assert BrokerSession.from_text(replace(SESSION, rack=None).to_text()).rack is None


def test_a_session_of_an_earlier_version_is_read_without_the_newer_fields() -> None:
    found = json.loads(SESSION.to_text())
    del found["listeners"], found["failures_ms"]
    expected = replace(SESSION, listeners=(), failures_ms={})
    assert BrokerSession.from_text(json.dumps(found)) == expected


names = st.text(max_size=5)
slots_of_maps = st.tuples(
    st.integers(0, 2**63), st.integers(0, 2**31), st.lists(names, min_size=1, max_size=4)
).flatmap(
    lambda made: st.integers(0, len(made[2]) - 1).map(
        lambda behind: Slot(made[0], made[1], tuple(made[2]), behind)
    )
)


@given(st.lists(slots_of_maps, max_size=20))
def test_a_slot_map_is_read_back_from_its_text(slots: list[Slot]) -> None:
    slot_map = SlotMap(tuple(slots))
    assert SlotMap.from_text(slot_map.to_text()) == slot_map


def test_a_slot_map_takes_few_bytes_a_slot() -> None:
    ranges = [(f"shard-{n}.example.com", range(n * 64, n * 64 + 64)) for n in range(4)]
    assert len(SlotMap.first(ranges, 256).claim(range(256), 1_000).to_text()) < 256 * 16


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"session_id":1}', "{"])
def test_text_that_is_not_a_session_or_slot_map_is_refused(text: str) -> None:
    with pytest.raises(MalformedState, match="not a session"):
        BrokerSession.from_text(text)
    with pytest.raises(MalformedState, match="not a slot map"):
        SlotMap.from_text(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", -1),
        ("session_id", "1"),
        ("renewals", True),
        ("state", "asleep"),
        ("lanes", []),
        ("lanes", {"a": [1.5]}),
        ("lanes", {"a": 3}),
        ("away", 3),
        ("host", None),
        ("listeners", [["IN", "broker-3"]]),
        ("listeners", [["IN", "broker-3", "9092"]]),
        ("failures_ms", {"http://a:8123": -1}),
    ],
)
def test_a_session_with_an_invalid_field_is_refused(field: str, value: object) -> None:
    found = json.loads(SESSION.to_text())
    found[field] = value
    with pytest.raises(MalformedState, match="not a session"):
        BrokerSession.from_text(json.dumps(found))


@pytest.mark.parametrize(
    "slots",
    [
        [[0, 0, 1, 0]],
        [[0, 0, 0]],
        [[0, 0, 0, 1]],
        [[-1, 0, 0, 0]],
        [[0, "0", 0, 0]],
        3,
    ],
)
def test_a_slot_map_with_an_invalid_slot_is_refused(slots: object) -> None:
    with pytest.raises(MalformedState, match="not a slot map"):
        SlotMap.from_text(json.dumps({"shards": [["a"]], "slots": slots}))


def test_a_renewal_contains_the_report_and_differs_from_every_other() -> None:
    report = BrokerReport(20_001, {"a": (8,)}, {"a": 5}, frozenset({"c"}), 18, {"http://a:1": 9})
    row = SESSION.renewed(SessionState.LIVE, report)
    assert (row.renewals, row.state, row.day) == (4_712, SessionState.LIVE, 20_001)
    assert row.lanes == {"a": (8,)}
    assert row.append_floors == {"a": 5}
    assert row.away == {"c"}
    assert (row.topics_seen, row.host) == (18, "broker-3")
    assert row.failures_ms == {"http://a:1": 9}
    dead = row.ended(SessionState.DEAD)
    assert dead.is_over
    assert dead.lanes == {"a": (8,)}, "its successor fences from there on"


# Leases


def test_a_lease_lasts_from_the_sending_of_its_last_accepted_renewal() -> None:
    lease = SessionLease(9_000, sent_ms=1_000)
    assert lease.valid(9_999)
    assert not lease.valid(10_000)
    assert lease.renewed(3_000).valid(11_999)
    assert lease.renewed(3_000).renewed(2_000).ends_ms == 12_000


def test_a_session_is_silent_when_its_row_is_unchanged_for_a_20th_more_than_its_own_time() -> None:
    watch = SessionSightings()
    assert not watch.silent(1, 10**9), "never seen"
    watch.saw(1, 5, 8_000, 100)
    watch.saw(1, 5, 8_000, 5_000)
    assert not watch.silent(1, 8_499)
    assert watch.silent(1, 8_500)
    watch.saw(1, 6, 8_000, 8_500)
    assert not watch.silent(1, 16_899)
    watch.saw(2, None, 8_000, 0)
    assert watch.silent(2, 8_400)
    watch.forget_all_but([1])
    assert not watch.silent(2, 20_000)


# The plan


def session(number: int, state: SessionState = SessionState.LIVE, *away: str) -> BrokerSession:
    lanes = {"a": (0,), "b": (0,)}
    return BrokerSession(
        number, number, "host", 9092, None, 9_000, state, lanes=lanes, away=frozenset(away)
    )


def live(*numbers: int) -> dict[int, BrokerSession]:
    return {number: session(number) for number in numbers}


def owned(*owners: int, shards: str = "") -> SlotMap:
    """A slot for each owner, on the shard with the letter at its place, or all on `a`."""
    names = shards or "a" * len(owners)
    return SlotMap(
        tuple(Slot(owner, 1, (shard,)) for owner, shard in zip(owners, names, strict=True))
    )


def planned(
    me: int,
    slot_map: SlotMap,
    sessions: Mapping[int, BrokerSession],
    silent: tuple[int, ...] = (),
    reachable: str = "ab",
    releasing: tuple[int, ...] = (),
) -> SlotPlan:
    return plan_slots(me, slot_map, sessions, silent, reachable, releasing)


def test_a_broker_is_remembered_for_a_while_after_it_was_last_seen_alive() -> None:
    lately = LatelyAlive(1000)
    first, second = session(1), replace(session(2), node_id=2)
    lately.saw([first, second], 0)
    lately.saw([first, second.ended(SessionState.DEAD)], 1000)
    assert lately.sessions(1000) == [first, second]
    assert lately.sessions(999) == [first]
    lately.saw([first], 1001)
    assert lately.sessions(2000) == [first]


def test_a_single_broker_claims_every_slot() -> None:
    assert set(planned(1, owned(0, 0, 0), live(1)).claim) == {0, 1, 2}


def test_a_broker_claims_no_more_than_its_fair_share() -> None:
    free = owned(*[0] * 10)
    claims = [set(planned(me, free, live(1, 2, 3)).claim) for me in (1, 2, 3)]
    assert [len(claim) for claim in claims] == [4, 3, 3]


def test_brokers_that_claim_at_once_prefer_different_slots() -> None:
    free = owned(*[0] * 64)
    claims = [set(planned(me, free, live(1, 2, 3, 4)).claim) for me in (1, 2, 3, 4)]
    assert all(len(claim) == 16 for claim in claims)
    assert len(set.union(*claims)) >= 56


def test_slots_of_dead_and_closed_sessions_are_claimed_and_those_of_live_ones_are_not() -> None:
    sessions = live(1, 2) | {
        3: session(3, SessionState.DEAD),
        4: session(4, SessionState.CLOSED),
        5: session(5, SessionState.LEAVING),
    }
    decided = planned(1, owned(2, 3, 4, 5, 6), sessions)
    assert set(decided.claim) == {1, 2}, "nor that of 6, whose row cannot be seen"


def test_slots_on_shards_that_cannot_be_reached_are_not_claimed() -> None:
    free = owned(0, 0, 0, shards="abc")
    assert planned(1, free, live(1), reachable="ac").claim in ((0, 2), (2, 0))
    old_rows = SlotMap((Slot(NOBODY, 1, ("b", "a")),))
    assert planned(1, old_rows, live(1), reachable="a").claim == (), "nor could the end be found"


def test_a_broker_with_too_many_slots_releases_only_as_many_as_others_lack() -> None:
    assert len(planned(1, owned(*[1] * 8), live(1, 2)).release) == 4
    assert planned(1, owned(1, 1, 2, 1), live(1, 2)).release in ((0,), (1,), (3,))
    assert planned(1, owned(1, 1, 2), live(1, 2)).release == (), "an odd one stays where it is"
    assert len(planned(1, owned(*[1] * 4, *[2] * 4), live(1, 2, 3)).release) == 1
    assert len(planned(2, owned(*[1] * 4, *[2] * 4), live(1, 2, 3)).release) == 1


def test_no_broker_releases_slots_while_free_ones_suffice() -> None:
    assert planned(1, owned(1, 1, 1, 0), live(1, 2)).release in ((0,), (1,), (2,))
    assert planned(1, owned(1, 1, 1, 0, 0), live(1, 2)).release == ()


def test_slots_that_are_already_being_released_are_released_first() -> None:
    decided = planned(1, owned(*[1] * 8), live(1, 2))
    others = tuple(sorted(set(range(8)) - set(decided.release)))
    assert planned(1, owned(*[1] * 8), live(1, 2), releasing=others).release == others


def test_a_leaving_broker_releases_every_slot_and_claims_none() -> None:
    sessions = live(2) | {1: session(1, SessionState.LEAVING)}
    assert planned(1, owned(1, 2, 1, 0), sessions) == SlotPlan(release=(0, 2))
    assert set(planned(2, owned(1, 2, 1, 0), sessions).claim) == {3}
    assert planned(2, owned(2, 2, 2, 2), sessions).release == (), "it gets nothing any more"


def test_a_slot_goes_to_a_broker_that_can_serve_it() -> None:
    sessions = {1: session(1, SessionState.LIVE, "b"), 2: session(2)}
    slots = owned(1, 1, 2, 2, shards="abab")
    assert planned(1, slots, sessions, reachable="a").release == (1,)
    alone = {1: sessions[1], 2: session(2, SessionState.LIVE, "b")}
    assert planned(1, slots, alone, reachable="a").release == (), "nobody could serve it"


def test_a_broker_that_does_not_know_a_shard_is_not_waited_for() -> None:
    knows, not_yet = session(1), replace(session(2), lanes={"a": (0,)})
    slots = owned(1, 1, 1, 0, shards="aaab")
    assert planned(1, slots, {1: knows, 2: not_yet}).claim == (3,)
    assert planned(2, slots, {1: knows, 2: not_yet}, reachable="a").claim == ()


def test_a_broker_with_its_fair_share_claims_slots_that_no_other_can_serve() -> None:
    sessions = {1: session(1, SessionState.LIVE, "b"), 2: session(2)}
    assert planned(2, owned(0, 0, 2, 2, shards="bbbb"), sessions).claim == (0, 1)
    assert planned(1, owned(0, 0, 2, 2, shards="bbbb"), sessions, reachable="a").claim == ()
    assert planned(2, owned(0, 0, 2, 2, shards="aabb"), sessions).claim == (), "1 has room"


def test_a_silent_session_is_declared_dead_but_not_the_own_or_a_dead_one() -> None:
    sessions = live(1, 2, 3) | {4: session(4, SessionState.DEAD), 5: session(5)}
    assert planned(1, owned(2, 4), sessions, silent=(1, 2, 4)).dead == (2,)
    assert planned(9, owned(2, 4), sessions, silent=(2,)) == SlotPlan(dead=(2,)), (
        "without a session"
    )


def test_an_owner_whose_row_stays_missing_is_declared_dead() -> None:
    assert planned(1, owned(7), live(1)) == SlotPlan()
    assert planned(1, owned(7), live(1), silent=(7, 8)) == SlotPlan(dead=(7,))


def test_one_broker_deletes_old_sessions_that_no_slot_refers_to() -> None:
    sessions = live(2, 3) | {
        1: session(1, SessionState.DEAD),
        4: session(4, SessionState.CLOSED),
        5: session(5, SessionState.DEAD),
    }
    slots = owned(1, 2, 3)
    assert planned(2, slots, sessions).forget == (4, 5)
    assert planned(3, slots, sessions).forget == ()


@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 6), min_size=40, max_size=40),
    st.sets(st.integers(1, 6), min_size=1),
    st.randoms(use_true_random=False),
)
def test_plans_lead_to_even_shares_in_a_few_steps_and_then_stay_empty(
    count: int, owners: list[int], alive: set[int], chance: object
) -> None:
    """Whoever acts first, on whatever it was that the last one left."""
    slots = owned(*owners[:count])
    sessions = {
        number: session(number, SessionState.LIVE if number in alive else SessionState.DEAD)
        for number in range(1, 7)
    }
    moved = 0
    for _ in range(4):
        for me in sorted(alive, key=lambda _: chance.random()):  # type: ignore[attr-defined]
            decided = planned(me, slots, sessions)
            share = -(-count // len(alive))
            assert len(slots.of(me)) + len(decided.claim) <= max(share, len(slots.of(me)))
            slots = slots.release(decided.release, me).claim(decided.claim, me)
            moved += len(decided.release)
    counts = [len(slots.of(me)) for me in alive]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    before = Counter(owners[:count])
    excess = sum(max(before[me] - count // len(alive), 0) for me in alive)
    assert moved <= excess
    assert all(planned(me, slots, sessions).claim == () for me in alive)
    assert all(planned(me, slots, sessions).release == () for me in alive)
