"""Several brokers of one cluster in one process: sessions, slots and their changes.

The registry is a dictionary whose answers can hang, fail or get lost, and whose writes can happen
later. The event loop jumps to the next timer, so minutes of a cluster take a moment, and a test has
the same result every time. The end of the file injects random faults into a cluster whose slots are
written to, and checks the acknowledged records."""

from __future__ import annotations

import asyncio
import logging
import random
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from broker.cluster.leases import BrokerReport, BrokerSession
from broker.cluster.ownership import Ownership
from broker.cluster.registry_view import RegistryView
from broker.cluster.session import NEXT_SESSION_KEY, NodeIdTaken, OwnSession, Tenure
from storage.engine import EngineError
from storage.registry import Versioned
from storage.slot_map import SLOTS_KEY, Slot, SlotMap
from tests.support.waiting import until_async

TTL_MS = 9_000
SLOTS = 8
FIRST_MAP = SlotMap.first([("a", range(4)), ("b", range(4, 8))], SLOTS)


class _Jump(selectors.SelectSelector):
    """Nothing is waited for: the clock goes on by as much."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen any more"
            self.now_s += timeout
        return ready


class VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


def simulate(scenario: Callable[[Cluster], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        cluster = Cluster(**settings)
        random.seed(settings.get("seed", 1))  # what the driver's pauses come from
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(run())


class Store:
    """What the registry holds."""

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}

    def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        if self.values.get(key) != expected:
            return False
        self.values[key] = Versioned(value, expected.version + 1 if expected else 1)
        return True

    def slot_map(self) -> SlotMap:
        return SlotMap.from_text(self.values[SLOTS_KEY].value)

    def session(self, session_id: int) -> BrokerSession | None:
        found = self.values.get(f"session/{session_id}")
        return None if found is None else BrokerSession.from_text(found.value)


class Door:
    """The way of one broker to the registry."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store = store
        self.hangs = False
        self.fails = False
        self.loses_answers_of: Callable[[str], bool] = lambda key: False
        self.writes_late_s: Callable[[str], float | None] = lambda key: None
        self.writes_slots_within_s = 0.0
        self.gate = _set_event()
        self.calls: Counter[str] = Counter()
        self._chance = chance

    async def get(self, key: str) -> Versioned | None:
        self.calls["get"] += 1
        await self._way()
        found = self.store.values.get(key)
        await self._way()
        return found

    async def list(self, prefix: str) -> dict[str, Versioned]:
        self.calls["list"] += 1
        await self._way()
        found = {key: one for key, one in self.store.values.items() if key.startswith(prefix)}
        await self._way()
        return found

    async def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        self.calls["compare_and_set"] += 1
        await self._way()
        late_s = self.writes_late_s(key)
        if late_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(late_s, self.store.compare_and_set, key, expected, value)
            raise EngineError("connection lost; the write comes later")
        if key == SLOTS_KEY:
            await asyncio.sleep(self.writes_slots_within_s)
        written = self.store.compare_and_set(key, expected, value)
        await self._way()
        if self.loses_answers_of(key):
            raise EngineError("connection lost after the write")
        return written

    async def attempt(self, key: str, expected: Versioned | None, value: str) -> None:
        self.calls["attempt"] += 1
        await self.compare_and_set(key, expected, value)

    async def delete(self, key: str, expected: Versioned) -> bool:
        await self._way()
        if self.store.values.get(key) == expected:
            del self.store.values[key]
        await self._way()
        return key not in self.store.values

    async def _way(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.0005, 0.004))
        await self.gate.wait()
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.fails:
            raise EngineError("the registry is away")


