"""A model: no kill of the broker, at whatever write, shows a well-behaved transactional client an
error that it does not simply repeat its request for.

The coordinator, its checks, the markers and the building of blocks are the real ones. Storage is in
memory and outlives the broker; every write to it is a point where the broker may be killed before
or after it, where the write may be refused, and where the client's connection may be lost alone.
All of these points are tried, and all pairs of kills. The client does what clients do: it sends a
request again, unchanged, until it has an answer, and batches in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import pytest

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend, build_block
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_transactions import OpenTransaction
from brokerhouse.broker.log.producers import ProducerEntry
from brokerhouse.broker.log.refused_batches import RefusedBatches
from brokerhouse.broker.log.row_sources import RowLanes
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.broker.slots.slot_transactions import (
    CoordinatorCalls,
    MarkersEverywhere,
    MarkersHere,
    SlotTransactions,
)
from brokerhouse.broker.transactions.transaction_checks import TransactionChecks
from brokerhouse.broker.transactions.transaction_markers import MarkerWriter
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
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)
from brokerhouse.storage.engine import Engine, EngineError, Row
from brokerhouse.storage.row_lane import RowLane, TableRows
from brokerhouse.storage.slot_map import EMBEDDED
from tests.support.alone import GivenLogs
from tests.support.embedded_topics import catalog_on
from tests.support.log_parts import LIMITS, header_of, make_topic
from tests.support.record_batches import Record, batch_of

T = TypeVar("T")

ID = "id"
TIMEOUT_MS = 60_000
TRANSACTIONAL = 0x10
PRODUCE = {1: 11, 2: 12}
"""The version of Produce that a client of this transaction version sends."""
SENT_AGAIN = (ConcurrentTransactions, CoordinatorNotAvailable, KafkaStorageError, NotEnoughReplicas)
"""What a client repeats its request for."""
STEPS_MAX = 2000


class Fault(NamedTuple):
    """What happens at a write: `kill before`, `kill after`, `refuse` or `connection lost`."""

    write: int
    kind: str


@dataclass
class Stored:
    """What a partition has after its last stored block."""

    end: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    open: dict[int, OpenTransaction] = field(default_factory=dict)
    batches: list[str] = field(default_factory=list)
    """The values of records, and `commit` or `abort`."""


class World:
    """What outlives a broker."""

    def __init__(self, faults: Iterable[Fault] = (), partitions: int = 2) -> None:
        self.faults = {fault.write: fault.kind for fault in faults}
        self.writes = 0
        self.topic: Topic = make_topic("events", partitions)
        self.transactions: dict[str, tuple[Any, ...]] = {}
        self.partitions = [Stored() for _ in range(partitions)]
        self.next_id = 0
        self.lives = 0
        self.now_ms = 1_700_000_000_000

    async def next(self) -> int:
        self.next_id += 1
        return self.next_id

    def wall_ms(self) -> int:
        return self.now_ms


class Life:
    """A broker from its start to its kill."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_over = False
        self.ended = asyncio.Event()
        self.connection_lost = asyncio.Event()
        catalog = catalog_on(None, logs=GivenLogs())
        catalog.known.put(world.topic)
        self.logs = catalog.logs
        self.partitions = [self._opened(number) for number in range(len(world.partitions))]
        self.logs.add(self.partitions)
        self._queue: asyncio.Queue[PendingAppend] = asyncio.Queue()
        clock = cast(Clock, world)
        slots = OwnSlots.alone()
        leadership = SlotLeadership.alone(BrokerEndpoint(1, "localhost", 9092))
        peers = Peers(1)
        writer = MarkerWriter(self, cast(RowLanes, self))
        here = MarkersHere(writer, SlotGroups(slots, {}), catalog)
        markers = MarkersEverywhere(1, here, slots, leadership, peers)
        self.hosted = HostedTransactions(
            cast(Engine, self), cast(RowLane, self), 1, slots, markers, clock
        )
        limits = TransactionLimits(TIMEOUT_MS, 10, 10**12)
        self.coordinator = TransactionCoordinator(self.hosted, world, limits, clock)
        transactions = SlotTransactions(slots, {EMBEDDED: self.coordinator})
        self.checks = TransactionChecks(CoordinatorCalls(slots, transactions, leadership, peers))
        self.refused = RefusedBatches()
        self._tasks = [asyncio.create_task(self._run_lane())]
        world.lives += 1

    def _opened(self, number: int) -> PartitionLog:
        stored = self.world.partitions[number]
        log = PartitionLog(self.world.topic, number, 0, stored.end, 0)
        log.producers = {
            producer_id: entry._replace(recovered=True)
            for producer_id, entry in stored.producers.items()
        }
        log.transactions.open = dict(stored.open)
        return log

    async def durably(self, write: Callable[[], None]) -> None:
        """Raises `EngineError` if the write is refused."""
        await self._goes_on()
        self.world.writes += 1
        fault = self.world.faults.get(self.world.writes, "")
        if fault == "connection lost":
            self.connection_lost.set()
            await asyncio.sleep(0)
        if fault == "refuse":
            raise EngineError("refused")
        if fault == "kill before":
            self.kill()
        await self._goes_on()
        write()
        if fault == "kill after":
            self.kill()
        await asyncio.sleep(0)
        await self._goes_on()

    async def _goes_on(self) -> None:
        """Never returns when the process has been killed."""
        if self.is_over:
            await asyncio.Event().wait()

    def kill(self) -> None:
        self.is_over = True
        self.ended.set()

    async def close(self) -> None:
        """Nothing of it is left."""
        self.kill()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # RowLane and RowLanes, and Engine of the coordinator

    def lanes(self, _log: PartitionLog) -> Sequence[Life]:
        return (self,)

    async def store(self, *writes: TableRows) -> None:
        for one in writes:
            if one.rows:
                await self.durably(partial(self._put, one))

    def _put(self, write: TableRows) -> None:
        if write.table.name == "transaction_versions":
            for row in write.rows:
                self.world.transactions[str(row[0])] = tuple(row)

    async def rows(self, *_: object) -> list[Row]:
        return [
            [
                *row[:10],
                [one.topic for one in row[10]],
                [str(one.topic_id) for one in row[10]],
                [one.partition for one in row[10]],
                *row[11:15],
            ]
            for row in self.world.transactions.values()
        ]

    # Appending

    def append(self, append: PendingAppend) -> None:
        self._queue.put_nowait(append)

    async def _run_lane(self) -> None:
        while True:
            await self._store_block([await self._queue.get()])

    async def _store_block(self, appends: list[PendingAppend]) -> None:
        """As broker/log/lane.py and block_store.py."""
        block = build_block(appends, LIMITS, self.world.wall_ms(), pack=False)
        try:
            if block.staging.begun:
                await self.durably(lambda: None)
            if block.rows:
                await self.durably(partial(self._stored, appends[0]))
        except EngineError as error:
            block.fail_all(KafkaStorageError(str(error)))
            return
        block.staging.publish()
        for partition, _, end, _ in block.new_batches:
            partition.advance(end)
        block.answer_all()

    def _stored(self, append: PendingAppend) -> None:
        log, stored = append.partition, self.world.partitions[append.partition.partition]
        stored.end = log.next_offset
        stored.producers = dict(log.producers)
        stored.open = dict(log.transactions.open)
        if append.header.control:
            stored.batches.append("commit" if getattr(append, "commit", False) else "abort")
        else:
            stored.batches.append(_value(append.records))

    async def produce(self, partition: int, batch: bytes, produce_version: int) -> int:
        """As broker/api/produce.py. Raises `KafkaError`."""
        log, header = self.partitions[partition], header_of(batch)
        self.refused.tell(log, header)
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        append = PendingAppend(log, batch, header, told.set_result)
        if not log.transactions.has_open(header.producer_id, header.producer_epoch):
            append.verified = await self.checks.may_begin(log, ID, header, produce_version)
        self.append(append)
        outcome = await told
        place = log.topic_id, partition
        if isinstance(outcome, Appended):
            self.refused.note_stored(*place, header)
            return outcome.base_offset
        self.refused.note(*place, header, outcome)
        if isinstance(outcome, OutOfOrderSequenceNumber):
            outcome = self.refused.before(*place, header) or outcome
        raise outcome


