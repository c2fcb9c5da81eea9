"""Group commit of a broker in a cluster: what a lease allows, and what happens when it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import Appended, Outcome, PendingAppend
from brokerhouse.broker.log.fence import fence
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.write_lease import WriteLease
from brokerhouse.common.clock import DAY_MS, monotonic_ms
from brokerhouse.protocol.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support import log_parts
from tests.support.clock import NOON
from tests.support.log_parts import (
    LANES,
    NOTHING_FRESH,
    ScriptedEngine,
    header_of,
    make_appender,
    make_log,
    make_topic,
    numbered,
    plain,
    stored_values,
    tail_rows,
)
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.seeds import seeds
from tests.support.waiting import LOOK_AGAIN_S

SESSION = 41
PRODUCER = 7
TRANSACTIONAL = 0x10
AWAY_AFTER_MS = 200
LIMIT_S = 30.0
TODAY = NOON // DAY_MS


@pytest.fixture(autouse=True)
def clock_that_begins_at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test sees the day end."""
    begun_ms = monotonic_ms()
    for module in ("brokerhouse.broker.log.lane", "tests.support.log_parts"):
        monkeypatch.setattr(f"{module}.wall_ms", lambda: NOON + monotonic_ms() - begun_ms)


class Session:
    """A session whose end is decided by the test."""

    def __init__(self, number: int = SESSION) -> None:
        self.session_id = number
        self.is_fenced = True
        self.is_valid = True
        self.writable_days = range(TODAY, TODAY + 2)

    def may_serve(self) -> bool:
        return self.is_valid

    def days(self, _shard: str) -> range:
        return self.writable_days

    def lease(self, away_after_ms: int = 600_000) -> WriteLease:
        return WriteLease(self, "shard", away_after_ms)


class ScriptedSession(Session):
    """A session that may serve as often as it says, and then no more."""

    def __init__(self, *answers: bool) -> None:
        super().__init__(len(answers))
        self._answers = iter(answers)

    def may_serve(self) -> bool:
        return next(self._answers, False)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
async def appender(scripted: ScriptedEngine, session: Session) -> AsyncIterator[Appender]:
    made = make_appender(scripted, lease=session.lease())
    yield made
    await ended(made, scripted)


@pytest.fixture
async def impatient(scripted: ScriptedEngine, session: Session) -> AsyncIterator[Appender]:
    """An appender that soon loses patience with its shard."""
    made = make_appender(scripted, lease=session.lease(AWAY_AFTER_MS))
    yield made
    await ended(made, scripted)


async def ended(appender: Appender, scripted: ScriptedEngine) -> None:
    appender.abandon()
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        await appender.close()


def append(appender: Appender, log: PartitionLog, batch: Batch) -> asyncio.Future[Appended]:
    return log_parts.append(appender, log, batch.data)


async def outcomes(futures: Sequence[asyncio.Future[Appended]]) -> list[int | type[BaseException]]:
    """The base offset of each append, or the kind of its error."""
    async with asyncio.timeout(LIMIT_S):
        results = await asyncio.gather(*futures, return_exceptions=True)
    return [
        type(result) if isinstance(result, BaseException) else result.base_offset
        for result in results
    ]


