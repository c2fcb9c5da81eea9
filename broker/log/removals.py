"""Removes from the log what compaction decided: the batches of `compaction_removals`.

The job decides, and writes there and nowhere else; the leader of a partition removes, because it
knows where the log ends and what it keeps in memory. Anybody with the SQL password can write a
batch, so nothing in one is believed:
* Rows go only from a topic whose cleanup.policy has `compact` now, from the log start on, and
  below the last record: that one stays, whatever is asked, and with it the end of the log.
* The floor of the next offset is stored before the first row goes.
* What was read before is forgotten after it: a consumer must not find a value in a cache that is
  kept longer than the tombstone behind it.

A batch is noted in `compaction_applied` when its rows are gone. One that a crash cut short is
applied again, which changes nothing more.

A DELETE reads the key columns of every part that it changes and writes their row mask anew, however
few rows go: 0.6 s for 10 M rows (measured, 2 cores). So batches share statements, up to the size of
a query that every ClickHouse takes. The disk is given back when parts are merged, or by
broker/log/sweep.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from broker.led_partitions import LedPartitions
from broker.log.partition import PartitionLog
from broker.log.reader import ColdReader
from broker.log.row_sources import RowSources
from broker.topics import TopicCatalog
from protocol.errors import KafkaError, NotLeaderOrFollower
from storage.engine import Engine, EngineError, Parameter

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_LATE_MS = 600_000  # how much later than its created_at a row may become visible
_BATCHES_AT_ONCE = 16
_RANGES_MAX = 50_000  # of one batch; the job writes fewer
_NUMBERS_MAX = 28_000  # of one DELETE: 8 bytes each at most, and a query may have 256 KiB
_SPAN_MAX = 9_999_999  # offsets between the first and the last of a piece: numbers of 7 digits
_PIECES_MAX = 100
_POLL_FIRST_S, _POLL_MAX_S = 0.05, 1.0

_PENDING = (
    "SELECT batch_id, any(run_id), any(topic_id), any(partition), any(length(ranges)),"
    " min(created_at) AS since"
    " FROM compaction_removals"
    " WHERE created_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND notEmpty(ranges)"
    " AND batch_id NOT IN (SELECT batch_id FROM compaction_applied)"
    " GROUP BY batch_id ORDER BY since, batch_id LIMIT 100000"
)
_RANGES = (
    "SELECT ranges.first, ranges.last FROM compaction_removals"
    " WHERE batch_id = {batch_id:UUID} AND length(ranges) <= {max:UInt32}"
    " ORDER BY created_at LIMIT 1"
)
_NOTE = (
    "INSERT INTO compaction_applied (batch_id, run_id, topic_id, partition, removed, refused)"
    " SELECT {batch_id:UUID}, {run_id:UUID}, {topic_id:UUID}, {partition:Int32},"
    " {removed:UInt64}, {refused:String}"
)
_FLOOR = (
    "INSERT INTO partition_checkpoints (topic_id, partition, log_start_offset, next_offset_floor)"
    " SELECT {topic_id:UUID}, {partition:Int32}, 0, {floor:Int64}"
)
_UNDER_WAY = (
    "SELECT count(), max(latest_fail_reason) FROM system.mutations"
    " WHERE database = currentDatabase() AND table = 'messages' AND NOT is_done"
)
_NOW = "SELECT toUnixTimestamp64Milli(now64(3))"


class Refused(Exception):
    """A batch that is not applied; says why, for whoever wrote it."""


Range = tuple[int, int]
"""First and last offset, both included."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets from `first` to `last`: all of them, only some, or all but some.

    `numbers` are offsets counted from `first`.
    """

    first: int
    last: int
    numbers: tuple[int, ...] = ()
    kept: bool = True

    @property
    def condition(self) -> str:
        """In SQL, on the column `offset`. Numbers alone, which need no parameters."""
        span = f"offset >= {self.first} AND offset <= {self.last}"
        if not self.numbers:
            return span
        word = "NOT IN" if self.kept else "IN"
        return f"{span} AND offset - {self.first} {word} ({','.join(map(str, self.numbers))})"


def pieces(ranges: Iterable[Range], numbers_max: int = _NUMBERS_MAX) -> Iterator[Piece]:
    """The same offsets, as few pieces of bounded size. `ranges` ascend and do not overlap.

    Between two ranges are offsets that stay. A piece names what goes or what stays, whichever is
    less: of a log that has mostly been overwritten, little stays.
    """
    taken: list[Range] = []
    gone = stay = 0
    for first, last in ranges:
        size = last - first + 1
        between = first - taken[-1][1] - 1 if taken else 0
        fits = min(gone + size, stay + between) <= numbers_max
        if taken and not (fits and last - taken[0][0] <= _SPAN_MAX):
            yield _piece(taken, gone, stay)
            taken, gone, stay, between = [], 0, 0, 0
        taken.append((first, last))
        gone, stay = gone + size, stay + between
    if taken:
        yield _piece(taken, gone, stay)


def _piece(ranges: Sequence[Range], gone: int, stay: int) -> Piece:
    first, last = ranges[0][0], ranges[-1][1]
    if stay <= gone:
        gaps = pairwise(ranges)
        numbers = (n for (_, a), (b, _) in gaps for n in range(a + 1 - first, b - first))
        return Piece(first, last, tuple(numbers))
    numbers = (n for a, b in ranges for n in range(a - first, b + 1 - first))
    return Piece(first, last, tuple(numbers), kept=False)


def clipped(ranges: Iterable[Range], start: int, end: int) -> list[Range]:
    """What of them lies in start <= offset < end, in order, none twice."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        first, last = max(first, start), min(last, end - 1)
        if found:
            first = max(first, found[-1][1] + 1)
        if first <= last:
            found.append((first, last))
    return found


