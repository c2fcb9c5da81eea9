"""What has become too old or too much: `retention.ms` and `retention.bytes`, decided by the leader.

Kafka deletes whole segments from the start of a log. Here there are none, so the log start moves to
the first record that is to stay:
* by time, the first one that is younger than `retention.ms` by its timestamp, or by the time of its
  append where its timestamp is negative, as Kafka takes the file's time then. An older one behind
  it stays with it: what goes is always the beginning of the log.
* by size, so far that at least `retention.bytes` of keys and values stay, by the minutes that are
  counted (broker/log/rollup.py): what came in the last minute or two is beyond that.

Both hold where `cleanup.policy` has `delete`. To look costs a query or two by primary key per
partition (3 ms, whatever its size), so a partition is not looked at again before its first record
has been due for a hundredth of `retention.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from broker.log.checkpoints import Key, read_checkpoints
from broker.log.log_starts import LogStarts
from broker.log.partition import PartitionLog
from broker.log.row_sources import RowSources
from protocol.errors import KafkaError
from storage.engine import Engine, EngineError, Parameter

log = logging.getLogger(__name__)

_LOOKS_AT_ONCE = 2  # of the engine's readers, so that others have some
_EASE = 100  # a partition is looked at again when this share of retention.ms is over
_ROWS_IN_A_QUESTION = 1000  # 80 kB of it

_PARTITION = (
    " FROM messages WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}"
    " AND partition = {partition:Int32} AND offset >= {first:Int64} AND offset < {end:Int64}"
)
_IN_ORDER = " ORDER BY topic, partition, offset LIMIT 1"
# Two questions, as each is answered by an index of its own (by_timestamp, by_append_time).
_FIRST_YOUNG = (
    f"SELECT offset, timestamp_ms{_PARTITION} AND timestamp_ms >= {{since_ms:Int64}}{_IN_ORDER}"
)
_FIRST_YOUNG_WITHOUT_TIME = (
    f"SELECT offset, toUnixTimestamp64Milli(append_time){_PARTITION} AND timestamp_ms < 0"
    f" AND append_time >= fromUnixTimestamp64Milli({{since_ms:Int64}}, 'UTC'){_IN_ORDER}"
)
# `logs` are the partitions that are asked for: where each begins, and how many bytes may go.
_MINUTES = """
    FROM partition_minutes
    INNER JOIN values('topic_id UUID, partition Int32, first Int64, excess Int64', %s) AS logs
        USING (topic_id, partition)
    WHERE max_offset >= first
"""
_SIZES = f"SELECT topic_id, partition, sum(bytes) {_MINUTES} GROUP BY topic_id, partition"
# The oldest minutes that are not too many together go. Where the clock was set back they overlap:
# then the log begins before the first one that stays.
_STARTS = f"""
    SELECT
        topic_id, partition, countIf(gone > excess) AS staying,
        if(staying > 0, least(maxIf(end, gone <= excess), minIf(begin, gone > excess)), max(end))
    FROM
    (
        SELECT
            topic_id, partition, excess, min_offset AS begin, max_offset + 1 AS end,
            sum(bytes) OVER
                (PARTITION BY topic_id, partition ORDER BY min_offset, max_offset) AS gone
        {_MINUTES}
    )
    GROUP BY topic_id, partition
"""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found last: by which `retention_ms`, and when it is worth looking again."""

    retention_ms: int
    again_ms: int