async def inserts_came(scripted: ScriptedEngine, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(scripted.inserts) < count:
            await scripted.next_insert()


async def repeated(appender: Appender, log: PartitionLog, *batches: Batch) -> list[int]:
    """Send batches in order, each until it is taken, as clients do; where they are stored."""
    offsets: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        for batch in batches:
            while True:
                try:
                    offsets.append((await append(appender, log, batch)).base_offset)
                    break
                except (RequestTimedOut, NotLeaderOrFollower):
                    await asyncio.sleep(LOOK_AGAIN_S)
    return offsets


async def outcome_of(
    appender: Appender, log: PartitionLog, batch: Batch
) -> int | type[BaseException]:
    """As `outcomes`, however often the shard is too slow for an appender without patience."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            (outcome,) = await outcomes([append(appender, log, batch)])
            if outcome not in (RequestTimedOut, NotLeaderOrFollower):
                return outcome
            await asyncio.sleep(LOOK_AGAIN_S)


def logs_of_one_lane(count: int) -> list[PartitionLog]:
    topic = make_topic(partitions=LANES * count)
    return [make_log(topic, LANES * n) for n in range(count)]


def nothing_is_published(log: PartitionLog) -> bool:
    return (log.high_watermark, log.tail.start_offset) == (0, None)


# --- The lease is over ---


async def test_a_broker_without_a_lease_sends_no_block(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    session.is_valid = False
    futures = [append(appender, log, plain(b"x")) for _ in range(3)]
    assert await outcomes(futures) == [NotLeaderOrFollower] * 3
    assert scripted.inserts == []
    assert appender.has_ended


async def test_a_lane_that_has_ended_does_not_continue_in_the_next_session(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    session.is_valid = False
    assert await outcomes([append(appender, log, plain(b"x"))]) == [NotLeaderOrFollower]
    session.is_valid = True
    assert await outcomes([append(appender, log, plain(b"x"))]) == [NotLeaderOrFollower]
    assert scripted.inserts == []


async def test_an_insert_that_returns_after_the_lease_is_neither_published_nor_acknowledged(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log, other = logs_of_one_lane(2)
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"x"))]
    await scripted.next_insert()
    futures += [append(appender, to, plain(b"queued")) for to in (log, other)]
    session.is_valid = False
    scripted.gate.set()
    assert await outcomes(futures) == [RequestTimedOut, NotLeaderOrFollower, NotLeaderOrFollower]
    assert nothing_is_published(log)
    assert len(scripted.inserts) == 1
    assert await stored_values(engine, log) == [(0, "x")]


async def test_a_block_of_unknown_outcome_is_not_sent_again_after_the_lease(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    scripted.faults.append("unknown")
    scripted.gate.clear()
    done = append(appender, log, plain(b"x"))
    await scripted.next_insert()
    session.is_valid = False
    scripted.gate.set()
    assert await outcomes([done]) == [RequestTimedOut]
    assert (len(scripted.inserts), nothing_is_published(log)) == (1, True)


async def test_a_duplicate_is_not_acknowledged_after_the_lease(
    appender: Appender, session: Session
) -> None:
    log = make_log()
    batch = numbered(0, 3, PRODUCER)
    assert await outcomes([append(appender, log, batch)]) == [0]
    session.is_valid = False
    assert await outcomes([append(appender, log, batch)]) == [NotLeaderOrFollower]


async def test_the_lease_is_checked_before_a_block_is_sent_and_before_it_is_published(
    scripted: ScriptedEngine,
) -> None:
    for answers, outcome in (
        ([], NotLeaderOrFollower),
        ([True], RequestTimedOut),
        ([True, True], 0),
    ):
        lease = ScriptedSession(*answers).lease()
        appender = make_appender(scripted, lease=lease)
        log = make_log()
        found = await outcomes([append(appender, log, plain(b"x"))])
        assert found == [outcome]
        assert nothing_is_published(log) == (outcome != 0)
        await ended(appender, scripted)
    assert len(scripted.inserts) == 2


async def test_abandoning_a_lane_answers_all_appends_while_an_insert_hangs(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log, other = logs_of_one_lane(2)
    scripted.gate.clear()
    futures = [append(appender, log, plain(b"x"))]
    await scripted.next_insert()
    futures += [append(appender, to, plain(b"queued")) for to in (log, other)]
    appender.abandon()
    assert all(future.done() for future in futures)
    futures.append(append(appender, log, plain(b"late")))
    assert await outcomes(futures) == [RequestTimedOut, *[NotLeaderOrFollower] * 3]
    assert scripted.inserting
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        await appender.close()
    assert nothing_is_published(log)
    assert len(scripted.inserts) == 1
    assert await stored_values(engine, log) == [(0, "x")]


async def test_abandoning_a_lane_ends_its_wait_for_the_next_attempt(
    scripted: ScriptedEngine, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.broker.log.block_store._RETRY_FIRST_S", 10 * LIMIT_S)
    log = make_log()
    scripted.faults.append("unknown")
    done = append(appender, log, plain(b"x"))
    await inserts_came(scripted, 1)
    appender.abandon()
    appender.abandon()
    async with asyncio.timeout(LIMIT_S):
        await appender.close()
    assert await outcomes([done]) == [RequestTimedOut]
    assert len(scripted.inserts) == 1


async def test_an_insert_of_a_broker_that_slept_through_the_fence_stores_no_row(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    assert await outcomes([append(appender, log, plain(b"%d" % n)) for n in range(3)]) == [0, 1, 2]
    counted = appender.resolved
    assert await outcomes([append(appender, log, plain(b"3"))]) == [3]
    scripted.gate.clear()
    asleep = append(appender, log, plain(b"zombie"))
    await scripted.next_insert()
    session.is_valid = False
    await fence(engine, SESSION, counted, session.writable_days[0])
    scripted.gate.set()
    assert await outcomes([asleep]) == [RequestTimedOut]
    assert log.high_watermark == 4
    assert await stored_values(engine, log) == [(n, str(n)) for n in range(4)]


async def test_an_unexpected_error_ends_the_lane_because_its_block_number_may_be_used(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log, other = logs_of_one_lane(2)
    scripted.faults.append("defect")
    assert await outcomes([append(appender, log, plain(b"x"))]) == [UnknownServerError]
    assert await outcomes([append(appender, other, plain(b"x"))]) == [NotLeaderOrFollower]
    assert appender.has_ended


# --- Block numbers have no hole ---


async def test_a_refused_block_burns_its_number(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults += [None, "refused"]
    assert await outcomes([append(appender, log, plain(b"a"))]) == [0]
    assert await outcomes([append(appender, log, plain(b"lost"))]) == [KafkaStorageError]
    assert await outcomes([append(appender, log, plain(b"b"))]) == [1]
    lane = scripted.inserts[0].lane
    tokens = [insert.token for insert in scripted.inserts]
    assert tokens == [f"{SESSION}-{lane}-{number}" for number in (1, 2, 2, 3)]
    assert appender.resolved == tuple(3 if n == lane else 0 for n in range(LANES))
    assert await stored_values(engine, log) == [(0, "a"), (1, "b")]


async def test_the_number_of_a_block_is_burnt_if_the_begin_of_its_transaction_is_refused(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    batch = batch_of(
        Record(value=b"lost"),
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    begins = PendingAppend(log, batch.data, header_of(batch.data), told.set_result)
    begins.verified = log.verifying.setdefault(PRODUCER, object())
    scripted.faults += ["refused"]
    appender.append(begins)
    assert isinstance(await told, KafkaStorageError)
    assert await outcomes([append(appender, log, plain(b"a"))]) == [0]
    lane = scripted.inserts[0].lane
    sent = [(insert.table, insert.token) for insert in scripted.inserts]
    assert sent == [
        ("open_transaction_versions", f"{SESSION}-{lane}-1-begun"),
        ("messages", f"{SESSION}-{lane}-1"),
        ("messages", f"{SESSION}-{lane}-2"),
    ]
    assert await stored_values(engine, log) == [(0, "a")]


async def test_burning_a_number_finds_a_block_reported_as_refused_but_stored(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.faults.append("refused though stored")
    futures = [append(appender, log, batch) for batch in (numbered(0, 2, PRODUCER), plain(b"x"))]
    assert await outcomes(futures) == [0, 2]
    assert await outcomes([append(appender, log, numbered(0, 2, PRODUCER))]) == [0]
    assert [row.offset for row in tail_rows(log)] == [0, 1, 2]
    assert len(await stored_values(engine, log)) == 3
    assert sum(appender.resolved) == 1


@pytest.mark.parametrize(
    ("faults", "number"),
    [
        (["token used though stored"], 1),
        (["unknown though stored", "token used though stored"], 1),
        (["token used"], 2),
        (["torn"], 2),
        (["torn", None, "torn"], 3),  # in between is the attempt to burn
    ],
)
async def test_a_block_whose_number_is_taken_but_whose_rows_are_missing_gets_the_next_number(
    engine: EmbeddedEngine,
    scripted: ScriptedEngine,
    appender: Appender,
    faults: list[str | None],
    number: int,
) -> None:
    log = make_log()
    scripted.faults += faults
    assert await outcomes([append(appender, log, plain(b"a", b"b"))]) == [0]
    assert await outcomes([append(appender, log, plain(b"c"))]) == [2]
    assert await stored_values(engine, log) == [(0, "a"), (1, "b"), (2, "c")]
    assert sum(appender.resolved) == number + 1
    await fence(engine, SESSION, [0] * LANES, TODAY)
    assert len(await stored_values(engine, log)) == 3


@pytest.mark.parametrize("faults", [["refused"], ["unknown"], ["unknown though stored"] * 2])
async def test_burning_a_number_is_repeated_until_its_outcome_is_known(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender, faults: list[str]
) -> None:
    log = make_log()
    scripted.faults += ["refused", *faults]
    scripted.failing_rows.append("uniqExact(append_time)")
    assert await outcomes([append(appender, log, plain(b"lost"))]) == [KafkaStorageError]
    assert await outcomes([append(appender, log, plain(b"x"))]) == [0]
    assert await stored_values(engine, log) == [(0, "x")]
    assert sum(appender.resolved) == 2


async def test_a_lease_that_ends_during_a_burn_leaves_the_number_unresolved(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    scripted.faults += ["refused", "unknown"]
    done = append(appender, log, plain(b"x"))
    await inserts_came(scripted, 2)
    session.is_valid = False
    assert await outcomes([done]) == [RequestTimedOut]
    assert (len(scripted.inserts), sum(appender.resolved)) == (2, 0)


@pytest.mark.parametrize("seed", seeds(3))
async def test_with_random_faults_a_successor_fences_the_blocks_in_flight(
    engine: EmbeddedEngine, scripted: ScriptedEngine, session: Session, seed: int
) -> None:
    """All that is acknowledged is there, once, and the log ends where the fence found it."""
    rnd = random.Random(seed)
    faults = [None, None, None, "refused", "refused though stored", "unknown though stored", "torn"]
    scripted.faults += rnd.choices(faults, k=40)
    appender = make_appender(scripted, lanes=1, lease=session.lease())
    log = make_log()
    acknowledged: dict[int, str] = {}
    counted = appender.resolved

    async def produce(name: int) -> None:
        number = 0
        while True:
            value = f"{name}/{number}"
            try:
                appended = await append(appender, log, plain(value.encode()))
            except KafkaStorageError:
                continue
            except (NotLeaderOrFollower, RequestTimedOut):
                return
            acknowledged[appended.base_offset] = value
            number += 1

    clients = [asyncio.create_task(produce(name)) for name in range(4)]
    async with asyncio.timeout(LIMIT_S):
        while len(acknowledged) < 20:
            await scripted.next_insert()
            if rnd.random() < 0.2:
                counted = appender.resolved
        scripted.gate.clear()
        await scripted.next_insert()
    session.is_valid = False
    await fence(engine, SESSION, counted, session.writable_days[0])
    end = await stored_values(engine, log)
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*clients)
        await appender.close()
    assert await stored_values(engine, log) == end
    assert [offset for offset, _ in end] == list(range(len(end)))
    assert acknowledged.items() <= dict(end).items()


# --- Days and times ---


async def test_append_times_stay_within_the_days_of_the_session(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    for days in (range(TODAY - 2, TODAY), range(TODAY + 1, TODAY + 3)):
        session.writable_days = days
        assert await outcomes([append(appender, log, plain(b"x"))]) == [NotLeaderOrFollower]
    assert scripted.inserts == []
    session.writable_days = range(TODAY - 1, TODAY + 1)  # renewed
    assert await outcomes([append(appender, log, plain(b"x"))]) == [0]


async def test_a_block_of_a_day_outside_the_session_is_not_sent_again(
    scripted: ScriptedEngine, appender: Appender, session: Session
) -> None:
    log = make_log()
    scripted.faults.append("unknown")
    scripted.gate.clear()
    done = append(appender, log, plain(b"x"))
    await scripted.next_insert()
    session.writable_days = range(TODAY + 1, TODAY + 3)
    scripted.gate.set()
    assert await outcomes([done]) == [RequestTimedOut]
    assert (len(scripted.inserts), appender.has_ended) == (1, True)


async def append_times(engine: EmbeddedEngine, log: PartitionLog) -> list[int]:
    rows = await engine.rows(
        "SELECT toUnixTimestamp64Milli(append_time) FROM messages WHERE topic_id = {id:UUID}"
        " ORDER BY offset",
        {"id": str(log.topic_id)},
    )
    return [time_ms for (time_ms,) in rows]


async def test_the_floor_of_append_times_is_the_time_of_the_block_in_flight_or_the_clock(
    engine: EmbeddedEngine,
    scripted: ScriptedEngine,
    appender: Appender,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = make_log()
    now_ms = start_ms = NOON
    monkeypatch.setattr("brokerhouse.broker.log.lane.wall_ms", lambda: now_ms)
    assert appender.append_floor_ms() == now_ms
    scripted.gate.clear()
    done = append(appender, log, plain(b"x"))
    await scripted.next_insert()
    now_ms += 5000
    assert appender.append_floor_ms() == start_ms
    scripted.gate.set()
    await done
    assert appender.append_floor_ms() == start_ms + 5000
    now_ms = start_ms + 1000  # the clock is put back; a promise is not
    await appender.no_row_before(0)
    assert appender.append_floor_ms() == start_ms + 5000
    await append(appender, log, plain(b"y"))
    assert await append_times(engine, log) == [start_ms, start_ms + 5000]


async def test_a_floor_of_append_times_holds_for_every_lane(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    logs = [make_log(make_topic(partitions=LANES), n) for n in range(LANES)]
    for _ in range(20):
        floor_ms = appender.append_floor_ms()
        before = {log: log.next_offset for log in logs}
        await outcomes([append(appender, log, plain(b"x")) for log in logs])
        for log in logs:
            assert min((await append_times(engine, log))[before[log] :]) >= floor_ms


# --- Handing over ---


async def test_releasing_a_partition_waits_for_its_block_and_refuses_queued_appends(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    leaving, staying = logs_of_one_lane(2)
    scripted.gate.clear()
    in_flight = append(appender, leaving, plain(b"x"))
    await scripted.next_insert()
    queued = [append(appender, log, plain(b"y")) for log in (leaving, staying, leaving)]
    releasing = asyncio.create_task(appender.release([leaving]))
    await asyncio.wait([releasing], timeout=0.05)
    assert not releasing.done()
    assert (queued[0].done(), queued[1].done()) == (True, False)
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        await releasing
    assert in_flight.done()
    late = append(appender, leaving, plain(b"z"))
    found = await outcomes([in_flight, *queued, late])
    assert found == [0, NotLeaderOrFollower, 0, NotLeaderOrFollower, NotLeaderOrFollower]
    assert await stored_values(engine, leaving) == [(0, "x")]
    assert await outcomes([append(appender, staying, plain(b"z"))]) == [1]


async def test_releasing_a_partition_wakes_waiting_fetches(appender: Appender) -> None:
    log = make_log()
    woken: list[PartitionLog] = []
    log.waiters.add(woken.append)
    await appender.release([log])
    assert woken == [log]
    assert isinstance(log.closed, NotLeaderOrFollower)


async def test_a_closed_partition_reports_the_first_reason() -> None:
    log = make_log()
    log.close(UnknownTopicOrPartition("deleted"))
    log.close(NotLeaderOrFollower("elsewhere"))
    assert isinstance(log.closed, UnknownTopicOrPartition)


async def test_a_partition_with_a_block_in_flight_is_not_handed_over_when_the_session_ends(
    scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    done = append(appender, log, plain(b"x"))
    await scripted.next_insert()
    releasing = asyncio.create_task(appender.release([log]))
    appender.abandon()
    scripted.gate.set()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(NotLeaderOrFollower):
            await releasing
    assert await outcomes([done]) == [RequestTimedOut]


# --- A shard that is away ---


async def test_appends_to_a_shard_that_is_away_fail_at_once_and_work_when_it_is_back(
    engine: EmbeddedEngine, scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log()
    first, second = numbered(0, 2, PRODUCER), numbered(2, 2, PRODUCER)
    scripted.gate.clear()
    futures = [append(impatient, log, first)]
    await scripted.next_insert()
    futures.append(append(impatient, log, second))
    assert await outcomes(futures) == [RequestTimedOut, NotLeaderOrFollower]
    assert await outcomes([append(impatient, log, second)]) == [NotLeaderOrFollower]
    assert nothing_is_published(log)
    scripted.gate.set()
    await impatient.settled()
    assert [row.offset for row in tail_rows(log)] == [0, 1]
    assert await repeated(impatient, log, first, second) == [0, 2]
    assert len(await stored_values(engine, log)) == 4
    assert not impatient.has_ended


async def test_a_block_that_was_not_stored_after_all_restores_the_sequences_of_its_producers(
    engine: EmbeddedEngine, scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log()
    await repeated(impatient, log, numbered(0, 1, PRODUCER))
    scripted.gate.clear()
    scripted.faults.append("refused")
    batch = numbered(1, 2, PRODUCER)
    assert await outcomes([append(impatient, log, batch)]) == [RequestTimedOut]
    scripted.gate.set()
    await impatient.settled()
    assert log.high_watermark == log.next_offset == 1
    assert await repeated(impatient, log, batch) == [1]
    assert [value for _, value in await stored_values(engine, log)] == ["7/0/0", "7/0/1", "7/0/2"]


async def test_the_same_block_is_repeated_for_as_long_as_the_shard_is_away(
    scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log()
    scripted.faults += ["unknown", "unknown though stored", "unknown"]
    assert await outcomes([append(impatient, log, plain(b"x"))]) == [RequestTimedOut]
    await impatient.settled()
    assert {insert.token for insert in scripted.inserts} == {scripted.inserts[0].token}
    assert (len(scripted.inserts), log.high_watermark) == (4, 1)


async def test_a_lane_that_waits_for_an_answer_does_not_hold_up_other_lanes(
    scripted: ScriptedEngine, impatient: Appender
) -> None:
    topic = make_topic(partitions=2)
    stuck, free = make_log(topic, 0), make_log(topic, 1)
    scripted.rows_gate.clear()  # of which only the one whose producer is unknown needs any
    stuck.first_fresh_producer_id = NOTHING_FRESH
    batch = numbered(0, 1, PRODUCER)
    assert await outcomes([append(impatient, stuck, batch)]) == [RequestTimedOut]
    assert await repeated(impatient, free, batch) == [0]
    assert await outcomes([append(impatient, stuck, batch)]) == [NotLeaderOrFollower]
    scripted.rows_gate.set()
    assert await repeated(impatient, stuck, batch) == [0]


async def test_an_append_times_out_when_its_producer_cannot_be_read_from_a_shard_that_is_away(
    engine: EmbeddedEngine, scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log()
    await repeated(impatient, log, numbered(0, 1, PRODUCER))
    log = PartitionLog(log.topic, 0, 0, 1, NOTHING_FRESH)
    scripted.rows_gate.clear()
    batch = numbered(1, 1, PRODUCER)
    futures = [append(impatient, log, batch) for _ in range(2)]
    assert await outcomes(futures) == [RequestTimedOut] * 2
    scripted.rows_gate.set()
    await impatient.settled()
    assert await repeated(impatient, log, batch) == [1]
    assert len(await stored_values(engine, log)) == 2


async def test_a_first_batch_that_was_refused_is_not_overtaken_by_the_next(
    scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log()
    scripted.gate.clear()
    slow = append(impatient, log, plain(b"x"))
    assert await outcomes([slow]) == [RequestTimedOut]
    first, second = numbered(0, 2, PRODUCER), numbered(2, 1, PRODUCER)
    assert await outcomes([append(impatient, log, first)]) == [NotLeaderOrFollower]
    scripted.gate.set()
    await impatient.settled()
    assert await outcome_of(impatient, log, second) is OutOfOrderSequenceNumber
    assert await repeated(impatient, log, first, second) == [1, 3]


async def test_of_several_refused_batches_the_earliest_has_to_come_first(
    engine: EmbeddedEngine, scripted: ScriptedEngine, impatient: Appender
) -> None:
    log = make_log(first_fresh=NOTHING_FRESH)
    log.has_forgotten = True  # so that a producer may begin anywhere
    first, second, third = (numbered(n, 1, PRODUCER) for n in range(5, 8))
    scripted.rows_gate.clear()
    futures = [append(impatient, log, first)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is asked for in the log, and no other is taken with it
    futures += [append(impatient, log, batch) for batch in (second, third)]
    assert await outcomes(futures) == [RequestTimedOut, NotLeaderOrFollower, NotLeaderOrFollower]
    scripted.rows_gate.set()
    await impatient.settled()
    for batch in (third, second):
        assert await outcome_of(impatient, log, batch) is OutOfOrderSequenceNumber
    earlier = numbered(4, 1, PRODUCER)  # refused by an earlier leader, so not known of here
    assert await repeated(impatient, log, earlier, first, second, third) == [0, 1, 2, 3]
    assert len(await stored_values(engine, log)) == 4


async def test_a_batch_that_an_earlier_leader_refused_is_not_overtaken_by_the_next(
    appender: Appender,
) -> None:
    log = PartitionLog(make_topic(), 0, 0, 0, 0, leader_epoch=3)
    first, second = numbered(0, 2, PRODUCER), numbered(2, 1, PRODUCER)
    assert await outcomes([append(appender, log, second)]) == [OutOfOrderSequenceNumber]
    assert await repeated(appender, log, first, second) == [0, 2]


async def test_a_producer_whose_rows_were_deleted_is_forgotten_only_if_a_checkpoint_says_so(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log()
    await repeated(appender, log, numbered(0, 3, PRODUCER), plain(b"x"))
    await engine.execute(f"DELETE FROM messages WHERE producer_id = {PRODUCER}")
    await appender.settled()
    taken = PartitionLog(log.topic, 0, 0, 4, NOTHING_FRESH, leader_epoch=3)
    unknown = numbered(3, 1, PRODUCER)
    assert await outcomes([append(appender, taken, unknown)]) == [OutOfOrderSequenceNumber]
    for forgot, outcome in (("false", OutOfOrderSequenceNumber), ("DEFAULT", 4)):
        await engine.execute(
            f"INSERT INTO partition_checkpoints VALUES ('{log.topic_id}', 0, 0, 4, {forgot})"
        )
        assert await outcomes([append(appender, taken, unknown)]) == [outcome]


# --- Leader epochs ---


async def test_rows_and_batches_have_the_leader_epoch_of_their_partition(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    topic = make_topic(partitions=LANES * 3)
    logs = [PartitionLog(topic, LANES * n, 0, 0, 0, leader_epoch=n * 5) for n in range(3)]
    scripted.gate.clear()
    futures = [append(appender, logs[0], plain(b"first"))]
    await scripted.next_insert()
    futures += [append(appender, log, plain(b"x", b"y")) for log in logs]  # one block
    scripted.gate.set()
    await outcomes(futures)
    assert len(scripted.inserts) == 2
    for log in logs:
        assert {row.leader_epoch for row in tail_rows(log)} == {log.leader_epoch}
    rows = await engine.rows("SELECT DISTINCT partition, leader_epoch FROM messages ORDER BY 1")
    assert rows == [[LANES * n, n * 5] for n in range(3)]
