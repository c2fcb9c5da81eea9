"""The budget of responses: who gets how much, who waits, and what is counted once."""

from __future__ import annotations

import asyncio

import pytest

from brokerhouse.broker.memory import ResponseCharge, ResponseMemory, cost
from brokerhouse.broker.net.sending import Outgoing, Turns

MIB = 1 << 20
BUDGET = 64 * MIB


@pytest.fixture
def memory() -> ResponseMemory:
    return ResponseMemory(BUDGET)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def batches(count: int, size: int = MIB) -> tuple[bytes, ...]:
    return tuple(bytes(size) for _ in range(count))


def trusted(memory: ResponseMemory) -> ResponseCharge:
    charge = memory.charge()
    charge.sent(MIB)
    return charge


def test_a_batch_in_several_responses_is_counted_once(memory: ResponseMemory) -> None:
    first, second = memory.charge(), memory.charge()
    shared = batches(4)
    assert first.try_hold(shared)
    once = memory.used
    assert 4 * MIB <= once <= cost(shared)
    assert second.try_hold((*shared,))
    assert memory.used - once < 4096
    first.sent(4 * MIB)
    assert memory.used >= 4 * MIB
    second.close()
    assert memory.used == 0
    assert not memory._holders


def test_a_small_batch_is_counted_for_each_response(memory: ResponseMemory) -> None:
    small = batches(1000, 1000)
    charges = [memory.charge() for _ in range(3)]
    for charge in charges:
        assert charge.try_hold(small)
    assert memory.used == 3 * cost(small)
    charges[0].let_go(small)
    assert memory.used == 2 * cost(small)


def test_each_response_gets_a_quarter_of_the_free_memory(
    memory: ResponseMemory,
) -> None:
    rooms = []
    for _ in range(100):
        charge = memory.charge()
        rooms.append(charge.room)
        charge.add(charge.room)
    assert rooms[0] == BUDGET * 3 // 4 // 4
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[-1] == 64 << 10


async def test_the_last_quarter_is_reserved_for_clients_that_read_and_for_small_responses(
    memory: ResponseMemory,
) -> None:
    memory.charge().add(BUDGET * 3 // 4)
    assert not memory.charge().try_hold(batches(1))
    assert memory.charge().try_hold(batches(1, 60_000))
    reader = trusted(memory)
    assert reader.room > MIB
    assert reader.try_hold(batches(1))


async def test_waiting_responses_are_served_in_order_and_clients_that_read_come_first(
    memory: ResponseMemory,
) -> None:
    holder = memory.charge()
    holder.add(BUDGET)
    served: list[str] = []

    async def reserve(name: str, charge: ResponseCharge, size: int) -> None:
        await charge.reserve(size)
        served.append(name)

    charges = {name: memory.charge() for name in ("first", "second", "third")}
    tasks = [
        asyncio.create_task(reserve(name, charge, 30 * MIB)) for name, charge in charges.items()
    ]
    await settle()
    tasks.append(asyncio.create_task(reserve("reader", trusted(memory), 30 * MIB)))
    await settle()
    assert memory.is_short
    assert not served
    holder.close()
    await settle()
    assert served == ["reader"]
    assert not memory.charge().try_reserve(MIB)  # nobody overtakes those who wait
    tasks[0].cancel()
    await settle()
    for name in ("second", "third"):
        assert name not in served
    for charge in (charges["second"], charges["third"]):
        memory.used -= 30 * MIB  # what the one before has been sent
        memory._release(0)
        await settle()
        assert charge.size == 30 * MIB
    assert served == ["reader", "second", "third"]
    assert not memory.is_short


async def test_a_client_that_disconnects_while_it_waits_keeps_no_memory(
    memory: ResponseMemory,
) -> None:
    holder, leaving, staying = (memory.charge() for _ in range(3))
    holder.add(BUDGET)
    tasks = [asyncio.create_task(charge.reserve(MIB)) for charge in (leaving, staying)]
    await settle()
    holder.close()
    tasks[0].cancel()  # it has been granted, and does not know it yet
    await settle()
    assert memory.used == MIB
    staying.close()
    assert memory.used == 0


async def test_a_batch_larger_than_the_budget_gets_through_alone(memory: ResponseMemory) -> None:
    large = batches(1, 2 * BUDGET)
    charge = memory.charge()
    assert charge.try_hold(large)
    other = memory.charge()
    assert not other.try_hold(batches(1))
    waiting = asyncio.create_task(other.reserve(MIB))
    charge.sent(2 * BUDGET)
    await waiting
    assert other.try_hold(batches(1, MIB - 1000))


async def test_fetches_that_hold_records_are_woken_when_memory_is_short(
    memory: ResponseMemory,
) -> None:
    event = asyncio.Event()
    memory.wake_when_short(event)
    memory.charge().add(BUDGET)
    assert not event.is_set()
    waiting = asyncio.create_task(memory.charge().reserve(MIB))
    await settle()
    assert event.is_set()
    waiting.cancel()


def test_the_estimated_response_size_falls_slowly(memory: ResponseMemory) -> None:
    assert memory.estimate(3) == MIB
    memory.note_size(3, 100_000)
    assert memory.estimate(3) == 100_000
    memory.note_size(3, 0)
    assert 80_000 < memory.estimate(3) < 100_000


def test_a_response_is_sent_in_slices_with_small_pieces_joined() -> None:
    outgoing = Outgoing()
    small, large = [b"%03d" % n * 1000 for n in range(60)], [bytes(600_000), bytes(20_000)]
    outgoing.add([*small, *large])
    outgoing.add([b"next"])
    slices = []
    while outgoing:
        slices.append(outgoing.next_slice())
    assert b"".join(b"".join(one) for one in slices) == b"".join([*small, *large, b"next"])
    assert [len(one) for one in slices] == [2, 2]
    assert slices[0][1] is large[0]
    assert all(sum(map(len, one)) < (256 << 10) + 600_000 for one in slices)


async def test_large_responses_are_encoded_in_different_turns_of_the_event_loop() -> None:
    turns = Turns()
    made: list[int] = []

    async def make(number: int) -> None:
        await turns.next(0)
        made.append(number)

    tasks = [asyncio.create_task(make(number)) for number in range(5)]
    tasks[2].cancel()
    seen = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append(len(made))
    assert made == [0, 1, 3, 4]
    assert all(after - before <= 1 for before, after in zip([0, *seen], seen, strict=False))
    await asyncio.gather(make(5), make(6))
    assert made[4:] == [5, 6]


async def test_clients_that_were_given_little_come_first() -> None:
    turns = Turns()
    made: list[str] = []

    async def make(name: str, cost: int) -> None:
        await turns.next(cost)
        made.append(name)

    crowd = [make(f"crowd {number}", 50 << 20) for number in range(3)]
    await asyncio.gather(*crowd, make("light", 1 << 20), make("new", 0))
    assert made == ["crowd 0", "new", "light", "crowd 1", "crowd 2"]