@dataclass(frozen=True, slots=True)
class _Batch:
    batch_id: UUID
    run_id: UUID
    topic_id: UUID
    partition: int
    ranges: int


@dataclass(slots=True)
class _Work:
    """What one DELETE on one engine is to remove."""

    wanted: list[tuple[PartitionLog, Piece]] = field(default_factory=list)
    numbers: int = 0

    def has_room_for(self, piece: Piece) -> bool:
        return not self.wanted or (
            self.numbers + len(piece.numbers) <= _NUMBERS_MAX and len(self.wanted) < _PIECES_MAX
        )

    def add(self, partition: PartitionLog, piece: Piece) -> None:
        self.wanted.append((partition, piece))
        self.numbers += len(piece.numbers)

    def condition(self) -> tuple[str, dict[str, Parameter]]:
        params: dict[str, Parameter] = {}
        places: dict[PartitionLog, int] = {}
        found = []
        for partition, piece in self.wanted:
            n = places.setdefault(partition, len(places))
            params[f"topic{n}"] = partition.topic.name
            params[f"topic_id{n}"] = str(partition.topic_id)
            params[f"partition{n}"] = partition.partition
            found.append(
                f"(topic = {{topic{n}:String}} AND topic_id = {{topic_id{n}:UUID}}"
                f" AND partition = {{partition{n}:Int32}} AND {piece.condition})"
            )
        return " OR ".join(found), params


