"""Random faults in a cluster whose slots are written to: no acknowledged record is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping

import pytest

from brokerhouse.broker.cluster.session import RenewedSession
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.slot_map import Slot
from tests.support.simulated_cluster import (
    SLOTS,
    Broker,
    Cluster,
    Server,
    move_slots,
    set_event,
    simulate,
)
from tests.support.waiting import until_async


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


class Writer(Server):
    """Writes a row to each of its slots, all the time, one block in flight for each shard."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        super().__init__()
        self.log = log
        self.chance = chance
        self.slow = 0.0
        self.goes_on = set_event()
        self.reaches = {shard: set_event() for shard in "abc"}
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

    async def serve_slots(self, session: RenewedSession, slots: Mapping[int, Slot]) -> None:
        await self._way(*{shard for slot in slots.values() for shard in slot.shards})
        ends = {number: self.log.ends[number] for number in slots}
        await self._way()
        if not self._lanes:
            self._resolved = dict.fromkeys(self._resolved, 0)
            self._lanes = [
                asyncio.create_task(self._write(session, shard)) for shard in self._resolved
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

    async def _write(self, session: RenewedSession, shard: str) -> None:
        idle = self._idle[shard] = asyncio.Event()
        while True:
            idle.set()
            await asyncio.sleep(self.chance.uniform(0.02, 0.4))
            mine = [n for n, slot in self.serving.items() if slot.writes_to == shard]
            if not mine or not session.may_serve():
                continue
            idle.clear()
            offsets = {number: self._ends[number] for number in mine}
            token = (session.session_id, shard, self._resolved[shard] + 1)
            await self.goes_on.wait()
            late_s = self.chance.uniform(0, 20) if self.chance.random() < self.slow else 0.005
            asyncio.get_running_loop().call_later(late_s, self.log.land, token, offsets)
            await self.log.tokens.setdefault(token, asyncio.Event()).wait()
            await self.reaches[shard].wait()
            await self.goes_on.wait()
            self._resolved[shard] += 1
            self._ends.update({number: offset + 1 for number, offset in offsets.items()})
            if session.may_serve():
                self.log.acknowledge(session.session_id, offsets)

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
        await broker.owner.join()

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
            await broker.owner.leave()
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
            move_slots(self.cluster, [self.chance.randrange(SLOTS)], self.chance.choice("abc"))

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


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.test_all) for seed in (2, 3))]
)
def test_no_acknowledged_record_is_lost_in_random_faults(seed: int) -> None:
    simulate(lambda cluster: live_through_faults(cluster, 120), seed=seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_no_acknowledged_record_is_lost_in_hours_of_random_faults(seed: int) -> None:
    simulate(lambda cluster: live_through_faults(cluster, 600), seed=seed)
