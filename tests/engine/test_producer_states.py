"""What a partition knows about producers is stored before their rows are deleted, on a real engine:
the next leader finds it again, whoever deletes, and forgets it when they have expired."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brokerhouse.broker.log import producer_states as states_module
from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import PendingMarker
from brokerhouse.broker.log.checkpoints import CHECKPOINTS
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.mutations import is_changing
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_recovery import stored_producer
from brokerhouse.broker.log.producer_states import (
    PRODUCER_STATES,
    ProducerStates,
    ProducerStateSweep,
)
from brokerhouse.broker.log.producers import BATCHES_KEPT, ProducerEntry
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.protocol.control_batches import control_batch
from brokerhouse.protocol.errors import (
    InvalidProducerEpoch,
    KafkaStorageError,
    OutOfOrderSequenceNumber,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.row_lane import RowLane, TableRows
from tests.support import log_parts
from tests.support.alone import OneLane, OneShard
from tests.support.log_parts import (
    LANES,
    NOTHING_FRESH,
    ScriptedEngine,
    header_of,
    make_appender,
    make_log,
    numbered,
    plain,
)
from tests.support.record_batches import Batch
from tests.support.small_tables import make_lane
from tests.support.waiting import until_async

PRODUCER, OTHER = 7, 8
LEADER_EPOCH = 3
"""Of a cluster, where a producer that nothing is known of must begin at 0."""


class Leaders:
    """A partition, whoever leads it."""

    def __init__(self, engine: EmbeddedEngine, scripted: ScriptedEngine, lane: RowLane) -> None:
        self.engine = engine
        self.scripted = scripted
        self.lane = lane
        self.now_ms = wall_ms
        # The last lane is for small rows.
        self.appender: Appender = make_appender(scripted, lanes=LANES - 1)
        lanes = OneLane(lane)
        self.states = ProducerStates(lanes, OneShard(engine), DAY_MS, lambda: self.now_ms())
        self.starts = LogStarts(lanes, self.states)
        self.log = make_log()

    def change(self) -> None:
        """The next leader knows where the log starts and ends, and no producer."""
        old = self.log
        self.log = PartitionLog(
            old.topic, 0, old.log_start_offset, old.next_offset, NOTHING_FRESH, LEADER_EPOCH
        )

    async def send(self, *batches: Batch) -> list[int | type[BaseException]]:
        results = await asyncio.gather(
            *(log_parts.append(self.appender, self.log, batch.data) for batch in batches),
            return_exceptions=True,
        )
        return [type(one) if isinstance(one, BaseException) else one.base_offset for one in results]

    async def end_transaction(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        data = control_batch(
            producer_id, epoch, commit=True, coordinator_epoch=coordinator_epoch, timestamp_ms=0
        )
        marker = PendingMarker(self.log, data, header_of(data), done.set_result)
        marker.commit, marker.coordinator_epoch = True, coordinator_epoch
        self.appender.append(marker)
        await done

    async def delete(self, below: int) -> None:
        """As retention and DeleteRecords do, and the sweep after them."""
        await self.starts.raise_to(self.log, below)
        await self.remove_rows(below)

    async def remove_rows(self, below: int) -> None:
        await self.engine.execute(f"DELETE FROM messages WHERE offset < {below}")

    async def known(self, producer_id: int = PRODUCER) -> ProducerEntry | None:
        self.change()
        return await stored_producer(self.log, producer_id, [self.engine])

    async def states_stored(self) -> int:
        rows = await self.engine.rows("SELECT count() FROM producer_states FINAL")
        count: int = rows[0][0]
        return count

    async def until_swept(self) -> None:
        async def is_done() -> bool:
            return not await is_changing(self.engine, "producer_states")

        await until_async(is_done)

    async def has_forgotten(self) -> bool:
        rows = await self.engine.rows("SELECT max(forgot_producers) FROM partition_checkpoints")
        return bool(rows[0][0])


@pytest.fixture
async def house(engine: EmbeddedEngine, scripted: ScriptedEngine) -> AsyncIterator[Leaders]:
    lane = make_lane(scripted)
    made = Leaders(engine, scripted, lane)
    yield made
    scripted.gate.set()
    await made.appender.close()
    await lane.close()


def batches(*firsts: int, producer_id: int = PRODUCER, epoch: int = 0) -> list[Batch]:
    """Batches of two records."""
    return [numbered(first, 2, producer_id, epoch) for first in firsts]


@pytest.mark.parametrize("known", ["in memory", "in rows of an earlier leader"])
@pytest.mark.parametrize("below", [11, 12, 13])
async def test_the_next_leader_finds_duplicates_of_deleted_batches_and_the_next_sequence(
    house: Leaders, known: str, below: int
) -> None:
    await house.send(*batches(0, 2, 4, 6, 8, 10))
    await house.send(plain(b"x"))
    if known != "in memory":
        house.change()
    await house.delete(below)
    house.change()
    assert await house.send(*batches(2, 4, 6, 8, 10)) == [2, 4, 6, 8, 10]
    assert await house.send(*batches(13)) == [OutOfOrderSequenceNumber]
    assert await house.send(*batches(12)) == [13]
    unknown = batches(6, producer_id=OTHER)
    assert await house.send(*unknown) == [OutOfOrderSequenceNumber]


async def test_producer_states_survive_log_starts_raised_by_several_leaders(house: Leaders) -> None:
    house.log.leader_epoch = LEADER_EPOCH
    for first in range(0, 24, 4):
        assert await house.send(*batches(first, first + 2)) == [first, first + 2]
        await house.delete(first + 3)
        if first % 8:
            house.change()
    assert await house.send(*batches(14, 16, 18, 20, 22)) == [14, 16, 18, 20, 22]
    assert await house.send(*batches(24)) == [24]


async def test_the_next_leader_knows_batches_that_compaction_removed_between_others(
    house: Leaders,
) -> None:
    await house.send(*batches(0, 2, producer_id=OTHER), *batches(0, 2, 4))
    house.change()
    await house.states.save(house.log, 9)
    await house.lane.store(
        TableRows(CHECKPOINTS, [(house.log.topic_id, house.log.partition, 0, 10, False)])
    )
    await house.engine.execute("DELETE FROM messages WHERE offset NOT IN (5, 9)")
    house.change()
    assert await house.send(*batches(0, 2, 4)) == [4, 6, 8]
    assert await house.send(*batches(0, 2, producer_id=OTHER)) == [0, 2]
    assert await house.send(*batches(6), *batches(4, producer_id=OTHER)) == [10, 12]


async def test_the_last_sequence_and_coordinator_epoch_survive_the_deletion_of_a_transaction(
    house: Leaders,
) -> None:
    await house.send(*batches(0, epoch=2))
    await house.end_transaction(PRODUCER, 2, coordinator_epoch=5)
    await house.delete(3)
    entry = await house.known()
    assert entry is not None
    assert (entry.epoch, entry.next_sequence) == (2, 2)
    assert (entry.coordinator_epoch, entry.ended_offset) == (5, 2)
    assert await house.send(*batches(2, epoch=1)) == [InvalidProducerEpoch]
    assert await house.send(*batches(2, epoch=2)) == [3]


@pytest.mark.parametrize("where", ["in the log", "deleted", "deleted and swept", "read again"])
async def test_the_coordinator_epoch_is_known_however_much_was_written_after_its_marker(
    house: Leaders, where: str
) -> None:
    await house.send(*batches(0, epoch=2))
    await house.end_transaction(PRODUCER, 2, coordinator_epoch=5)
    for first in range(0, 12, 2):
        await house.send(plain(b"x"), *batches(first, epoch=3))
        if where.startswith("deleted"):
            await house.delete(house.log.high_watermark)
    if where == "deleted and swept":
        await ProducerStateSweep(house.engine, DAY_MS, wall_ms).round()
        await house.until_swept()
    elif where == "read again":
        house.change()
        await house.delete(house.log.high_watermark)
    entry = await house.known()
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch) == (3, 5)
    assert [known.first for known in entry.ranges] == [2, 4, 6, 8, 10]


async def test_the_producer_epoch_survives_the_deletion_of_a_marker_without_records(
    house: Leaders,
) -> None:
    await house.send(plain(b"x"))
    await house.end_transaction(PRODUCER, 4, coordinator_epoch=1)
    house.change()
    await house.delete(2)
    house.change()
    assert await house.send(*batches(0, epoch=3)) == [InvalidProducerEpoch]


async def test_a_block_refused_while_rows_are_deleted_does_not_change_producer_states(
    house: Leaders,
) -> None:
    await house.send(*batches(0, 2))
    house.scripted.gate.clear()
    house.scripted.faults.append("refused")
    raised = asyncio.create_task(house.send(*batches(0, epoch=1)))
    await house.scripted.next_insert()
    moving = asyncio.create_task(house.delete(4))
    await house.scripted.next_insert()
    house.scripted.gate.set()
    assert await raised == [KafkaStorageError]
    await moving
    assert await house.send(plain(b"x")) == [4]
    house.change()
    assert await house.send(*batches(0, 2)) == [0, 2]
    assert await house.send(*batches(4)) == [5]


async def test_the_log_start_moves_only_when_the_states_are_stored(house: Leaders) -> None:
    await house.send(*batches(0))
    house.scripted.faults.append("refused")
    with pytest.raises(EngineError):
        await house.starts.raise_to(house.log, 2)
    assert house.log.log_start_offset == 0
    await house.starts.raise_to(house.log, 2)
    tables = [table for table in house.scripted.tables if table != "messages"]
    assert tables == [PRODUCER_STATES.name, PRODUCER_STATES.name, CHECKPOINTS.name]


async def test_a_producer_is_not_forgotten_if_the_checkpoint_was_stored_on_only_one_engine(
    house: Leaders,
) -> None:
    await house.send(*batches(0, epoch=2))
    await house.end_transaction(PRODUCER, 2, coordinator_epoch=5)
    house.change()
    assert await house.send(*batches(0, producer_id=OTHER)) == [3]  # no checkpoint until now
    house.scripted.faults += [None, "refused though stored"]
    with pytest.raises(EngineError):
        await house.starts.raise_to(house.log, 2)
    await house.remove_rows(2)
    assert await house.send(*batches(2, epoch=2)) == [5]


@pytest.mark.parametrize("adopted", [True, False])
async def test_a_log_start_stored_by_an_earlier_leader_comes_with_its_producer_states(
    house: Leaders, adopted: bool
) -> None:
    await house.send(*batches(0, 2))
    earlier = house.log
    house.change()
    assert await house.send(*batches(0, producer_id=OTHER)) == [4]  # no checkpoint until now
    await house.starts.raise_to(earlier, 4)
    if adopted:
        house.log.begin_at(4)
    await house.remove_rows(4)
    assert await house.send(*batches(4), *batches(2)) == [6, 2]


async def test_the_sequence_is_known_when_an_earlier_leader_removed_records_but_not_the_marker(
    house: Leaders,
) -> None:
    await house.send(*batches(0, epoch=2))
    await house.end_transaction(PRODUCER, 2, coordinator_epoch=5)
    earlier = house.log
    house.change()
    assert await house.send(*batches(0, producer_id=OTHER)) == [3]  # no checkpoint until now
    await house.starts.raise_to(earlier, 2)
    await house.remove_rows(2)  # the marker stays
    assert await house.send(*batches(2, epoch=2)) == [5]


async def test_producer_states_on_several_engines_are_counted_once(house: Leaders) -> None:
    await house.send(*batches(0, 2), plain(b"x"), *batches(4))
    await house.delete(5)
    house.change()
    house.log.earlier = (house.engine,)
    assert await house.send(*batches(0, 2, 4)) == [0, 2, 5]
    assert await house.send(*batches(6)) == [7]


@pytest.mark.parametrize("at_once", [5, 8192])
async def test_states_of_many_producers_are_stored_in_portions(
    house: Leaders, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(states_module, "_ROWS_AT_ONCE", at_once)
    await house.send(*(numbered(0, 1, producer_id) for producer_id in range(12)))
    await house.send(*(numbered(1, 1, producer_id) for producer_id in range(12)))
    house.change()
    await house.delete(24)
    house.change()
    retries = [numbered(n, 1, producer_id) for n in (0, 1) for producer_id in range(12)]
    assert await house.send(*retries) == list(range(24))


async def test_producer_states_are_stored_once_and_only_of_idempotent_producers(
    house: Leaders,
) -> None:
    await house.send(plain(b"x"), plain(b"y"))
    await house.delete(2)
    assert PRODUCER_STATES.name not in house.scripted.tables
    await house.send(*batches(0))
    await house.delete(3)
    await house.delete(4)
    await house.send(plain(b"x"))
    await house.delete(5)
    assert house.scripted.tables.count(PRODUCER_STATES.name) == 2


async def test_an_expired_producer_is_not_stored_and_may_begin_with_any_sequence(
    house: Leaders,
) -> None:
    await house.send(*batches(0))
    house.change()
    house.now_ms = lambda: wall_ms() + DAY_MS + 60_000
    await house.delete(2)
    assert (await house.states_stored(), await house.has_forgotten()) == (0, True)
    house.change()
    assert await house.send(*batches(6)) == [2]


async def test_expired_producer_states_are_deleted_and_the_checkpoint_notes_it(
    house: Leaders,
) -> None:
    await house.send(*batches(0))
    await house.delete(2)
    at_ms = wall_ms()
    sweep = ProducerStateSweep(house.engine, DAY_MS, lambda: at_ms)
    await sweep.round()
    await house.until_swept()  # a round does nothing while an earlier one is not done
    assert (await house.states_stored(), await house.has_forgotten()) == (1, False)
    at_ms += DAY_MS + 60_000
    await sweep.round()
    await house.until_swept()
    assert (await house.states_stored(), await house.has_forgotten()) == (0, True)
    house.change()
    assert await house.send(*batches(6)) == [2]


async def test_the_sweep_keeps_the_last_batches_of_each_producer_and_none_of_a_deleted_topic(
    house: Leaders,
) -> None:
    for first in range(0, 12, 2):
        await house.send(*batches(first), plain(b"x"), *batches(first, producer_id=OTHER))
        await house.delete(house.log.high_watermark)
    assert await house.states_stored() == 12
    await ProducerStateSweep(house.engine, DAY_MS, wall_ms).round()
    await house.until_swept()
    assert await house.states_stored() == 2 * BATCHES_KEPT
    entry = await house.known()
    assert entry is not None
    assert [known.first for known in entry.ranges] == [2, 4, 6, 8, 10]
    await house.engine.execute(
        "INSERT INTO topic_versions (topic_id, version, name, partitions, state)"
        " SELECT {id:UUID}, 1, 'topic', 1, 'deleted'",
        {"id": str(house.log.topic_id)},
    )
    await ProducerStateSweep(house.engine, DAY_MS, wall_ms).round()
    await house.until_swept()
    assert await house.states_stored() == 0


async def test_a_sweep_does_not_wait_for_the_engine_and_is_not_repeated_meanwhile(
    house: Leaders,
) -> None:
    """The engine makes the change when it has space; here when it is told to."""
    await house.send(*batches(0))
    await house.delete(2)
    await house.engine.execute("SYSTEM STOP MERGES producer_states")
    at_ms = wall_ms() + 2 * DAY_MS
    for _ in range(3):
        await asyncio.wait_for(ProducerStateSweep(house.engine, DAY_MS, lambda: at_ms).round(), 60)
    mutations = "SELECT count() FROM system.mutations WHERE table = 'producer_states'"
    assert await house.engine.rows(mutations) == [[1]]
    await house.engine.execute("SYSTEM START MERGES producer_states")
    await house.until_swept()
    assert await house.states_stored() == 0


async def test_a_checkpoint_of_a_version_without_states_lets_a_producer_begin_with_any_sequence(
    house: Leaders,
) -> None:
    await house.engine.execute(
        "INSERT INTO partition_checkpoints (topic_id, partition, log_start_offset,"
        " next_offset_floor) SELECT {id:UUID}, 0, 5, 5",
        {"id": str(house.log.topic_id)},
    )
    house.change()
    assert await house.send(*batches(6)) == [0]