class Retention:
    """Moves the log starts of all partitions that this broker leads."""

    def __init__(
        self,
        led: Callable[[], Collection[PartitionLog]],
        row_sources: RowSources,
        starts: LogStarts,
        clock_ms: Callable[[], int],
    ) -> None:
        self._led = led
        self._row_sources = row_sources
        self._starts = starts
        self._clock_ms = clock_ms
        self._looks: dict[PartitionLog, _Look] = {}

    async def round(self) -> None:
        """Look at every partition once. Raises `EngineError` where nothing could be read at all."""
        logs = [one for one in self._led() if one.closed is None]
        self._looks = {one: self._looks[one] for one in logs if one in self._looks}
        await self._adopt(logs)
        limited = [
            one
            for one in logs
            if one.log_start_offset < one.high_watermark
            and "delete" in one.topic.config.cleanup_policy
        ]
        await _few_at_once(self._by_time, limited)
        await self._by_size(limited)

    async def _adopt(self, logs: Sequence[PartitionLog]) -> None:
        """Log starts that another broker stored when this one had taken over, or a job."""
        by_engine: dict[Engine, list[PartitionLog]] = {}
        for one in logs:
            for engine in self._engines(one):
                by_engine.setdefault(engine, []).append(one)
        for engine, some in by_engine.items():
            checkpoints = await read_checkpoints(engine)
            for one in some:
                start, _ = checkpoints.get((one.topic_id, one.partition), (0, 0))
                if start <= one.high_watermark:  # else a successor of this broker is further
                    one.begin_at(start)

    async def _by_time(self, partition: PartitionLog) -> None:
        retention_ms = partition.topic.config.retention_ms
        now_ms = self._clock_ms()
        since_ms = now_ms - retention_ms
        look = self._looks.get(partition)
        if retention_ms < 0 or since_ms <= 0:
            return
        if look is not None and look.retention_ms == retention_ms and now_ms < look.again_ms:
            return
        end = partition.high_watermark
        found = [await _first_young(one, partition, since_ms) for one in self._engines(partition)]
        offset, time_ms = min((one for one in found if one is not None), default=(end, now_ms))
        await self._starts.raise_to(partition, offset)
        again_ms = max(time_ms, since_ms) + retention_ms + retention_ms // _EASE
        self._looks[partition] = _Look(retention_ms, again_ms)

    async def _by_size(self, partitions: Sequence[PartitionLog]) -> None:
        limited = {
            (one.topic_id, one.partition): one
            for one in partitions
            if one.topic.config.retention_bytes >= 0
        }
        sizes = await self._ask(_SIZES, dict.fromkeys(limited.values(), 0))
        excess = {
            limited[key]: sum(found) - limited[key].topic.config.retention_bytes
            for key, found in sizes.items()
        }
        excess = {one: size for one, size in excess.items() if size > 0}
        for key, found in (await self._ask(_STARTS, excess)).items():
            # Of several engines, the one that has the oldest rows: the next round goes on.
            one = limited[key]
            await self._starts.raise_to(one, min(min(found), one.high_watermark))

    async def _ask(self, question: str, excess: Mapping[PartitionLog, int]) -> dict[Key, list[int]]:
        """The last column of what is found, from every engine that has anything."""
        by_engine: dict[Engine, list[str]] = {}
        for one, size in excess.items():
            row = f"('{one.topic_id}', {one.partition}, {one.log_start_offset}, {size})"
            for engine in self._engines(one):
                by_engine.setdefault(engine, []).append(row)
        found: dict[Key, list[int]] = {}
        for engine, rows in by_engine.items():
            for some in _some_at_once(rows):
                for topic_id, partition, *_, value in await engine.rows(question % ", ".join(some)):
                    key = UUID(str(topic_id)), partition
                    found.setdefault(key, []).append(value)
        return found

    def _engines(self, partition: PartitionLog) -> Sequence[Engine]:
        try:
            return self._row_sources.engines(partition)
        except EngineError:
            return ()  # given up meanwhile


def _parameters(partition: PartitionLog) -> dict[str, Parameter]:
    return {
        "topic": partition.topic.name,
        "topic_id": str(partition.topic_id),
        "partition": partition.partition,
        "first": partition.log_start_offset,
        "end": partition.high_watermark,
    }


async def _first_young(
    engine: Engine, partition: PartitionLog, since_ms: int
) -> tuple[int, int] | None:
    """The first record that is not older than that: its offset, and the time that counts."""
    params = _parameters(partition) | {"since_ms": since_ms}
    first: tuple[int, int] | None = None
    for question in (_FIRST_YOUNG, _FIRST_YOUNG_WITHOUT_TIME):
        rows = await engine.rows(question, params)
        if rows:
            first = rows[0][0], rows[0][1]
            params["end"] = first[0]
    return first


async def watch(every_ms: int, *rounds: Callable[[], Awaitable[None]]) -> None:
    """Run these one after the other, again and again. Ends only by a defect."""
    while True:
        await asyncio.sleep(every_ms / 1000)
        for one in rounds:
            try:
                await one()
            except EngineError as error:
                log.warning("old records stay for now, again in %d ms: %s", every_ms, error)


async def _few_at_once(
    look: Callable[[PartitionLog], Awaitable[None]], partitions: Sequence[PartitionLog]
) -> None:
    """Each once. One that fails is logged and does not keep the others."""
    waiting = iter(partitions)

    async def work() -> None:
        for partition in waiting:
            try:
                await look(partition)
            except (EngineError, KafkaError) as error:
                log.warning("retention of %s is looked at later: %s", partition, error)

    await asyncio.gather(*(work() for _ in range(_LOOKS_AT_ONCE)))


def _some_at_once(rows: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(rows)
    while some := list(islice(rest, _ROWS_IN_A_QUESTION)):
        yield some
