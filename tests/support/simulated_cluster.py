"""Several brokers of one cluster in one process: sessions, slots and their changes.

The registry is a dictionary whose answers can hang, fail or get lost, and whose writes can happen
later. The event loop jumps to the next timer, so minutes of a cluster take a moment, and a test has
the same result every time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from brokerhouse.broker.cluster.registry_view import RegistryView
from brokerhouse.broker.cluster.session import OwnSession, RenewedSession
from brokerhouse.broker.cluster.slot_owner import SlotOwner
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Versioned
from brokerhouse.storage.slot_map import SLOTS_KEY, Slot, SlotMap

TTL_MS = 7_000
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
        self.gate = set_event()
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

    async def create(self, values: Mapping[str, str]) -> dict[str, Versioned]:
        return {
            key: self.store.values[key]
            for key, value in values.items()
            if await self.compare_and_set(key, None, value)
        }

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
    """A `SlotServing` that notes what it is asked to do."""

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

    async def serve_slots(self, session: RenewedSession, slots: Mapping[int, Slot]) -> None:
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
    owner: SlotOwner

    async def kill(self) -> None:
        """As kill -9: nothing is released, nothing more is written."""
        self.door.hangs = True
        for task in self.owner.background:
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
        broker = Broker(node_id, door, server, session, SlotOwner(view, session, server))
        self.brokers.append(broker)
        return broker

    async def start(self, *node_ids: int) -> list[Broker]:
        brokers = [self.broker(node_id) for node_id in node_ids]
        await asyncio.gather(*(broker.owner.join() for broker in brokers))
        return brokers

    async def stop(self) -> None:
        for broker in self.brokers:
            for task in broker.owner.background:
                task.cancel()
                await asyncio.wait([task])

    def all_served(self, *brokers: Broker) -> bool:
        served = [number for broker in brokers for number in broker.server.serving]
        return sorted(served) == list(range(SLOTS))


def move_slots(cluster: Cluster, numbers: list[int], shard: str) -> None:
    store = cluster.store
    moved = store.slot_map().move(numbers, shard).to_text()
    assert store.compare_and_set(SLOTS_KEY, store.values[SLOTS_KEY], moved)


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
