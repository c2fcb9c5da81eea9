"""Sessions and slots of several brokers: who owns what, and when that changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from brokerhouse.broker.cluster.session import NEXT_SESSION_KEY, NodeIdTaken, RenewedSession
from brokerhouse.storage.registry import Versioned
from brokerhouse.storage.slot_map import SLOTS_KEY, Slot
from tests.support.simulated_cluster import (
    SLOTS,
    TTL_MS,
    Broker,
    Cluster,
    Server,
    move_slots,
    simulate,
)
from tests.support.waiting import until_async


def test_the_first_broker_makes_the_map_and_serves_every_slot() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one), limit_s=1)
        assert {slot.epoch for slot in cluster.store.slot_map().slots} == {1}

    simulate(scenario)


def test_session_ids_begin_at_the_given_number_in_an_empty_registry_and_continue_from_there() -> (
    None
):
    async def scenario(cluster: Cluster) -> None:
        cluster.first_session_id = 7_000
        (one,) = await cluster.start(1)
        cluster.first_session_id = 9_000
        (two,) = await cluster.start(2)
        assert (one.owner.session_id, two.owner.session_id) == (7_000, 7_001)

    simulate(scenario)


def test_a_joining_broker_gets_its_fair_share_and_no_other_slots_move() -> None:
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
        dead, writes_to = one.owner.session_id, _shards_of(one)
        assert one.session.current is not None
        lease = one.session.current.lease
        await one.kill()
        took_s = await until_async(lambda: cluster.all_served(two))
        assert not lease.valid(int(asyncio.get_running_loop().time() * 1000))
        assert took_s * 1000 <= TTL_MS * 1.05 + 1_000
        assert set(two.server.fenced) == {(dead, shard) for shard in writes_to}
        await until_async(lambda: cluster.store.session(dead) is None)

    simulate(scenario)


def _shards_of(broker: Broker) -> set[str]:
    return {slot.writes_to for slot in broker.server.serving.values()}


def test_a_leaving_broker_hands_over_its_slots_at_once_and_removes_its_session() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        loop = asyncio.get_running_loop()
        began, left = loop.time(), one.owner.session_id
        await one.owner.leave()
        assert loop.time() - began < 2
        await until_async(lambda: cluster.all_served(two), limit_s=0.1)
        assert two.server.fenced == []
        assert one.server.lost_count == 0
        assert cluster.store.session(left) is None

    simulate(scenario)


def test_a_lease_ends_on_time_while_the_registry_hangs_and_a_new_session_follows() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        first = one.owner.session_id
        of_the_first = one.session.current
        assert of_the_first is not None
        one.door.hangs = True
        took_s = await until_async(lambda: not one.owner.may_serve())
        assert TTL_MS * 5 / 6 - 100 <= took_s * 1000 <= TTL_MS
        await until_async(lambda: one.server.lost_count == 1, limit_s=0.05)
        assert one.owner.session_id == 0
        one.door.hangs = False
        back_s = await until_async(lambda: cluster.all_served(one))
        assert back_s < TTL_MS / 1000 / 2, "it knows itself that its old session is over"
        assert one.owner.session_id > first
        assert one.owner.may_serve()
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
        assert one.owner.may_serve()
        for broker in (one, two):
            broker.door.fails = False
        await asyncio.sleep(30)
        assert cluster.store.slot_map().slots == epochs
        assert one.server.lost_count == two.server.lost_count == 0

    simulate(scenario)


def test_lost_answers_of_the_registry_do_no_harm() -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = [cluster.broker(node_id) for node_id in (1, 2, 3)]
        for broker in brokers:
            broker.door.loses_answers_of = lambda key: key != NEXT_SESSION_KEY
        await asyncio.gather(*(broker.owner.join() for broker in brokers))
        await until_async(lambda: cluster.all_served(*brokers))
        await until_async(lambda: all(len(broker.server.serving) >= 2 for broker in brokers))
        await asyncio.sleep(120)
        assert [broker.server.lost_count for broker in brokers] == [0, 0, 0]
        assert all(broker.owner.may_serve() for broker in brokers)
        await brokers[0].owner.leave()
        await until_async(lambda: cluster.all_served(*brokers[1:]), limit_s=1)
        assert brokers[1].server.fenced == brokers[2].server.fenced == []

    simulate(scenario)


def test_a_late_renewal_counts_from_when_it_was_sent() -> None:
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
        await until_async(lambda: not one.owner.may_serve())
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
        await one.owner.join()
        await asyncio.sleep(60)
        assert one.owner.may_serve()
        assert one.owner.session_id == 1
        assert one.server.lost_count == 0

    simulate(scenario)


def test_slots_that_cannot_be_read_are_retried_and_do_not_delay_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = cluster.broker(1)
        one.server.refuses_to_take = {5}
        await one.owner.join()
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
        dead, stuck = one.owner.session_id, {4, 5, 6, 7} & one.server.serving.keys()
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
            await twin.owner.join()
        await until_async(lambda: cluster.all_served(one))
        assert one.owner.session_id == 1
        assert one.server.lost_count == 0

    simulate(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_one_of_two_brokers_that_start_at_once_with_one_node_id_is_refused(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        twins = [cluster.broker(1), cluster.broker(1)]
        starts = [asyncio.create_task(twin.owner.join()) for twin in twins]
        await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
        assert [start.done() and start.exception() is not None for start in starts].count(True) == 1
        await until_async(lambda: any(cluster.all_served(twin) for twin in twins))

    simulate(scenario, seed=seed)


def test_a_restarted_broker_waits_until_its_previous_process_has_left() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        one.server.give_up_hangs = True
        leaving = asyncio.create_task(one.owner.leave())
        await until_async(lambda: cluster.store.session(one.owner.session_id) is not None)
        again = cluster.broker(1)
        await asyncio.gather(leaving, again.owner.join())
        await until_async(lambda: cluster.all_served(two, again))

    simulate(scenario)


def test_a_moved_slot_is_given_up_and_taken_anew_with_its_new_shard() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        move_slots(cluster, [2, 3], "c")
        await until_async(lambda: cluster.all_served(one) and one.server.serving[2].epoch == 2)
        assert one.server.serving[2] == Slot(1, 2, ("a", "c"))
        assert cluster.store.slot_map().slots[1].epoch == 1
        assert one.server.lost_count == 0

    simulate(scenario)


def test_a_slot_whose_owner_died_before_it_saw_a_move_is_fenced_where_it_wrote() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        await one.kill()
        move_slots(cluster, [0, 1, 2, 3], "c")
        (two,) = await cluster.start(2)
        await until_async(lambda: cluster.all_served(two))
        assert set(two.server.fenced) == {(1, "a"), (1, "b")}
        assert two.server.serving[0] == Slot(2, 2, ("a", "c"))

    simulate(scenario)


def test_a_broker_that_cannot_hand_over_in_time_leaves_a_session_that_is_declared_dead() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        one.server.give_up_hangs = True
        left = one.owner.session_id
        loop = asyncio.get_running_loop()
        began = loop.time()
        await one.owner.leave()
        assert (loop.time() - began) * 1000 == pytest.approx(TTL_MS, abs=500)
        assert one.server.lost_count == 1
        assert not one.owner.may_serve()
        await until_async(lambda: cluster.all_served(two))
        assert {session_id for session_id, _ in two.server.fenced} == {left}

    simulate(scenario)


@pytest.mark.parametrize("after_ms", range(0, 600, 40))
def test_a_broker_that_leaves_while_it_claims_owns_no_slot_afterwards(after_ms: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        leaving = asyncio.create_task(one.owner.leave())
        three = cluster.broker(3)
        three.door.writes_slots_within_s = 0.2
        await three.owner.join()
        await asyncio.sleep(after_ms / 1000)
        await three.owner.leave()
        await leaving
        await asyncio.sleep(1)
        owners = {slot.owner for slot in cluster.store.slot_map().slots}
        assert owners == {two.owner.session_id}

    simulate(scenario, seed=after_ms)


def test_a_broker_that_leaves_while_the_registry_is_away_ends_with_its_lease() -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        one.door.hangs = True
        await one.owner.leave()
        assert one.server.lost_count == 1

    simulate(scenario)


def test_an_owner_whose_row_is_missing_is_fenced_too() -> None:
    """Nothing in the cluster removes the row of an owner; somebody at the registry did."""

    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        gone = one.owner.session_id
        await one.kill()
        del cluster.store.values[f"session/{gone}"]
        await until_async(lambda: cluster.all_served(two))
        assert {session_id for session_id, _ in two.server.fenced} == {gone}

    simulate(scenario)


def test_malformed_rows_of_the_registry_stop_decisions_and_not_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        (one,) = await cluster.start(1)
        await until_async(lambda: cluster.all_served(one))
        cluster.store.values["session/9"] = Versioned("{}", 1)
        await asyncio.sleep(30)
        assert one.owner.may_serve()
        assert "no slot can change its owner" in caplog.text
        del cluster.store.values["session/9"]
        (two,) = await cluster.start(2)
        await until_async(lambda: len(two.server.serving) == 4)

    simulate(scenario)


def test_an_unexpected_error_in_serving_ends_the_task_and_the_session() -> None:
    class Defective(Server):
        async def serve_slots(self, session: RenewedSession, slots: Mapping[int, Slot]) -> None:
            raise ZeroDivisionError("a defect")

    async def scenario(cluster: Cluster) -> None:
        broker = cluster.broker(1, Defective())
        await broker.owner.join()
        (task,) = broker.owner.background
        await asyncio.wait([task], timeout=10)
        assert isinstance(task.exception(), ZeroDivisionError)
        assert not broker.owner.may_serve()
        assert broker.server.lost_count == 1

    simulate(scenario)


def test_changes_by_other_brokers_are_seen() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = cluster.broker(1)

        def seen() -> tuple[int, set[int]]:
            return one.owner.session_id, set(one.owner.sessions)

        await one.owner.join()
        assert seen() == (1, {1})
        await until_async(lambda: cluster.all_served(one))
        (two,) = await cluster.start(2)
        await until_async(lambda: seen() == (1, {1, 2}))
        assert one.owner.slot_map is not None
        await until_async(lambda: one.owner.slot_map == cluster.store.slot_map())
        await two.owner.leave()
        await until_async(lambda: seen() == (1, {1}))

    simulate(scenario)


def test_ten_minutes_of_a_quiet_cluster_logs_nothing_and_moves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = await cluster.start(1, 2, 3)
        await until_async(lambda: cluster.all_served(*brokers))
        await asyncio.sleep(30)
        with caplog.at_level(logging.DEBUG, "brokerhouse.broker.cluster"):
            caplog.clear()
            slots = cluster.store.slot_map()
            await asyncio.sleep(600)
            assert cluster.store.slot_map() == slots
            assert [
                one for one in caplog.records if one.name.startswith("brokerhouse.broker.cluster")
            ] == []

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
            # A renewal every 1.4 s, and what it reads.
            assert broker.door.calls["attempt"] <= 44
            assert broker.door.calls["list"] <= 44
            assert broker.door.calls["get"] == 0

    simulate(scenario)


def test_slots_of_a_broker_that_leaves_a_quiet_cluster_are_soon_served() -> None:
    async def scenario(cluster: Cluster) -> None:
        one, two = await cluster.start(1, 2)
        await until_async(lambda: cluster.all_served(one, two))
        await asyncio.sleep(30)
        leaving = asyncio.create_task(one.owner.leave())
        unserved_s = dict.fromkeys(range(SLOTS), 0.0)
        while not leaving.done():
            await asyncio.sleep(0.01)
            for number in unserved_s.keys() - one.server.serving.keys() - two.server.serving.keys():
                unserved_s[number] += 0.01
        assert cluster.all_served(two)
        assert max(unserved_s.values()) < 0.4

    simulate(scenario)


# Faults at random
