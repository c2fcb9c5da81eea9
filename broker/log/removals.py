"""Removes the rows that compaction chose: the batches in `compaction_removals`.

The job only writes to that table. The leader of a partition removes the rows, because it knows
where the log ends and what is cached. Anybody with the SQL password can write a batch, so
nothing in a batch is trusted:
* Rows are removed only from a topic whose cleanup.policy has `compact` now, from the log start on,
  and below the last record. The last record always stays, and with it the end of the log.
* The states of producers (producer_states.py) and the floor of the next offset are stored before
  the first row is removed.
* Caches are emptied after the removal: a consumer must not read an old value from a cache when
  the tombstone behind it has been removed.

A batch is noted in `compaction_applied` when its rows are removed. A batch that a crash interrupted
is applied again, which has no further effect.

A DELETE reads the key columns of every part that it changes and rewrites their row mask, however
few rows it removes: 0.6 s for 10 M rows (measured, 2 cores). So batches share statements, up to the
size of a query that every ClickHouse accepts. The disk space is given back when parts are merged,
or by broker/log/sweep.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol
from uuid import UUID

from brokerhouse.broker.led_partitions import LedPartitions
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.producer_states import ProducerStates
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.row_sources import RowSources
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Backoff, Periodic
from brokerhouse.protocol.errors import KafkaError, NotLeaderOrFollower
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Parameter, Row

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_REFUSE_EVERY_S = 10.0
"""While no topic is compacted, batches can only be refused, and that is not urgent."""
_LATE_MS = 600_000  # how much later than its created_at a row may become visible
_SETTLE_EVERY_S = 60.0
_BATCHES_AT_ONCE = 16
_RANGES_MAX = 50_000  # of one batch; the job writes fewer
_NUMBERS_MAX = 28_000  # of one DELETE: 8 bytes each at most, and a query may have 256 KiB
_SPAN_MAX = 9_999_999  # from the first to the last offset of a piece: numbers of 7 digits
_PIECES_MAX = 100
_POLL_FIRST_S, _POLL_MAX_S = 0.05, 1.0

_NOW = "SELECT toUnixTimestamp64Milli(now64(3))"


class RemovalRefused(Exception):
    """A batch is not applied. The message tells its author why."""


class RemovalShard(Protocol):
    """A shard that has batches in its tables."""

    @property
    def name(self) -> str: ...

    @property
    def patient(self) -> Engine:
        """Its engine, for work in the background."""

    def is_housekeeper(self) -> bool:
        """Whether this broker refuses batches of topics that do not exist and have no leader."""


class RemovalShards(Protocol):
    def reachable(self) -> Iterable[RemovalShard]:
        """The shards that answer now."""


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

    Between two ranges are offsets that stay. A piece names the offsets that are removed or those
    that stay, whichever are fewer: of a log that has mostly been overwritten, little stays.
    """
    gathered: list[Range] = []
    gone = stay = 0
    for first, last in ranges:
        size = last - first + 1
        between = first - gathered[-1][1] - 1 if gathered else 0
        fits = min(gone + size, stay + between) <= numbers_max
        if gathered and not (fits and last - gathered[0][0] <= _SPAN_MAX):
            yield _piece(gathered, gone, stay)
            gathered, gone, stay, between = [], 0, 0, 0
        gathered.append((first, last))
        gone, stay = gone + size, stay + between
    if gathered:
        yield _piece(gathered, gone, stay)


def _piece(ranges: Sequence[Range], gone: int, stay: int) -> Piece:
    first, last = ranges[0][0], ranges[-1][1]
    if stay <= gone:
        gaps = pairwise(ranges)
        numbers = (n for (_, a), (b, _) in gaps for n in range(a + 1 - first, b - first))
        return Piece(first, last, tuple(numbers))
    numbers = (n for a, b in ranges for n in range(a - first, b + 1 - first))
    return Piece(first, last, tuple(numbers), kept=False)


