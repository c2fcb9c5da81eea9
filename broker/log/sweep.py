"""Removes the rows of one ClickHouse that no consumer can read: those below their log start.

It keeps no record of log starts that moved: the checkpoints in the same ClickHouse say where logs
start, so what a crash left behind is found again. What it does, the cheapest first:
* A day (a ClickHouse partition) that is over and has no served row left is dropped.
* Elsewhere rows are deleted: one statement per day for many partitions of topics, when an eighth of
  a large day can be deleted, or when such rows have waited for a quarter of a day. A deletion
  writes a mask for every part that it touches, so a few large deletions cost less than many small
  ones.
* Masked rows leave the disk when the engine merges. It no longer merges old days and large parts,
  so a day of which half is masked is rewritten without them: each row written removes one.
* The minutes that were counted of such rows are deleted, too (broker/log/rollup.py), so that sizes
  and first times stay right. So are leader epochs that ended below a log start
  (broker/log/epoch_table.py), and the checkpoints and epochs of deleted topics.

A day is dropped only under two conditions. First, no row can be added to it any more. The roll-up
has made sure of that when it has counted a day to its end: no broker writes a row of that time,
none has a block in flight, and the sessions of brokers that are gone have been fenced.
Second, its tokens must stay for a while, because ClickHouse forgets them with the partition
(measured: the same block is stored again after DROP PARTITION, not after DELETE), and a fence is a
token (broker/log/fence.py). So today and yesterday stay, for as long as a late block could come.

Deletions run in the background of the engine, which continues them after a restart. While one runs,
no other is started.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from brokerhouse.broker.log.checkpoints import Key, read_checkpoints
from brokerhouse.common.batched import batched
from brokerhouse.common.clock import DAY_MS, HOUR_MS
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, Parameter

log = logging.getLogger(__name__)

T = TypeVar("T")

_DAYS_KEPT = 2  # today and yesterday
_SMALL_ROWS = 1_000_000  # a deletion among so few rows is cheap and does not wait
_SHARE = 8
_PATIENCE_MS = DAY_MS // 4
_MINUTES_EVERY_MS = HOUR_MS  # how often large numbers of minutes are read
_PARTITIONS_IN_A_STATEMENT = 500
_PARTITIONS_IN_A_QUESTION = 50

_TOPICS = "SELECT topic_id, name, state FROM topic_versions FINAL"
# A fence row that was not removed is not a record, and is not needed when its day is over.
_VISIBLE = "SELECT count() FROM messages WHERE _partition_id = {day:String} AND topic != ''"
_COUNTED_UNTIL = "SELECT toUnixTimestamp(max(minute) + INTERVAL 1 MINUTE) FROM partition_minutes"
_EPOCHS = "SELECT count() FROM leader_epochs"


@dataclass(slots=True)
class RowsBelowStart:
    """How many rows of a partition are stored below its log start, by day (yyyymmdd)."""

    counted_to: int = 0
    by_day: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Day:
    """A ClickHouse partition of the log. `rows` are those on disk, including masked ones."""

    name: str
    rows: int
    has_mask: bool
    signature: str

    @property
    def iso(self) -> str:
        return f"{self.name[:4]}-{self.name[4:6]}-{self.name[6:]}"


def is_worth_it(dead: int, rows: int, waiting_ms: int) -> bool:
    """Whether to delete `dead` of `rows` rows now; the first have waited for `waiting_ms`."""
    return dead > 0 and (rows <= _SMALL_ROWS or dead * _SHARE >= rows or waiting_ms >= _PATIENCE_MS)


def is_over(day: str, counted_until_ms: int, now_ms: int) -> bool:
    """Whether no row of this day can be added any more and its tokens were kept long enough."""
    return day < _day_of(counted_until_ms) and day <= _day_of(now_ms - _DAYS_KEPT * DAY_MS)


def _day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y%m%d")


class Sweep:
    """The rounds for one ClickHouse. One broker at a time runs them; two do no harm."""

    def __init__(self, engine: Engine, clock_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._clock_ms = clock_ms
        self._dead: dict[Key, RowsBelowStart] = {}
        self._waiting_since_ms: dict[str, int] = {}  # by day, and for the minutes
        self._deleting: list[tuple[Key, str, int]] = []  # rows of a day, by statements under way
        self._minutes_read_ms = 0
        self._visible: dict[str, tuple[str, int]] = {}  # by day: signature of its parts, and rows

    async def round(self) -> None:
        """Start the deletions that are due. Raises `EngineError`; the next round does the rest."""
        names: dict[UUID, str] = {}
        dead_topics: set[UUID] = set()
        for topic_id, name, state in await self._engine.rows(_TOPICS):
            if state == "live":
                names[UUID(topic_id)] = name
            else:
                dead_topics.add(UUID(topic_id))
        starts = {
            key: start
            for key, (start, _) in (await read_checkpoints(self._engine)).items()
            if start > 0 and key[0] in names
        }
        is_idle = await self._engine.rows(query("unfinished_deletions")) == [[0]]
        if is_idle:
            self._deletions_are_done()
        await self._count(starts, names)
        now_ms = self._clock_ms()
        ((counted_s,),) = await self._engine.rows(_COUNTED_UNTIL)
        days = [
            Day(name, rows, bool(mask), signature)
            for name, rows, mask, signature in await self._engine.rows(query("log_days"))
        ]
        self._visible = {
            day.name: self._visible[day.name] for day in days if day.name in self._visible
        }
        dead: Counter[str] = Counter()
        for one in self._dead.values():
            dead.update(one.by_day)
        for day in days:
            over = is_over(day.name, counted_s * 1000, now_ms)
            if over and await self._is_dead(day, dead[day.name], starts, dead_topics):
                await self._drop(day)
            elif is_idle and self._is_due(day.name, dead[day.name], day.rows, now_ms):
                await self._delete(day, starts, names)
            elif is_idle and day.has_mask and not self._merges_alone(day, now_ms):
                await self._rewrite(day)
        if is_idle:
            await self._forget_minutes(starts, now_ms)
            await self._forget_epochs(now_ms)
            for table in ("partition_checkpoints", "leader_epochs"):
                await self._forget_deleted_topics(table)

    def _merges_alone(self, day: Day, now_ms: int) -> bool:
        """Whether merges remove the masked rows soon: small parts are merged all day."""
        return day.name >= _day_of(now_ms) and day.rows <= _SMALL_ROWS

    def _deletions_are_done(self) -> None:
        for key, day, rows in self._deleting:
            dead = self._dead.get(key)
            if dead is not None and day in dead.by_day:
                dead.by_day[day] -= rows
        self._deleting.clear()

    async def _count(self, starts: Mapping[Key, int], names: Mapping[UUID, str]) -> None:
        """Count the rows that fell below a log start since the last round."""
        self._dead = {key: self._dead.get(key, RowsBelowStart()) for key in starts}
        news: defaultdict[UUID, list[tuple[int, int, int]]] = defaultdict(list)
        for (topic_id, partition), start in starts.items():
            counted_to = self._dead[topic_id, partition].counted_to
            if counted_to < start:
                news[topic_id].append((partition, counted_to, start))
        for topic_id, ranges in news.items():
            for some in batched(ranges, _PARTITIONS_IN_A_QUESTION):
                which = " OR ".join(
                    f"partition = {partition} AND offset >= {first} AND offset < {end}"
                    for partition, first, end in some
                )
                rows = await self._engine.rows(
                    query("dead_by_day", which=which),
                    {"topic": names[topic_id], "topic_id": str(topic_id)},
                )
                for day, number, count in rows:
                    by_day = self._dead[topic_id, number].by_day
                    by_day[day] = by_day.get(day, 0) + count
                for partition, _, end in some:
                    self._dead[topic_id, partition].counted_to = end

    async def _is_dead(
        self, day: Day, dead: int, starts: Mapping[Key, int], dead_topics: Collection[UUID]
    ) -> bool:
        """Whether a day that is over has no row left that consumers can read."""
        if await self._rows_to_see(day) > dead:
            return False
        rows = await self._engine.rows(query("last_offsets_of_day"), {"day": day.name})
        for topic_id, partition, last in rows:
            key = UUID(topic_id), partition
            if key[0] not in dead_topics and last >= starts.get(key, 0):
                return False
        return True

    async def _rows_to_see(self, day: Day) -> int:
        known = self._visible.get(day.name)
        if known is None or known[0] != day.signature:
            ((count,),) = await self._engine.rows(_VISIBLE, {"day": day.name})
            known = self._visible[day.name] = day.signature, count
        return known[1]

    async def _drop(self, day: Day) -> None:
        await self._engine.execute(
            f"ALTER TABLE messages DROP PARTITION ID '{day.name}'"
            " SETTINGS max_partition_size_to_drop = 0"
        )
        for dead in self._dead.values():
            dead.by_day.pop(day.name, None)
        self._waiting_since_ms.pop(day.name, None)
        log.info(
            "dropped the rows of %s: all %d are before the starts of their logs", day.iso, day.rows
        )

    async def _delete(self, day: Day, starts: Mapping[Key, int], names: Mapping[UUID, str]) -> None:
        dead = {
            key: one.by_day[day.name]
            for key, one in self._dead.items()
            if one.by_day.get(day.name, 0) > 0
        }
        for which, params in _below({key: starts[key] for key in dead}, names, "offset"):
            await self._engine.execute(
                f"DELETE FROM messages IN PARTITION '{day.iso}' WHERE {which}"
                " SETTINGS lightweight_deletes_sync = 0",
                params,
            )
        self._deleting += ((key, day.name, rows) for key, rows in dead.items())
        log.info("deleting %d of the %d rows of %s", sum(dead.values()), day.rows, day.iso)

    async def _rewrite(self, day: Day) -> None:
        visible = await self._rows_to_see(day)
        if day.rows < 2 * visible:
            return
        await self._engine.execute(
            f"ALTER TABLE messages APPLY DELETED MASK IN PARTITION '{day.iso}'"
            " SETTINGS mutations_sync = 0"
        )
        log.info("rewriting the parts of %s: %d of %d rows stay", day.iso, visible, day.rows)

    def _is_due(self, what: str, dead: int, rows: int, now_ms: int) -> bool:
        if dead == 0:
            self._waiting_since_ms.pop(what, None)
            return False
        since_ms = self._waiting_since_ms.setdefault(what, now_ms)
        if not is_worth_it(dead, rows, now_ms - since_ms):
            return False
        del self._waiting_since_ms[what]
        return True

    async def _forget_minutes(self, starts: Mapping[Key, int], now_ms: int) -> None:
        ((rows,),) = await self._engine.rows(query("rows_in_parts", table="partition_minutes"))
        if rows > _SMALL_ROWS and now_ms - self._minutes_read_ms < _MINUTES_EVERY_MS:
            return
        self._minutes_read_ms = now_ms
        dead = {
            (UUID(topic_id), partition): count
            for topic_id, partition, count in await self._engine.rows(query("dead_minutes"))
        }
        if self._is_due("minutes", sum(dead.values()), rows, now_ms):
            log_starts = {key: starts[key] for key in dead if key in starts}
            for which, _ in _below(log_starts, None, "max_offset"):
                await self._engine.execute(
                    f"ALTER TABLE partition_minutes DELETE WHERE topic != '' AND ({which})"
                    " SETTINGS mutations_sync = 0"
                )

    async def _forget_epochs(self, now_ms: int) -> None:
        ((rows,),) = await self._engine.rows(_EPOCHS)
        if rows == 0:
            return
        needed: dict[Key, int] = {}
        count = 0
        for topic_id, partition, offset, before in await self._engine.rows(query("dead_epochs")):
            needed[UUID(topic_id), partition] = offset
            count += before
        if self._is_due("epochs", count, rows, now_ms):
            for which, _ in _below(needed, None, "start_offset"):
                await self._engine.execute(
                    f"DELETE FROM leader_epochs WHERE {which} SETTINGS lightweight_deletes_sync = 0"
                )

    async def _forget_deleted_topics(self, table: str) -> None:
        asked = query("deleted_topics_in", table=table)
        gone = [topic_id for (topic_id,) in await self._engine.rows(asked)]
        if gone:
            await self._engine.execute(
                f"DELETE FROM {table} WHERE has({{gone:Array(UUID)}}, topic_id)"
                " SETTINGS lightweight_deletes_sync = 0",
                {"gone": gone},
            )


def _below(
    log_starts: Mapping[Key, int], names: Mapping[UUID, str] | None, offset: str
) -> Iterator[tuple[str, dict[str, Parameter]]]:
    """Conditions for rows below these log starts, each of a size that the engine accepts.

    `names`: the names of the topics, if the table is ordered by them.
    """
    for some in batched(sorted(log_starts.items()), _PARTITIONS_IN_A_STATEMENT):
        by_topic: defaultdict[UUID, list[tuple[int, int]]] = defaultdict(list)
        for (topic_id, partition), start in some:
            by_topic[topic_id].append((partition, start))
        params: dict[str, Parameter] = {}
        terms = []
        for topic_id, found in by_topic.items():
            partitions = ", ".join(str(partition) for partition, _ in found)
            starts = ", ".join(str(start) for _, start in found)
            term = (
                f"topic_id = toUUID('{topic_id}') AND {offset} < transform(partition,"
                f" [{partitions}]::Array(Int32), [{starts}]::Array(Int64), 0::Int64)"
            )
            if names is not None:
                name = f"topic{len(params)}"
                params[name] = names[topic_id]
                term = f"topic = {{{name}:String}} AND {term}"
            terms.append(f"({term})")
        yield " OR ".join(terms), params


def log_starts_below(log_starts: Mapping[Key, int]) -> list[str]:
    """Conditions for the rows of the log below these log starts."""
    return [which for which, _ in _below(log_starts, None, "offset")]