class Client:
    """A producer of one transactional id, and the broker that it finds."""

    def __init__(self, world: World, version: int, away_ms: int = 0) -> None:
        """`away_ms`: how long a broker that was killed is away."""
        self.world = world
        self.version = version
        self._away_ms = away_ms
        self._given_up: set[str] = set()
        self.life: Life | None = None
        self.producer = Producer(-1, -1)
        self.sequences: dict[int, int] = {}
        self.wanted: list[list[str]] = [[] for _ in world.partitions]
        self.begun: set[int] = set()
        self._steps = 0

    async def run(self, script: Sequence[str]) -> None:
        for step in script:
            await getattr(self, f"_{step}")()
        if self.life is not None:
            await self.life.close()

    async def _start(self) -> None:
        """A new instance: what the one before began is aborted."""
        await self._init(None)

    async def _raise_epoch(self) -> None:
        """After an error that ended in an abort, in the older flow (KIP-360)."""
        await self._init(self.producer)

    async def _init(self, expected: Producer | None) -> None:
        self.producer = await self._answered(
            lambda life: life.coordinator.begin_producer(ID, TIMEOUT_MS, expected)
        )
        self.sequences.clear()
        self._end_begun("abort")

    async def _write(self) -> None:
        await self._write_batches()

    async def _write_batches(self, *, once: bool = False) -> bool:
        """Two batches into the first partition, both in flight, and one into the second.

        `once`: they are not sent again. Whether all are answered.
        """
        for partition, count in ((0, 2), (1, 1)):
            if self.version < 2 and partition not in self.begun:
                topic = self.world.topic
                await self._add(Member(topic.name, topic.topic_id, partition))
            self.begun.add(partition)
            batches = [self._batch(partition) for _ in range(count)]
            if not await self._produce(partition, batches, once=once):
                return False
        return True

    async def _add(self, member: Member) -> None:
        await self._answered(lambda life: life.coordinator.add(ID, self.producer, (member,)))

    async def _write_once(self) -> None:
        """As a client whose delivery time-out is short: what has no answer ends in an abort."""
        sent = await self._write_batches(once=True)
        await self._end(commit=sent)
        if not sent and self.version < 2:
            await self._raise_epoch()

    def _batch(self, partition: int) -> bytes:
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + 1
        value = f"{self.producer.epoch}/{sequence}"
        self.wanted[partition].append(value)
        return batch_of(
            Record(value=b"=%s" % value.encode()),
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        ).data

    async def _produce(self, partition: int, batches: Sequence[bytes], *, once: bool) -> bool:
        """Those without an answer are sent again, in order. Whether all are answered."""
        waiting = list(batches)
        while waiting:
            life = await self._broker()
            sent = [
                asyncio.create_task(life.produce(partition, batch, PRODUCE[self.version]))
                for batch in waiting
            ]
            await self._wait(life, sent)
            waiting = [
                batch for batch, one in zip(waiting, sent, strict=True) if not _succeeded(one)
            ]
            if once and waiting:
                self._given_up.update(_value(batch) for batch in waiting)
                return False
        return True

    async def _commit(self) -> None:
        await self._end(commit=True)

    async def _abort(self) -> None:
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        before = self.producer
        self.producer = await self._answered(
            lambda life: life.coordinator.end(ID, before, commit=commit, version=self.version)
        )
        if self.producer != before:
            self.sequences.clear()
        self._end_begun("commit" if commit else "abort")

    def _end_begun(self, marker: str) -> None:
        for partition in self.begun:
            self.wanted[partition].append(marker)
        self.begun.clear()

    async def _answered(self, request: Callable[[Life], Awaitable[T]]) -> T:
        while True:
            life = await self._broker()
            sent = asyncio.ensure_future(request(life))
            await self._wait(life, [sent])
            if _succeeded(sent):
                return sent.result()

    async def _wait(self, life: Life, sent: Sequence[asyncio.Future[Any]]) -> None:
        """Until all are answered, or the connection is lost: for good, if the broker was killed."""
        answered = asyncio.create_task(asyncio.wait(sent))
        gone = [asyncio.create_task(one.wait()) for one in (life.ended, life.connection_lost)]
        ends: list[asyncio.Task[Any]] = [answered, *gone]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for one in ends:
            one.cancel()
        life.connection_lost.clear()
        await asyncio.sleep(0)

    async def _broker(self) -> Life:
        self._steps += 1
        assert self._steps < STEPS_MAX, "the client asks for ever"
        if self.life is not None and self.life.is_over:
            await self.life.close()
            self.life = None
        if self.life is None:
            self.life = Life(self.world)
            if self.world.lives > 1:
                self.world.now_ms += self._away_ms
            await self.life.hosted.load(lambda _: True)
            await self.life.coordinator._look()
        return self.life

    def has_what_it_wants(self) -> bool:
        """Whether what it wrote is stored once and in order; what it gave up may be stored."""
        for stored, wanted in zip(self.world.partitions, self.wanted, strict=True):
            missing = self._given_up.difference(stored.batches)
            there = [one for one in wanted if one not in missing]
            if stored.open or _of_records(stored.batches) != _of_records(there):
                return False
        return True


