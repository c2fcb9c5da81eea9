"""Retention: the leader of a partition removes records by `retention.ms` and `retention.bytes`.

Kafka deletes whole segments from the start of a log. There are no segments here, so the log start
moves to the first record that is to stay:
* by time: the first record that is younger than `retention.ms` by its timestamp, or by the time of
  its append if its timestamp is negative, as Kafka then uses the file's time. An older record
  behind it stays, too: a log only loses its beginning.
* by size: at least `retention.bytes` of keys and values stay, by the sizes that are counted per
  minute (broker/log/rollup.py). The records of the last minute or two are kept in addition.

Both apply where `cleanup.policy` has `delete`. A partition costs a query or two by primary key (3
ms, whatever its size), so it is checked again only when its first record has been due for a
hundredth of `retention.ms`. Of a partition without a record that is young enough nobody knows what
comes next, and old records may come: it is checked again after that hundredth. If very many are due
at once, as after a start, one query over all rows first finds those that have old records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from brokerhouse.broker.log.checkpoints import Key, read_checkpoints
from brokerhouse.broker.log.log_ends import is_scan_cheaper
from brokerhouse.broker.log.log_starts import LogStarts
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import readable_range
from brokerhouse.broker.log.row_sources import RowSources
from brokerhouse.common.batched import batched
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Periodic, in_turns
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_PARTITIONS_AT_ONCE = 2  # of the engine's readers, so that others have some
_EASE = 100  # a partition is checked again after retention.ms / 100
_ROWS_IN_A_QUERY = 1000  # 80 kB of SQL
_MANY_PARTITIONS = 500
_TIMES_MAX = 8  # different `retention.ms` for which all rows are read


class LedLogs(Protocol):
    def all(self) -> Collection[PartitionLog]:
        """The open logs of the partitions that this broker leads."""


class Tables(Protocol):
    async def settled(self) -> None:
        """Returns when every row that was acknowledged before is in its table.

        Raises `EngineError`.
        """


class AlwaysSettled:
    """`Tables` where a row is acknowledged when it is in its table."""

    async def settled(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Look:
    """The last look at a partition: which `retention_ms` it used, and when the next one is due."""

    retention_ms: int
    again_ms: int


class Retention:
    """Moves the log starts of all partitions that this broker leads."""

    def __init__(
        self,
        logs: LedLogs,
        row_sources: RowSources,
        starts: LogStarts,
        clock_ms: Callable[[], int],
        tables: Tables | None = None,
        many: int = _MANY_PARTITIONS,
    ) -> None:
        """`many`: if more partitions are due at once, one query finds those with old records."""
        self._logs = logs
        self._row_sources = row_sources
        self._starts = starts
        self._clock_ms = clock_ms
        self._tables = tables or AlwaysSettled()
        self._many = many
        self._looks: dict[PartitionLog, _Look] = {}
        self._ends: dict[PartitionLog, int] = {}
        """Where each log ended when the round began: all rows below are in the table."""

    async def round(self) -> None:
        """Check every partition once. Raises `EngineError` if nothing could be read at all."""
        partitions = [one async for one in in_turns(self._logs.all()) if one.closed is None]
        self._ends = {one: one.high_watermark async for one in in_turns(partitions)}
        await self._tables.settled()
        self._looks = {
            one: self._looks[one] async for one in in_turns(partitions) if one in self._looks
        }
        await self._adopt(partitions)
        limited = [
            one
            async for one in in_turns(partitions)
            if one.log_start_offset < one.high_watermark
            and "delete" in one.topic.config.cleanup_policy
        ]
        await _few_at_once(self._by_time, await self._with_old_records(limited))
        await self._by_size(limited)

    async def _adopt(self, partitions: Sequence[PartitionLog]) -> None:
        """Adopt log starts that a job stored, or an earlier leader after this one had started."""
        for engine, some in (await self._by_engine(partitions)).items():
            checkpoints = await read_checkpoints(engine)
            async for partition in in_turns(some):
                start, _ = checkpoints.get((partition.topic_id, partition.partition), (0, 0))
                if start <= partition.high_watermark:  # else a newer leader is ahead
                    partition.begin_at(start)

    async def _by_engine(
        self, partitions: Iterable[PartitionLog]
    ) -> dict[Engine, list[PartitionLog]]:
        """The partitions that have rows in each engine."""
        found: dict[Engine, list[PartitionLog]] = {}
        async for partition in in_turns(partitions):
            for engine in self._engines(partition):
                found.setdefault(engine, []).append(partition)
        return found

    async def _with_old_records(self, partitions: Sequence[PartitionLog]) -> Sequence[PartitionLog]:
        """Those of these partitions that are due and may have records that are too old.

        The others are due again after a hundredth of `retention.ms`. Raises `EngineError`.
        """
        now_ms = self._clock_ms()
        due = [one async for one in in_turns(partitions) if self._is_due(one, now_ms)]
        times = {one.topic.config.retention_ms for one in due}
        if len(due) <= self._many or len(times) > _TIMES_MAX:
            return due
        old = set[PartitionLog]()
        for engine, some in (await self._by_engine(due)).items():
            if not await is_scan_cheaper(engine, len(some)):
                return due
            last = {
                time_ms: await _last_old(engine, now_ms - time_ms)
                for time_ms in {one.topic.config.retention_ms for one in some}
            }
            async for one in in_turns(some):
                last_old = last[one.topic.config.retention_ms].get((one.topic_id, one.partition))
                if last_old is not None and last_old >= one.log_start_offset:
                    old.add(one)
        async for one in in_turns(due):
            if one not in old:
                time_ms = one.topic.config.retention_ms
                self._looks[one] = _Look(time_ms, now_ms + time_ms // _EASE)
        return [one for one in due if one in old]

    def _is_due(self, partition: PartitionLog, now_ms: int) -> bool:
        retention_ms = partition.topic.config.retention_ms
        if not 0 <= retention_ms < now_ms:
            return False
        look = self._looks.get(partition)
        return look is None or look.retention_ms != retention_ms or now_ms >= look.again_ms

    async def _by_time(self, partition: PartitionLog) -> None:
        retention_ms = partition.topic.config.retention_ms
        now_ms = self._clock_ms()
        since_ms = now_ms - retention_ms
        if not self._is_due(partition, now_ms):
            return  # its config has changed meanwhile
        end = self._ends[partition]
        found = [await _first_young(one, partition, since_ms) for one in self._engines(partition)]
        offset, time_ms = min((one for one in found if one is not None), default=(end, since_ms))
        await self._starts.raise_to(partition, offset)
        again_ms = max(time_ms, since_ms) + retention_ms + retention_ms // _EASE
        self._looks[partition] = _Look(retention_ms, again_ms)

    async def _by_size(self, partitions: Sequence[PartitionLog]) -> None:
        limited = {
            (one.topic_id, one.partition): one
            async for one in in_turns(partitions)
            if one.topic.config.retention_bytes >= 0
        }
        sizes = await self._ask("partition_sizes", dict.fromkeys(limited.values(), 0))
        excess = {
            limited[key]: sum(found) - limited[key].topic.config.retention_bytes
            for key, found in sizes.items()
        }
        excess = {partition: size for partition, size in excess.items() if size > 0}
        for key, found in (await self._ask("starts_by_size", excess)).items():
            # Of several engines, the one with the oldest rows; the next round continues.
            partition = limited[key]
            await self._starts.raise_to(partition, min(min(found), self._ends[partition]))

    async def _ask(self, name: str, excess: Mapping[PartitionLog, int]) -> dict[Key, list[int]]:
        """The last column of this query for each partition, from every engine that has rows."""
        by_engine: dict[Engine, list[str]] = {}
        for partition, size in excess.items():
            start = partition.log_start_offset
            row = f"('{partition.topic_id}', {partition.partition}, {start}, {size})"
            for engine in self._engines(partition):
                by_engine.setdefault(engine, []).append(row)
        found: dict[Key, list[int]] = {}
        for engine, rows in by_engine.items():
            for some in batched(rows, _ROWS_IN_A_QUERY):
                answer = await engine.rows(query(name, partitions=", ".join(some)))
                for topic_id, number, *_, value in answer:
                    found.setdefault((UUID(topic_id), number), []).append(value)
        return found

    def _engines(self, partition: PartitionLog) -> Sequence[Engine]:
        try:
            return self._row_sources.at_rest(partition)
        except EngineError:
            return ()  # its slot was given up meanwhile


async def _last_old(engine: Engine, since_ms: int) -> dict[Key, int]:
    """The last offset with a timestamp before `since_ms` of each partition that has one."""
    rows = await engine.rows(query("old_records"), {"since_ms": since_ms})
    return {(UUID(topic_id), number): last async for topic_id, number, last in in_turns(rows)}


async def _first_young(
    engine: Engine, partition: PartitionLog, since_ms: int
) -> tuple[int, int] | None:
    """The first record that is not older than `since_ms`: its offset, and the time that counts."""
    parameters = readable_range(partition) | {"since_ms": since_ms}
    first: tuple[int, int] | None = None
    for name in ("first_young_record", "first_young_record_without_timestamp"):
        rows = await engine.rows(query(name), parameters)
        if rows:
            first = rows[0][0], rows[0][1]
            parameters["end"] = first[0]
    return first


def upkeep(every_ms: int, *rounds: Callable[[], Awaitable[None]]) -> Periodic:
    """The task that removes old records: runs these rounds one after the other."""

    async def all_rounds() -> None:
        for one in rounds:
            try:
                await one()
            except EngineError as error:
                log.warning("cannot remove old records; retrying in %d ms: %s", every_ms, error)

    return Periodic("retention", every_ms / 1000, all_rounds)


async def _few_at_once(
    look: Callable[[PartitionLog], Awaitable[None]], partitions: Sequence[PartitionLog]
) -> None:
    """Check each once. A failure is logged and does not delay the others."""
    waiting = iter(partitions)

    async def work() -> None:
        for partition in waiting:
            try:
                await look(partition)
            except (EngineError, KafkaError) as error:
                log.warning(
                    "cannot remove the old records of %s; retrying: %s",
                    partition,
                    error,
                    extra=counted(),
                )

    await asyncio.gather(*(work() for _ in range(_PARTITIONS_AT_ONCE)))