def clipped(ranges: Iterable[Range], start: int, end: int) -> list[Range]:
    """The part of the ranges in start <= offset < end, in order, no offset twice."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        first, last = max(first, start), min(last, end - 1)
        if found:
            first = max(first, found[-1][1] + 1)
        if first <= last:
            found.append((first, last))
    return found


@dataclass(frozen=True, slots=True)
class _RemovalBatch:
    batch_id: UUID
    run_id: UUID
    topic_id: UUID
    partition: int
    ranges: int


@dataclass(slots=True)
class _Deletion:
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
        numbers: dict[PartitionLog, int] = {}
        found = []
        for partition, piece in self.wanted:
            n = numbers.setdefault(partition, len(numbers))
            params[f"topic{n}"] = partition.topic.name
            params[f"topic_id{n}"] = str(partition.topic_id)
            params[f"partition{n}"] = partition.partition
            found.append(
                f"(topic = {{topic{n}:String}} AND topic_id = {{topic_id{n}:UUID}}"
                f" AND partition = {{partition{n}:Int32}} AND {piece.condition})"
            )
        return " OR ".join(found), params


class Removals(Periodic):
    """Applies batches for the partitions that this broker leads.

    Closing it does not end a DELETE that has begun in the engine; the batch is applied again later.
    """

    def __init__(
        self,
        shards: RemovalShards,
        topics: TopicCatalog,
        row_sources: RowSources,
        reader: ColdReader,
        producer_states: ProducerStates,
    ) -> None:
        """Batches are read from, and noted on, the `shards`."""
        super().__init__("removals", _EVERY_S, self._round_if_due)
        self._shards = shards
        self._topics = topics
        self._partitions = LedPartitions(topics)
        self._row_sources = row_sources
        self._reader = reader
        self._producer_states = producer_states
        self._settled_ms: dict[str, int] = {}
        self._settled_s: dict[str, float] = {}
        self._looked_s = -_REFUSE_EVERY_S

    async def _round_if_due(self) -> None:
        waited_s = time.monotonic() - self._looked_s
        if waited_s >= _REFUSE_EVERY_S or self._topics.known.has_compacted:
            await self.round()

    async def round(self) -> None:
        """Apply all batches that are pending on the shards."""
        self._looked_s = time.monotonic()
        for shard in self._shards.reachable():
            try:
                await self._round(shard)
            except EngineError as error:
                log.warning("compaction on shard %s is postponed: %s", shard.name, error)

    async def _round(self, shard: RemovalShard) -> None:
        now_s = time.monotonic()
        settles = now_s - self._settled_s.get(shard.name, -_SETTLE_EVERY_S) >= _SETTLE_EVERY_S
        asked_ms: int = (await shard.patient.rows(_NOW))[0][0] if settles else 0
        since = {"since_ms": self._settled_ms.get(shard.name, 0)}
        # There are seldom any, and to see that costs a third of the other query.
        rows = await shard.patient.rows(query("has_removals"), since)
        if rows:
            rows = await shard.patient.rows(query("pending_removals"), since)
        if not rows:
            if settles:
                # Older batches need not be looked at again: the history may be long.
                self._settled_ms[shard.name] = asked_ms - _LATE_MS
                self._settled_s[shard.name] = now_s
            return
        led: list[tuple[_RemovalBatch, PartitionLog]] = []
        for row in rows:
            batch = _batch(row)
            try:
                partition = self._led(batch)
            except RemovalRefused as why:
                if self._may_refuse(shard, batch):
                    await self._note(shard.patient, batch, 0, str(why))
                continue
            if partition is not None:
                led.append((batch, partition))
        for start in range(0, len(led), _BATCHES_AT_ONCE):
            await self._apply(shard.patient, led[start : start + _BATCHES_AT_ONCE])

    def _led(self, batch: _RemovalBatch) -> PartitionLog | None:
        """The open log, or None if another broker leads it. Raises `RemovalRefused`."""
        topic = self._topics.by_id(batch.topic_id)
        if topic is None:
            raise RemovalRefused("The topic does not exist.")
        try:
            partition = self._partitions.log_of(topic, batch.partition)
        except NotLeaderOrFollower:
            return None
        except KafkaError as error:
            raise RemovalRefused(str(error)) from error
        if "compact" not in topic.config.cleanup_policy:
            raise RemovalRefused(f"The cleanup.policy of {topic.name} does not contain compact.")
        if batch.ranges > _RANGES_MAX:
            raise RemovalRefused(
                f"A batch may have {_RANGES_MAX} ranges. This one has {batch.ranges}."
            )
        return None if partition.closed is not None else partition

    def _may_refuse(self, shard: RemovalShard, batch: _RemovalBatch) -> bool:
        topic = self._topics.by_id(batch.topic_id)
        if topic is not None and 0 <= batch.partition < topic.partitions:
            return True  # this broker leads it
        return shard.is_housekeeper()

    async def _apply(
        self, engine: Engine, batches: Sequence[tuple[_RemovalBatch, PartitionLog]]
    ) -> None:
        """Remove the rows of these batches, and note it on the shard. Raises `EngineError`."""
        deletions: dict[Engine, list[_Deletion]] = {}
        removed: dict[_RemovalBatch, int] = {}
        below: dict[PartitionLog, int] = {}
        for batch, partition in batches:
            # The last record stays, so the end of the log does not change.
            ranges = clipped(
                await _ranges(engine, batch),
                partition.log_start_offset,
                # Nor is anything decided of a transaction that is open.
                min(partition.high_watermark - 1, partition.last_stable_offset),
            )
            removed[batch] = 0
            if not ranges:
                continue
            below[partition] = max(below.get(partition, 0), ranges[-1][1] + 1)
            for piece in pieces(ranges):
                for source in self._row_sources.engines(partition):
                    removed[batch] += await _count(source, partition, piece)
                    statements = deletions.setdefault(source, [_Deletion()])
                    if not statements[-1].has_room_for(piece):
                        statements.append(_Deletion())
                    statements[-1].add(partition, piece)
        for partition, offset in below.items():
            await self._producer_states.save(partition, offset)
            partition.has_deleted = True
            await self._store_floor(partition)
        try:
            for source, statements in deletions.items():
                for statement in statements:
                    await _delete(source, statement)
        finally:  # also when interrupted: some rows may be removed
            for partition, offset in below.items():
                partition.tail.hide_below(offset)
                self._reader.forget(partition)
        for batch, partition in batches:
            log.info(
                "compaction removed %d rows of %s",
                removed[batch],
                partition,
                extra=counted(partition),
            )
            await self._note(engine, batch, removed[batch], "")

    async def _store_floor(self, partition: PartitionLog) -> None:
        for source in self._row_sources.engines(partition):
            await source.execute(
                query("raise_floor"),
                {
                    "topic_id": str(partition.topic_id),
                    "partition": partition.partition,
                    "floor": partition.high_watermark,
                    "forgot": int(bool(partition.has_forgotten)),
                },
            )

    async def _note(self, engine: Engine, batch: _RemovalBatch, removed: int, refused: str) -> None:
        if refused:
            log.warning(
                "compaction batch %s is refused: %s", batch.batch_id, refused, extra=counted()
            )
        await engine.execute(
            query("note_removal"),
            {
                "batch_id": str(batch.batch_id),
                "run_id": str(batch.run_id),
                "topic_id": str(batch.topic_id),
                "partition": batch.partition,
                "removed": removed,
                "refused": refused,
            },
        )


def _batch(row: Row) -> _RemovalBatch:
    batch_id, run_id, topic_id, partition, ranges, _ = row
    return _RemovalBatch(UUID(batch_id), UUID(run_id), UUID(topic_id), partition, ranges)


async def _ranges(engine: Engine, batch: _RemovalBatch) -> list[Range]:
    asked: dict[str, Parameter] = {"batch_id": str(batch.batch_id), "max": _RANGES_MAX}
    rows = await engine.rows(query("ranges_of_removal"), asked)
    if not rows:
        return []
    firsts, lasts = rows[0]
    return list(zip(firsts, lasts, strict=True))


async def _count(engine: Engine, partition: PartitionLog, piece: Piece) -> int:
    deletion = _Deletion()
    deletion.add(partition, piece)
    condition, params = deletion.condition()
    rows = await engine.rows(f"SELECT count() FROM messages WHERE {condition}", params)
    count: int = rows[0][0]
    return count


async def _delete(engine: Engine, deletion: _Deletion) -> None:
    """Returns when the rows are removed. Raises `EngineError`.

    The engine removes them in the background and is polled: a statement that waits would keep
    a reader from consumers, for as long as disk space is low.
    """
    condition, params = deletion.condition()
    await engine.execute(
        f"DELETE FROM messages WHERE {condition} SETTINGS lightweight_deletes_sync = 0", params
    )
    backoff = Backoff(_POLL_FIRST_S, _POLL_MAX_S)
    told = ""
    while True:
        left, why = (await engine.rows(query("unfinished_removals")))[0]
        if left == 0:
            return
        if why and why != told:
            told = why
            log.warning("ClickHouse cannot remove rows yet, and retries: %s", told)
        await asyncio.sleep(backoff.advance())