class Server:
    """A `SlotOwner` that notes what it is asked to do."""

    def __init__(self) -> None:
        self.serving: dict[int, Slot] = {}
        self.taken: list[tuple[int, int]] = []
        self.fenced: list[tuple[int, str]] = []
        self.lost_count = 0
        self.away: set[str] = set()
        self.take_hangs = self.give_up_hangs = self.fence_hangs = False
        self.refuses_to_take: set[int] = set()

    def report(self) -> BrokerReport:
        return BrokerReport(day=20_000, lanes={"a": (0,), "b": (0,)}, away=frozenset(self.away))

    def reachable_shards(self) -> set[str]:
        return {"a", "b", "c"} - self.away

    async def fence_session(self, session: BrokerSession, shard: str) -> None:
        assert session.is_over
        await _hang_if(self.fence_hangs)
        if shard in self.away:
            raise EngineError(f"{shard} is away")
        self.fenced.append((session.session_id, shard))

    async def serve_slots(self, tenure: Tenure, slots: Mapping[int, Slot]) -> None:
        await _hang_if(self.take_hangs)
        if self.refuses_to_take & slots.keys():
            raise EngineError("cannot be read")
        self.taken += [(number, slot.epoch) for number, slot in slots.items()]
        self.serving.update(slots)

    async def give_up_slots(self, slots: Collection[int]) -> None:
        await _hang_if(self.give_up_hangs)
        for number in slots:
            self.serving.pop(number, None)

    def abandon_slots(self) -> None:
        self.lost_count += 1
        self.serving.clear()


async def _hang_if(hangs: bool) -> None:
    if hangs:
        await asyncio.get_running_loop().create_future()


@dataclass
class Broker:
    node_id: int
    door: Door
    server: Server
    session: OwnSession
    ownership: Ownership

    async def kill(self) -> None:
        """As kill -9: nothing is released, nothing more is written."""
        self.door.hangs = True
        for task in self.ownership.background:
            task.cancel()
            await asyncio.wait([task])


class Cluster:
    def __init__(self, seed: int = 1, first_map: SlotMap = FIRST_MAP) -> None:
        self.chance = random.Random(seed)
        self.store = Store()
        self.brokers: list[Broker] = []
        self.first_map = first_map
        self.first_session_id = 1

    def broker(self, node_id: int, server: Server | None = None, rate: float = 1.0) -> Broker:
        """`rate`: how fast its clock goes."""
        door = Door(self.store, self.chance)
        server = Server() if server is None else server
        view = RegistryView(
            door,
            self.first_map,
            TTL_MS,
            clock_ms=lambda: int(asyncio.get_running_loop().time() * 1000 * rate),
        )
        identity = BrokerSession(0, node_id, "localhost", 9092 + node_id, None, TTL_MS)
        session = OwnSession(view, identity, self.first_session_id)
        broker = Broker(node_id, door, server, session, Ownership(view, session, server))
        self.brokers.append(broker)
        return broker

    async def start(self, *node_ids: int) -> list[Broker]:
        brokers = [self.broker(node_id) for node_id in node_ids]
        await asyncio.gather(*(broker.ownership.join() for broker in brokers))
        return brokers

    async def stop(self) -> None:
        for broker in self.brokers:
            for task in broker.ownership.background:
                task.cancel()
                await asyncio.wait([task])

    def all_served(self, *brokers: Broker) -> bool:
        served = [number for broker in brokers for number in broker.server.serving]
        return sorted(served) == list(range(SLOTS))


def test_the_first_broker_makes_the_map_and_serves_every_slot() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one), limit_s=1)
        assert {slot.epoch for slot in cluster.store.slot_map().slots} == {1}

    simulate(scenario)


def test_ids_of_sessions_begin_where_told_when_the_registry_is_empty_and_go_on_from_there() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.first_session_id = 7_000
        (one,) = await cluster.start(1)
        cluster.first_session_id = 9_000
        (two,) = await cluster.start(2)
        assert (one.ownership.session_id, two.ownership.session_id) == (7_000, 7_001)

    simulate(scenario)


