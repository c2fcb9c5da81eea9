"""The transaction coordinator under random histories, with a crash between any two steps.

Storage and partitions are in memory here, and outlive the coordinator. A crash ends it before or
after a row is stored or a marker is written; the next one starts from what is stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

import pytest

from brokerhouse.common.clock import Clock
from brokerhouse.coordinator.hosted_transactions import HostedTransactions
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.coordinator.transaction_coordinator import (
    TransactionCoordinator,
    TransactionLimits,
)
from brokerhouse.coordinator.transaction_states import Member, Producer, Transaction
from brokerhouse.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    KafkaError,
    PolicyViolation,
)
from brokerhouse.storage.engine import Engine, EngineError, Parameter, Row
from brokerhouse.storage.row_lane import RowLane, TableRows

ID = "id"
MEMBERS = [Member("events", UUID(int=1), partition) for partition in range(3)]
TIMEOUT_MS = 1_000
MAX_IDS = 3


class ClientLeft(Exception):
    """The client's connection is lost."""


class Crash(BaseException):
    """The process ends here."""


class Machine:
    """What outlives a coordinator: rows, markers, producer ids, the clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.markers: defaultdict[Member, list[tuple[Producer, bool]]] = defaultdict(list)
        self.next_id = 0
        self.now_ms = 1_000_000
        self.crashes = False
        self.has_crashed = False
        self.refuses = True

    def may_crash(self) -> None:
        if self.has_crashed or (self.crashes and self.random.random() < 0.08):
            self.has_crashed = True
            raise Crash

    # FreshIds

    async def next(self) -> int:
        self.next_id += 1
        return self.next_id

    # Clock

    def wall_ms(self) -> int:
        return self.now_ms

    # RowLane

    async def store(self, *writes: TableRows) -> None:
        await asyncio.shield(asyncio.ensure_future(self._store(*writes)))

    async def _store(self, *writes: TableRows) -> None:
        await asyncio.sleep(0)
        self.may_crash()
        if self.refuses and self.random.random() < 0.05:
            raise EngineError("refused")
        for write in writes:
            for row in write.rows:
                assert row[1] > self.rows.get(row[0], (0, 0))[1], "versions grow"
                self.rows[row[0]] = tuple(row)
        await asyncio.sleep(0)
        self.may_crash()

    # Engine

    async def rows_of(self, _sql: str, _params: Mapping[str, Parameter] | None = None) -> list[Row]:
        return [
            [
                *row[:10],
                [one.topic for one in row[10]],
                [str(one.topic_id) for one in row[10]],
                [one.partition for one in row[10]],
                *row[11:15],
            ]
            for row in self.rows.values()
        ]

    # Markers

    async def write(self, transaction: Transaction) -> None:
        producer = Producer(transaction.producer_id, transaction.epoch)
        for member in sorted(transaction.members):
            await asyncio.sleep(0)
            self.may_crash()
            if (producer, transaction.commits) not in self.markers[member]:
                self.markers[member].append((producer, transaction.commits))


class _Engine:
    def __init__(self, machine: Machine) -> None:
        self.rows = machine.rows_of


def coordinator(machine: Machine) -> TransactionCoordinator:
    hosted = HostedTransactions(
        cast(Engine, _Engine(machine)),
        cast(RowLane, machine),
        1,
        OwnSlots.alone(),
        machine,
        cast(Clock, machine),
    )
    return TransactionCoordinator(
        hosted,
        machine,
        TransactionLimits(60_000, MAX_IDS, 10**12),
        cast(Clock, machine),
    )


async def started(one: TransactionCoordinator) -> None:
    await one.hosted.load(lambda _: True)
    one.start()


class History:
    """One client, which goes on after crashes, and what it was told."""

    def __init__(self, seed: int) -> None:
        self.machine = Machine(seed)
        self.random = self.machine.random
        self.told: list[tuple[int, bool, set[Member]]] = []
        """For each transaction that was acknowledged: its number, whether committed, partitions."""
        self.begun: list[set[Member]] = []
        self.unknown = 0
        """Ends of transactions whose answers the client did not get."""
        self.written: set[tuple[Member, Producer]] = set()
        """Partitions that were allowed to get records, and of which producer."""
        self.version = self.random.choice([1, 2])

    async def run(self) -> None:
        self.machine.crashes = True
        for _ in range(6):
            self.machine.has_crashed = False
            await self._one_life()
        self.machine.crashes = self.machine.has_crashed = self.machine.refuses = False
        last = coordinator(self.machine)
        await started(last)
        await self._settle(last)
        await last.begin_producer(ID, TIMEOUT_MS, None)  # aborts what is left over
        await self._settle(last)
        await last.close()

    async def _one_life(self) -> None:
        one = coordinator(self.machine)
        try:
            await started(one)
            for _ in range(4):
                with suppress(ClientLeft):
                    await self._client(one)
        except Crash:
            pass
        finally:
            self.machine.has_crashed = True  # nothing of this life is stored any more
            await one.close()
            await asyncio.sleep(0)

    async def _settle(self, one: TransactionCoordinator) -> None:
        for _ in range(10_000):
            if all(t.state.value[:7] != "Prepare" for t in one.all()):
                return
            await asyncio.sleep(0)
        raise AssertionError("a prepared transaction does not end")

    async def _client(self, one: TransactionCoordinator) -> None:
        producer = await self._again(lambda: one.begin_producer(ID, TIMEOUT_MS, None))
        for _ in range(5):
            members = set(self.random.sample(MEMBERS, self.random.randint(1, 3)))
            self.begun.append(members)
            number = len(self.begun) - 1
            for member in sorted(members):
                await self._again(
                    lambda member=member, producer=producer: one.add(
                        ID, producer, (member,), version=self.version
                    )
                )
                self.written.add((member, producer))
            commit = self.random.random() < 0.6
            self.unknown += 1
            producer = await self._again(
                lambda producer=producer, commit=commit: one.end(
                    ID, producer, commit=commit, version=self.version
                )
            )
            self.unknown -= 1
            self.told.append((number, commit, members))

    async def _again(self, request: Any) -> Any:
        """Until it is answered; or the client leaves, which cancels the request."""
        while True:
            task = asyncio.ensure_future(request())
            if self.random.random() < 0.05:
                for _ in range(self.random.randrange(6)):
                    await asyncio.sleep(0)
                if task.cancel():
                    await asyncio.wait([task])
                    raise ClientLeft
            try:
                return await task
            except (CoordinatorNotAvailable, ConcurrentTransactions):
                await asyncio.sleep(0)
                if self.machine.has_crashed:
                    raise Crash from None


async def check(history: History) -> int:
    await history.run()
    committed: defaultdict[Member, int] = defaultdict(int)
    for _, commit, members in history.told:
        for member in members:
            committed[member] += commit
    for member, markers in history.machine.markers.items():
        commits = sum(commit for _, commit in markers)
        if history.version == 2:
            epochs = [producer for producer, _ in markers]
            assert len(set(epochs)) == len(epochs), "one marker for each end"
            assert committed[member] <= commits <= committed[member] + history.unknown
        assert sorted(producer for producer, _ in markers) == [p for p, _ in markers]
    for member, written in history.written:
        assert any(
            marker.producer_id == written.producer_id and marker.epoch >= written.epoch
            for marker, _ in history.machine.markers[member]
        ), "records without a marker: they would stay open for ever"
    if history.version == 2:
        # Of each transaction, all partitions have the same marker: it is not torn.
        ends: defaultdict[Producer, set[bool]] = defaultdict(set)
        for markers in history.machine.markers.values():
            for producer, commit in markers:
                ends[producer].add(commit)
        assert all(len(found) == 1 for found in ends.values())
        for _, commit, members in history.told:
            if commit:
                assert all(history.machine.markers[member] for member in members)
    return len(history.told)


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
async def test_transactions_stay_whole_in_random_histories_with_crashes(first_seed: int) -> None:
    told = 0
    for seed in range(first_seed, first_seed + 50):
        told += await check(History(seed))
    assert told > 100, "the client got something done"


async def test_a_commit_is_completed_even_if_its_client_disconnects() -> None:
    machine = Machine(1)
    machine.random = cast(Any, _Calm())
    for turns in range(8):
        one = coordinator(machine)
        await started(one)
        producer = await one.begin_producer(ID, TIMEOUT_MS, None)
        await one.add(ID, producer, (MEMBERS[0],), version=2)
        ending = asyncio.create_task(one.end(ID, producer, commit=True, version=2))
        for _ in range(turns):
            await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
        async with asyncio.timeout(5):
            again = await one.begin_producer(ID, TIMEOUT_MS, None)
        assert again.epoch > producer.epoch
        await one.close()


async def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced() -> None:
    machine = Machine(1)
    machine.random = cast(Any, _Calm())
    one = coordinator(machine)
    await started(one)
    producer = await one.begin_producer(ID, TIMEOUT_MS, None)
    await one.add(ID, producer, (MEMBERS[0],), version=2)
    machine.now_ms += TIMEOUT_MS
    await one._look()
    for _ in range(100):
        await asyncio.sleep(0)
    ((marker, commit),) = machine.markers[MEMBERS[0]]
    assert not commit
    assert marker.epoch > producer.epoch
    with pytest.raises(KafkaError):
        await one.end(ID, producer, commit=True, version=2)
    await one.close()


async def test_ids_beyond_the_limit_are_refused_until_others_expire() -> None:
    machine = Machine(1)
    machine.random = cast(Any, _Calm())
    one = coordinator(machine)
    await started(one)
    for number in range(MAX_IDS):
        await one.begin_producer(f"id-{number}", TIMEOUT_MS, None)
    with pytest.raises(PolicyViolation):
        await one.begin_producer("one more", TIMEOUT_MS, None)
    await one.begin_producer("id-0", TIMEOUT_MS, None)
    machine.now_ms += 10**12
    await one._look()
    assert one.all() == []
    assert all(row[-2] for row in machine.rows.values()), "they are not there after a start"
    await one.begin_producer("one more", TIMEOUT_MS, None)
    await one.close()


class _Calm:
    def random(self) -> float:
        return 1.0