def _of_records(batches: Iterable[str]) -> list[str]:
    """Without markers that abort nothing."""
    found: list[str] = []
    for one in batches:
        if one != "abort" or (found and found[-1] not in ("abort", "commit")):
            found.append(one)
    return found


def _value(batch: bytes) -> str:
    return batch[-20:].split(b"=")[1].rstrip(b"\0").decode()


def _succeeded(sent: asyncio.Future[Any]) -> bool:
    """Raises an error that the client would not repeat its request for."""
    if not sent.done() or sent.cancelled():
        return False
    error = sent.exception()
    if error is None:
        return True
    if isinstance(error, SENT_AGAIN):
        return False
    raise error


SCRIPTS = {
    "commits": ("start", "write", "commit", "write", "commit"),
    "aborts": ("start", "write", "abort", "write", "abort", "write", "commit"),
    "new instances": ("start", "write", "start", "write", "commit", "start", "write", "commit"),
    "short time-outs": ("start", "write_once", "write", "commit", "write_once"),
    "raised epochs": ("start", "write", "abort", "raise_epoch", "write", "commit"),
}
NEAR = 3
"""Kills that are further apart are like two of which each is the only one."""


def cases(*always: tuple[str, int]) -> list[Any]:
    """Each script in each version; all but those named here only in `make test-all`."""
    return [
        pytest.param(
            name,
            version,
            id=f"{name}-{version}",
            marks=() if (name, version) in always else pytest.mark.test_all,
        )
        for name in SCRIPTS
        for version in (1, 2)
        if (name, version) != ("raised epochs", 2)  # every end raises it
    ]