def test_who_joins_gets_a_fair_share_and_nothing_else_moves() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        (two,) = await cluster.start(2)
        await until_async(lambda: len(two.server.serving) == 4 and cluster.all_served(one, two))
        (three,) = await cluster.start(3)
        await until_async(
            lambda: cluster.all_served(one, two, three) and len(three.server.serving) == 2
        )
        assert [len(one.server.serving), len(two.server.serving)] == [3, 3]
        epochs = [slot.epoch for slot in cluster.store.slot_map().slots]
        await asyncio.sleep(60)
        assert [slot.epoch for slot in cluster.store.slot_map().slots] == epochs

    simulate(scenario)


def test_the_slots_of_a_killed_broker_are_fenced_before_they_are_taken_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        await asyncio.sleep(5)
        dead, writes_to = one.ownership.session_id, _shards_of(one)
        assert one.session.tenure is not None
        lease = one.session.tenure.lease
        await one.kill()
        took_s = await until_async(lambda: cluster.all_served(two))
        assert not lease.valid(int(asyncio.get_running_loop().time() * 1000))
        assert took_s * 1000 <= TTL_MS * 1.05 + 1_000
        assert set(two.server.fenced) == {(dead, shard) for shard in writes_to}
        await until_async(lambda: cluster.store.session(dead) is None)

    simulate(scenario)


def _shards_of(broker: Broker) -> set[str]:
    return {slot.writes_to for slot in broker.server.serving.values()}


def test_who_leaves_hands_over_at_once_and_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        loop = asyncio.get_running_loop()
        began, left = loop.time(), one.ownership.session_id
        await one.ownership.leave()
        assert loop.time() - began < 2
        await until_async(lambda: cluster.all_served(two), limit_s=0.1)
        assert two.server.fenced == []
        assert one.server.lost_count == 0
        assert cluster.store.session(left) is None

    simulate(scenario)


def test_a_lease_ends_by_the_clock_while_the_registry_hangs_and_a_new_session_follows() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        first = one.ownership.session_id
        of_the_first = one.session.tenure
        assert of_the_first is not None
        one.door.hangs = True
        took_s = await until_async(lambda: not one.ownership.may_serve())
        assert TTL_MS * 5 / 6 - 100 <= took_s * 1000 <= TTL_MS
        await until_async(lambda: one.server.lost_count == 1, limit_s=0.05)
        assert one.ownership.session_id == 0
        one.door.hangs = False
        back_s = await until_async(lambda: cluster.all_served(one))
        assert back_s < TTL_MS / 1000 / 2, "it knows itself that its old session is over"
        assert one.ownership.session_id > first
        assert one.ownership.may_serve()
        assert not of_the_first.may_serve()
        assert set(one.server.fenced) == {(first, "a"), (first, "b")}

    simulate(scenario)


def test_a_registry_that_is_away_for_less_than_the_lease_is_not_noticed() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        epochs = cluster.store.slot_map().slots
        for broker in (one, two):
            broker.door.fails = True
        await asyncio.sleep(TTL_MS / 1000 * 0.6)
        assert cluster.all_served(one, two)
        assert one.ownership.may_serve()
        for broker in (one, two):
            broker.door.fails = False
        await asyncio.sleep(30)
        assert cluster.store.slot_map().slots == epochs
        assert one.server.lost_count == two.server.lost_count == 0

    simulate(scenario)


def test_lost_answers_do_not_matter() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [cluster.broker(node_id) for node_id in (1, 2, 3)]
        for broker in brokers:
            broker.door.loses_answers_of = lambda key: key != NEXT_SESSION_KEY
        await asyncio.gather(*(broker.ownership.join() for broker in brokers))
        await until_async(lambda: cluster.all_served(*brokers))
        await until_async(lambda: all(len(broker.server.serving) >= 2 for broker in brokers))
        await asyncio.sleep(120)
        assert [broker.server.lost_count for broker in brokers] == [0, 0, 0]
        assert all(broker.ownership.may_serve() for broker in brokers)
        await brokers[0].ownership.leave()
        await until_async(lambda: cluster.all_served(*brokers[1:]), limit_s=1)
        assert brokers[1].server.fenced == brokers[2].server.fenced == []

    simulate(scenario)