class Removals:
    """Applies batches for the partitions that this broker leads."""

    def __init__(
        self,
        engines: Callable[[], Mapping[str, Engine]],
        topics: TopicCatalog,
        row_sources: RowSources,
        reader: ColdReader,
        answers_for: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`engines`: by shard, those that can be asked now; batches are written and noted there.

        `answers_for`: whether this broker refuses what was written to that shard for topics that
        do not exist, which nobody leads.
        """
        self._engines = engines
        self._topics = topics
        self._partitions = LedPartitions(topics)
        self._row_sources = row_sources
        self._reader = reader
        self._answers_for = answers_for
        self._settled_ms: dict[str, int] = {}
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. `task` ends only by a defect."""
        self.task = asyncio.create_task(self._run(), name="removals")

    async def close(self) -> None:
        """Stop. A DELETE that has begun goes on in the engine; the batch is applied again later."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Apply all that is pending here."""
        for shard, engine in self._engines().items():
            try:
                await self._round(shard, engine)
            except EngineError as error:
                log.warning("compaction of %s waits: %s", shard or "the log", error)

    async def _round(self, shard: str, engine: Engine) -> None:
        asked_ms = (await engine.rows(_NOW))[0][0]
        rows = await engine.rows(_PENDING, {"since_ms": self._settled_ms.get(shard, 0)})
        if not rows:
            # What is older needs no look again: the history may be long.
            self._settled_ms[shard] = asked_ms - _LATE_MS
            return
        led: list[tuple[_Batch, PartitionLog]] = []
        for row in rows:
            batch = _batch(row)
            try:
                partition = self._led(batch)
            except Refused as why:
                if self._may_refuse(shard, batch):
                    await self._note(engine, batch, 0, str(why))
                continue
            if partition is not None:
                led.append((batch, partition))
        for start in range(0, len(led), _BATCHES_AT_ONCE):
            await self._apply(engine, led[start : start + _BATCHES_AT_ONCE])

    def _led(self, batch: _Batch) -> PartitionLog | None:
        """None where another broker leads the partition. Raises `Refused`."""
        topic = self._topics.by_id(batch.topic_id)
        if topic is None:
            raise Refused("there is no such topic")
        try:
            partition = self._partitions.log_of(topic, batch.partition)
        except NotLeaderOrFollower:
            return None
        except KafkaError as error:
            raise Refused(str(error)) from error
        if "compact" not in topic.config.cleanup_policy:
            raise Refused(f"the cleanup.policy of {topic.name} has no compact")
        if batch.ranges > _RANGES_MAX:
            raise Refused(f"a batch may have {_RANGES_MAX} ranges, this one has {batch.ranges}")
        return None if partition.closed is not None else partition

    def _may_refuse(self, shard: str, batch: _Batch) -> bool:
        topic = self._topics.by_id(batch.topic_id)
        if topic is not None and 0 <= batch.partition < topic.partitions:
            return True  # this broker leads it
        return self._answers_for(shard)

    async def _apply(self, engine: Engine, batches: Sequence[tuple[_Batch, PartitionLog]]) -> None:
        work: dict[Engine, list[_Work]] = {}
        removed: dict[_Batch, int] = {}
        below: dict[PartitionLog, int] = {}
        for batch, partition in batches:
            # The last record stays, so the end of the log is what it was.
            ranges = clipped(
                await _ranges(engine, batch),
                partition.log_start_offset,
                partition.high_watermark - 1,
            )
            removed[batch] = 0
            if not ranges:
                continue
            below[partition] = max(below.get(partition, 0), ranges[-1][1] + 1)
            for piece in pieces(ranges):
                for place in self._row_sources.engines(partition):
                    removed[batch] += await _count(place, partition, piece)
                    statements = work.setdefault(place, [_Work()])
                    if not statements[-1].has_room_for(piece):
                        statements.append(_Work())
                    statements[-1].add(partition, piece)
        for partition in below:
            await self._store_floor(partition)
        try:
            for place, statements in work.items():
                for statement in statements:
                    await _delete(place, statement)
        finally:  # also where it is cut short: some rows may be gone
            for partition, offset in below.items():
                partition.tail.hide_below(offset)
                partition.has_forgotten = True
                self._reader.forget(partition)
        for batch, partition in batches:
            log.info("compaction removed %d rows of %s", removed[batch], partition)
            await self._note(engine, batch, removed[batch], "")

    async def _store_floor(self, partition: PartitionLog) -> None:
        for place in self._row_sources.engines(partition):
            await place.execute(
                _FLOOR,
                {
                    "topic_id": str(partition.topic_id),
                    "partition": partition.partition,
                    "floor": partition.high_watermark,
                },
            )

    async def _note(self, engine: Engine, batch: _Batch, removed: int, refused: str) -> None:
        if refused:
            log.warning("batch %s of compaction is refused: %s", batch.batch_id, refused)
        await engine.execute(
            _NOTE,
            {
                "batch_id": str(batch.batch_id),
                "run_id": str(batch.run_id),
                "topic_id": str(batch.topic_id),
                "partition": batch.partition,
                "removed": removed,
                "refused": refused,
            },
        )


def _batch(row: Sequence[object]) -> _Batch:
    batch_id, run_id, topic_id, partition, ranges, _ = map(str, row)
    return _Batch(UUID(batch_id), UUID(run_id), UUID(topic_id), int(partition), int(ranges))


async def _ranges(engine: Engine, batch: _Batch) -> list[Range]:
    rows = await engine.rows(_RANGES, {"batch_id": str(batch.batch_id), "max": _RANGES_MAX})
    if not rows:
        return []
    firsts, lasts = rows[0]
    assert isinstance(firsts, list)
    assert isinstance(lasts, list)
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


async def _count(engine: Engine, partition: PartitionLog, piece: Piece) -> int:
    work = _Work()
    work.add(partition, piece)
    condition, params = work.condition()
    rows = await engine.rows(f"SELECT count() FROM messages WHERE {condition}", params)
    count: int = rows[0][0]
    return count


async def _delete(engine: Engine, work: _Work) -> None:
    """Returns when the rows are gone. Raises `EngineError`.

    The engine works in the background, and is asked: to wait inside the statement would keep a
    reader from consumers, for as long as the disk is low.
    """
    condition, params = work.condition()
    await engine.execute(
        f"DELETE FROM messages WHERE {condition} SETTINGS lightweight_deletes_sync = 0", params
    )
    pause_s = _POLL_FIRST_S
    told = ""
    while True:
        left, why = (await engine.rows(_UNDER_WAY))[0]
        if left == 0:
            return
        if why and why != told:
            told = str(why)
            log.warning("the engine cannot remove rows, and tries again: %s", told)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _POLL_MAX_S)