KINDS = ("kill before", "kill after", "refuse", "connection lost")


def pairs_within(writes: int, distance: int) -> Iterator[tuple[int, int]]:
    for first in range(1, writes + 1):
        for second in range(first + 1, first + distance + 1):
            yield first, second


async def history(script: str, version: int, *faults: Fault) -> World:
    """What is stored when the client has its answers and a last instance has come."""
    world = World(faults)
    client = Client(world, version)
    try:
        await client.run((*SCRIPTS[script], "start"))
    except KafkaError as error:
        raise AssertionError(f"{faults}: a client gets {error!r}") from error
    stored = [one.batches for one in world.partitions]
    assert client.has_what_it_wants(), f"{faults}: {stored}, not {client.wanted}"
    return world


@pytest.mark.parametrize(
    ("script", "version"),
    cases(
        ("commits", 1),
        ("commits", 2),
        ("aborts", 2),
        ("new instances", 2),
        ("short time-outs", 2),
        ("raised epochs", 1),
    ),
)
async def test_no_single_fault_shows_an_error_to_a_client(script: str, version: int) -> None:
    writes = (await history(script, version)).writes
    assert writes > 10
    for write in range(1, writes + 1):
        for kind in KINDS:
            world = await history(script, version, Fault(write, kind))
            assert world.lives == (2 if kind.startswith("kill") else 1)


@pytest.mark.parametrize(("script", "version"), cases(("commits", 2), ("raised epochs", 1)))
async def test_no_two_kills_show_an_error_to_a_client(script: str, version: int) -> None:
    writes = (await history(script, version)).writes
    for first, second in pairs_within(writes, NEAR):
        for kinds in (("kill before", "kill after"), ("kill after", "kill before")):
            await history(
                script, version, *(Fault(*one) for one in zip((first, second), kinds, strict=True))
            )


@pytest.mark.parametrize(("script", "version"), cases(("commits", 1), ("commits", 2)))
async def test_a_client_whose_transaction_timed_out_during_a_restart_is_fenced(
    script: str, version: int
) -> None:
    fenced = 0
    for write in range(1, (await history(script, version)).writes + 1):
        for kind in ("kill before", "kill after"):
            world = World([Fault(write, kind)])
            client = Client(world, version, away_ms=TIMEOUT_MS)
            try:
                await client.run(SCRIPTS[script])
            except (ProducerFenced, InvalidProducerEpoch):
                fenced += 1
            assert client.life is not None
            await client.life.close()
    assert fenced


async def test_the_model_sees_an_end_that_cannot_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes = (await history("commits", 2)).writes
    monkeypatch.setattr(Transaction, "_repeats", lambda *_: False)

    async def kill_after_each() -> None:
        for write in range(1, writes + 1):
            await history("commits", 2, Fault(write, "kill after"))

    with pytest.raises(AssertionError, match="a client gets ProducerFenced"):
        await kill_after_each()