def test_a_renewal_that_comes_true_late_counts_from_when_it_was_sent() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        loop = asyncio.get_running_loop()
        before = cluster.store.session(1)
        assert before is not None
        one.door.writes_late_s = lambda key: 4.0
        await until_async(lambda: cluster.store.session(1) != before)
        late_at = loop.time()
        one.door.hangs = True
        await until_async(lambda: not one.ownership.may_serve())
        # Sent 4 s before it came true, and its answer was never seen: the one before it counts.
        assert loop.time() - late_at < TTL_MS / 1000 - 4

    simulate(scenario)


def test_a_slot_that_was_given_up_is_not_served_again_under_the_same_epoch() -> None:
    """The release is on its way when who joined dies: it may come true at any time."""

    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        one.door.writes_late_s = lambda key: 20.0 if key == SLOTS_KEY else None
        (two,) = await cluster.start(2)
        await until_async(lambda: len(one.server.serving) == 4)
        await two.kill()
        await asyncio.sleep(15)
        one.door.writes_late_s = lambda key: None
        await until_async(lambda: cluster.all_served(one))
        assert len(one.server.taken) == len(set(one.server.taken)), "an epoch was taken twice"
        epochs = {number: slot.epoch for number, slot in one.server.serving.items()}
        await asyncio.sleep(60)
        slots = cluster.store.slot_map().slots
        assert {number: slot.epoch for number, slot in enumerate(slots)} == epochs
        assert one.server.lost_count == 0

    simulate(scenario)


def test_renewals_do_not_wait_for_a_slot_that_is_slow_to_be_taken() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = cluster.broker(1)
        one.server.take_hangs = True
        await one.ownership.join()
        await asyncio.sleep(60)
        assert one.ownership.may_serve()
        assert one.ownership.session_id == 1
        assert one.server.lost_count == 0

    simulate(scenario)


def test_slots_that_cannot_be_read_are_tried_again_and_others_do_not_wait() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = cluster.broker(1)
        one.server.refuses_to_take = {5}
        await one.ownership.join()
        await until_async(lambda: set(one.server.serving) == {0, 1, 2, 3})
        await asyncio.sleep(10)
        one.server.refuses_to_take = set()
        await until_async(lambda: cluster.all_served(one), limit_s=2)
        assert {slot.epoch for slot in cluster.store.slot_map().slots} == {1}

    simulate(scenario)


def test_a_shard_that_cannot_be_reached_keeps_its_slots_without_a_leader_until_it_is_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        dead, stuck = one.ownership.session_id, {4, 5, 6, 7} & one.server.serving.keys()
        two.server.away = {"b"}
        await one.kill()
        await until_async(lambda: {0, 1, 2, 3} <= two.server.serving.keys())
        await asyncio.sleep(30)
        assert two.server.fenced == [(dead, "a")]
        slots = cluster.store.slot_map().slots
        assert {slots[number].owner for number in stuck} == {dead}
        two.server.away = set()
        await until_async(lambda: cluster.all_served(two), limit_s=3)

    simulate(scenario)


def test_slots_go_to_a_broker_that_reaches_their_shard_and_come_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two) and len(one.server.serving) == 4)
        one.server.away = {"b"}
        await until_async(lambda: {4, 5, 6, 7} <= two.server.serving.keys())
        await until_async(lambda: cluster.all_served(one, two))
        await asyncio.sleep(10)
        assert len(one.server.serving) == 4, "what it can reach is shared as before"
        one.server.away = set()
        await asyncio.sleep(10)
        assert cluster.all_served(one, two)
        assert len(one.server.serving) == 4

    simulate(scenario)


def test_a_broker_that_was_killed_and_started_again_waits_for_its_old_session_to_end() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        await one.kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        (again,) = await cluster.start(1)
        assert TTL_MS <= (loop.time() - began) * 1000 <= TTL_MS * 1.05 + 500
        await until_async(lambda: cluster.all_served(again))
        assert set(again.server.fenced) == {(1, "a"), (1, "b")}

    simulate(scenario)


def test_a_broker_whose_node_id_is_used_by_another_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        twin = cluster.broker(1)
        with pytest.raises(NodeIdTaken, match="node id 1 is used by the broker at localhost:9093"):
            await twin.ownership.join()
        await until_async(lambda: cluster.all_served(one))
        assert one.ownership.session_id == 1
        assert one.server.lost_count == 0

    simulate(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_of_two_that_start_at_once_with_one_node_id_one_is_refused(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        twins = [cluster.broker(1), cluster.broker(1)]
        starts = [asyncio.create_task(twin.ownership.join()) for twin in twins]
        await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
        assert [start.done() and start.exception() is not None for start in starts].count(True) == 1
        await until_async(lambda: any(cluster.all_served(twin) for twin in twins))

    simulate(scenario, seed=seed)


def test_a_broker_that_starts_before_its_older_self_has_left_waits_for_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        one.server.give_up_hangs = True
        leaving = asyncio.create_task(one.ownership.leave())
        await until_async(lambda: cluster.store.session(one.ownership.session_id) is not None)
        again = cluster.broker(1)
        await asyncio.gather(leaving, again.ownership.join())
        await until_async(lambda: cluster.all_served(two, again))

    simulate(scenario)


def test_a_moved_slot_is_given_up_and_taken_anew_with_its_new_shard() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        _move(cluster, [2, 3], "c")
        await until_async(lambda: cluster.all_served(one) and one.server.serving[2].epoch == 2)
        assert one.server.serving[2] == Slot(1, 2, ("a", "c"))
        assert cluster.store.slot_map().slots[1].epoch == 1
        assert one.server.lost_count == 0

    simulate(scenario)


def _move(cluster: Cluster, numbers: list[int], shard: str) -> None:
    store = cluster.store
    moved = store.slot_map().move(numbers, shard).to_text()
    assert store.compare_and_set(SLOTS_KEY, store.values[SLOTS_KEY], moved)


def test_a_slot_whose_owner_died_before_it_took_notice_of_a_move_is_fenced_where_it_wrote() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        await one.kill()
        _move(cluster, [0, 1, 2, 3], "c")
        (two,) = await cluster.start(2)
        await until_async(lambda: cluster.all_served(two))
        assert set(two.server.fenced) == {(1, "a"), (1, "b")}
        assert two.server.serving[0] == Slot(2, 2, ("a", "c"))

    simulate(scenario)


def test_who_cannot_hand_over_in_time_leaves_a_session_that_is_declared_dead() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        one.server.give_up_hangs = True
        left = one.ownership.session_id
        loop = asyncio.get_running_loop()
        began = loop.time()
        await one.ownership.leave()
        assert (loop.time() - began) * 1000 == pytest.approx(TTL_MS, abs=500)
        assert one.server.lost_count == 1
        assert not one.ownership.may_serve()
        await until_async(lambda: cluster.all_served(two))
        assert {session_id for session_id, _ in two.server.fenced} == {left}

    simulate(scenario)


@pytest.mark.parametrize("after_ms", range(0, 600, 40))
def test_who_leaves_while_it_claims_leaves_no_slot_to_a_session_that_is_gone(after_ms: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        leaving = asyncio.create_task(one.ownership.leave())
        three = cluster.broker(3)
        three.door.writes_slots_within_s = 0.2
        await three.ownership.join()
        await asyncio.sleep(after_ms / 1000)
        await three.ownership.leave()
        await leaving
        await asyncio.sleep(1)
        owners = {slot.owner for slot in cluster.store.slot_map().slots}
        assert owners == {two.ownership.session_id}

    simulate(scenario, seed=after_ms)


def test_who_leaves_while_the_registry_is_away_is_done_when_its_lease_is() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        one.door.hangs = True
        await one.ownership.leave()
        assert one.server.lost_count == 1

    simulate(scenario)


def test_an_owner_whose_row_is_gone_is_fenced_too() -> None:
    """Nothing in the cluster removes the row of an owner; somebody at the registry did."""

    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        gone = one.ownership.session_id
        await one.kill()
        del cluster.store.values[f"session/{gone}"]
        await until_async(lambda: cluster.all_served(two))
        assert {session_id for session_id, _ in two.server.fenced} == {gone}

    simulate(scenario)


def test_text_that_no_broker_wrote_stops_decisions_and_not_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        cluster.store.values["session/9"] = Versioned("{}", 1)
        await asyncio.sleep(30)
        assert one.ownership.may_serve()
        assert "no slot can change hands" in caplog.text
        del cluster.store.values["session/9"]
        (two,) = await cluster.start(2)
        await until_async(lambda: len(two.server.serving) == 4)

    simulate(scenario)


def test_a_defect_in_serving_ends_the_task_loudly_and_the_session() -> None:
    class Defective(Server):
        async def serve_slots(self, tenure: Tenure, slots: Mapping[int, Slot]) -> None:
            raise ZeroDivisionError("a defect")

    async def scenario(cluster: Cluster) -> None:
        broker = cluster.broker(1, Defective())
        await broker.ownership.join()
        (task,) = broker.ownership.background
        await asyncio.wait([task], timeout=10)
        assert isinstance(task.exception(), ZeroDivisionError)
        assert not broker.ownership.may_serve()
        assert broker.server.lost_count == 1

    simulate(scenario)


def test_what_others_have_changed_is_seen() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = cluster.broker(1)

        def seen() -> tuple[int, set[int]]:
            return one.ownership.session_id, set(one.ownership.sessions)

        await one.ownership.join()
        assert seen() == (1, {1})
        await until_async(lambda: cluster.all_served(one))
        (two,) = await cluster.start(2)
        await until_async(lambda: seen() == (1, {1, 2}))
        assert one.ownership.slot_map is not None
        await until_async(lambda: one.ownership.slot_map == cluster.store.slot_map())
        await two.ownership.leave()
        await until_async(lambda: seen() == (1, {1}))

    simulate(scenario)


def test_ten_minutes_of_a_quiet_cluster_logs_nothing_and_moves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = await cluster.start(1, 2, 3)
        await until_async(lambda: cluster.all_served(*brokers))
        await asyncio.sleep(30)
        with caplog.at_level(logging.DEBUG, "broker.cluster"):
            caplog.clear()
            slots = cluster.store.slot_map()
            await asyncio.sleep(600)
            assert cluster.store.slot_map() == slots
            assert [one for one in caplog.records if one.name.startswith("broker.cluster")] == []

    simulate(scenario)


def test_a_quiet_cluster_asks_the_registry_little() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = await cluster.start(1, 2, 3)
        await until_async(lambda: cluster.all_served(*brokers))
        await asyncio.sleep(30)
        for broker in brokers:
            broker.door.calls.clear()
        await asyncio.sleep(60)
        for broker in brokers:
            # A renewal every 1.5 s, and what it reads.
            assert broker.door.calls["attempt"] <= 42
            assert broker.door.calls["list"] <= 42
            assert broker.door.calls["get"] == 0

    simulate(scenario)


def test_who_leaves_a_quiet_cluster_leaves_no_slot_unserved_for_long() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        await asyncio.sleep(30)
        leaving = asyncio.create_task(one.ownership.leave())
        unserved_s = dict.fromkeys(range(SLOTS), 0.0)
        while not leaving.done():
            await asyncio.sleep(0.01)
            for number in unserved_s.keys() - one.server.serving.keys() - two.server.serving.keys():
                unserved_s[number] += 0.01
        assert cluster.all_served(two)
        assert max(unserved_s.values()) < 0.4

    simulate(scenario)


# Faults at random


class Log:
    """The rows of all shards, and the tokens that they have seen."""

    def __init__(self) -> None:
        self.ends = [0] * SLOTS
        self.rows: dict[tuple[int, int], int] = {}
        """By slot and offset, the session that wrote it."""
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.tokens: dict[tuple[int, str, int], asyncio.Event] = {}
        self.wrong: list[str] = []

    def land(self, token: tuple[int, str, int], offsets: Mapping[int, int]) -> None:
        known = self.tokens.setdefault(token, asyncio.Event())
        if known.is_set():
            return
        known.set()
        for slot, offset in offsets.items():
            if offset != self.ends[slot]:
                self.wrong.append(f"{token} lands at {offset} of slot {slot}: {self.ends[slot]}")
            self.ends[slot] = max(self.ends[slot], offset + 1)
            self.rows.setdefault((slot, offset), token[0])

    def is_used(self, token: tuple[int, str, int]) -> bool:
        return token in self.tokens and self.tokens[token].is_set()

    def acknowledge(self, session_id: int, offsets: Mapping[int, int]) -> None:
        for slot, offset in offsets.items():
            place = (slot, offset)
            if self.acknowledged.setdefault(place, session_id) != session_id:
                self.wrong.append(f"{place} is acknowledged twice")
            if self.rows.get(place) != session_id:
                self.wrong.append(f"{place} is acknowledged by {session_id} and not its row")


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class Writer(Server):
    """Writes a row to each of its slots, all the time, one block in flight for each shard."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        super().__init__()
        self.log = log
        self.chance = chance
        self.slow = 0.0
        self.goes_on = _set_event()
        self.reaches = {shard: _set_event() for shard in "abc"}
        self._ends: dict[int, int] = {}
        self._resolved = {"a": 0, "b": 0, "c": 0}
        self._idle = {shard: asyncio.Event() for shard in self._resolved}
        self._lanes: list[asyncio.Task[None]] = []

    def report(self) -> BrokerReport:
        lanes = {shard: (count,) for shard, count in self._resolved.items()}
        return BrokerReport(day=20_000, lanes=lanes, away=frozenset(self.away))

    async def fence_session(self, session: BrokerSession, shard: str) -> None:
        number = session.lanes[shard][0] + 1
        while True:
            await self._way(shard)
            token = (session.session_id, shard, number)
            if not self.log.is_used(token):
                self.log.land(token, {})
                return
            number += 1

    async def serve_slots(self, tenure: Tenure, slots: Mapping[int, Slot]) -> None:
        await self._way(*{shard for slot in slots.values() for shard in slot.shards})
        ends = {number: self.log.ends[number] for number in slots}
        await self._way()
        if not self._lanes:
            self._resolved = dict.fromkeys(self._resolved, 0)
            self._lanes = [
                asyncio.create_task(self._write(tenure, shard)) for shard in self._resolved
            ]
        self._ends.update(ends)
        self.serving.update(slots)

    async def give_up_slots(self, slots: Collection[int]) -> None:
        shards = {self.serving[number].writes_to for number in slots if number in self.serving}
        for number in slots:
            self.serving.pop(number, None)
        for shard in shards:
            await self._idle[shard].wait()

    def abandon_slots(self) -> None:
        super().abandon_slots()
        for lane in self._lanes:
            lane.cancel()
        self._lanes = []
        self._resolved = dict.fromkeys(self._resolved, 0)

    async def _write(self, tenure: Tenure, shard: str) -> None:
        idle = self._idle[shard] = asyncio.Event()
        while True:
            idle.set()
            await asyncio.sleep(self.chance.uniform(0.02, 0.4))
            mine = [n for n, slot in self.serving.items() if slot.writes_to == shard]
            if not mine or not tenure.may_serve():
                continue
            idle.clear()
            offsets = {number: self._ends[number] for number in mine}
            token = (tenure.session_id, shard, self._resolved[shard] + 1)
            await self.goes_on.wait()
            late_s = self.chance.uniform(0, 20) if self.chance.random() < self.slow else 0.005
            asyncio.get_running_loop().call_later(late_s, self.log.land, token, offsets)
            await self.log.tokens.setdefault(token, asyncio.Event()).wait()
            await self.reaches[shard].wait()
            await self.goes_on.wait()
            self._resolved[shard] += 1
            self._ends.update({number: offset + 1 for number, offset in offsets.items()})
            if tenure.may_serve():
                self.log.acknowledge(tenure.session_id, offsets)

    async def _way(self, *shards: str) -> None:
        await asyncio.sleep(self.chance.uniform(0.001, 0.05))
        await self.goes_on.wait()
        if self.away & set(shards):
            raise EngineError("away")


class Chaos:
    """Brokers that are killed, paused, cut off and started again, each by its own clock."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.chance = cluster.chance
        self.log = Log()
        self.running: dict[int, Broker] = {}
        self.busy: set[int] = set()

    async def start(self, node_id: int) -> None:
        writer = Writer(self.log, self.chance)
        broker = self.cluster.broker(node_id, writer, rate=self.chance.uniform(0.98, 1.02))
        self.running[node_id] = broker
        broker.door.gate = writer.goes_on
        await broker.ownership.join()

    async def one_fault(self, node_id: int) -> None:
        broker = self.running[node_id]
        door, writer = broker.door, broker.server
        assert isinstance(writer, Writer)
        for_s = self.chance.choice((0.5, 3, 8, 12, 20))
        fault = self.chance.choice(
            ("kill", "leave", "pause", "hang", "fail", "lose", "late", "away", "slow", "move")
        )
        if fault == "kill":
            await broker.kill()
            writer.abandon_slots()
            await self.start(node_id)
        elif fault == "leave":
            await broker.ownership.leave()
            await self.start(node_id)
        elif fault == "pause":
            writer.goes_on.clear()
            await asyncio.sleep(for_s)
            writer.goes_on.set()
        elif fault == "hang" or fault == "fail":
            setattr(door, f"{fault}s", True)
            await asyncio.sleep(for_s)
            setattr(door, f"{fault}s", False)
        elif fault == "lose":
            door.loses_answers_of = lambda key: self.chance.random() < 0.5
            await asyncio.sleep(for_s)
            door.loses_answers_of = lambda key: False
        elif fault == "late":
            door.writes_late_s = lambda key: (
                self.chance.uniform(0, 15) if self.chance.random() < 0.5 else None
            )
            await asyncio.sleep(for_s)
            door.writes_late_s = lambda key: None
        elif fault == "away":
            shard = self.chance.choice("abc")
            writer.away = {shard}
            writer.reaches[shard].clear()
            await asyncio.sleep(for_s)
            writer.away = set()
            writer.reaches[shard].set()
        elif fault == "slow":
            writer.slow = 0.3
            await asyncio.sleep(for_s)
            writer.slow = 0.0
        else:
            _move(self.cluster, [self.chance.randrange(SLOTS)], self.chance.choice("abc"))

    async def faults(self, for_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        while loop.time() < until_s:
            node_id = self.chance.choice(sorted(self.running.keys() - self.busy))
            self.busy.add(node_id)
            await self.one_fault(node_id)
            self.busy.remove(node_id)
            await asyncio.sleep(self.chance.uniform(0, 4))


async def live_through_faults(cluster: Cluster, for_s: float) -> None:
    chaos = Chaos(cluster)
    await asyncio.gather(*(chaos.start(node_id) for node_id in (1, 2, 3)))
    await asyncio.gather(*(chaos.faults(for_s) for _ in range(2)))
    brokers = list(chaos.running.values())
    await until_async(lambda: cluster.all_served(*brokers), limit_s=120)
    before = list(chaos.log.ends)
    await until_async(
        lambda: all(now > then for now, then in zip(chaos.log.ends, before, strict=True)),
        limit_s=60,
    )
    assert chaos.log.wrong == []
    assert len(chaos.log.acknowledged) > 10 * SLOTS
    for broker in brokers:
        broker.server.abandon_slots()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_was_acknowledged_is_lost_whatever_fails(seed: int) -> None:
    simulate(lambda cluster: live_through_faults(cluster, 120), seed=seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_nothing_that_was_acknowledged_is_lost_in_a_long_time(seed: int) -> None:
    simulate(lambda cluster: live_through_faults(cluster, 600), seed=seed)
