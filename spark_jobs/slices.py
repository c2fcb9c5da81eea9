"""What a read is made of: partitions with their offsets, cut into one slice per Spark task.

Runs on Spark's driver. The servers, and the shards they belong to, are in shards.py.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from brokerhouse.spark_jobs.filters import Filters
from brokerhouse.spark_jobs.options import (
    EARLIEST,
    LATEST,
    OffsetLimits,
    ReadOptions,
    TopicPartition,
    shown,
)
from brokerhouse.spark_jobs.shards import find_shards
from brokerhouse.spark_jobs.sql_client import SqlServers, SqlUnavailable
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter

Offsets = dict[TopicPartition, int]

SLICE_LEAST_ROWS, SLICE_MOST_ROWS = 50_000, 500_000
"""A slice costs a query and a task, some 20 ms; reading 50,000 small rows takes as long."""
_SLICES_PER_CORE = 3
_BUCKETS_PER_SLICE = 8

OF_SLICE = (
    "topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
    " AND offset >= {start:Int64} AND offset < {until:Int64}"
)
"""The condition on the rows of a slice; its parameters are `Slice.parameters`."""


class LogError(Exception):
    """What should be read does not exist; the message is one sentence."""


class DataLoss(LogError):
    """Records that should have been read are deleted."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: set failOnDataLoss to false to continue without them")


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where the log of a partition starts and ends now."""

    topic_id: str
    start: int
    end: int
    ends: tuple[int, ...]
    """The end of what each shard has."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What is to be read of a partition: from `start` to before `until`."""

    topic: str
    partition: int
    offsets: PartitionOffsets
    start: int
    until: int


@dataclass
class Slice(InputPartition):
    """What one task reads: a range of one partition, as far as one shard has it."""

    topic: str
    topic_id: str
    partition: int
    start: int
    until: int
    shards: tuple[SqlServers, ...]
    shard: int

    def parameters(self, start: int) -> dict[str, Parameter]:
        """The parameters of `OF_SLICE`, for the rest of the slice from `start` on."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "start": start,
            "until": self.until,
        }


class LogSnapshot:
    """The partitions that were asked for and their offsets, as of the last `refresh`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._shards: tuple[SqlServers, ...] = ()
        self.partitions: dict[TopicPartition, PartitionOffsets] = {}

    def refresh(self) -> None:
        """Raises LogError for topics and partitions that do not exist, and SqlFailure."""
        if not self._shards:
            self._shards = find_shards(self._options.servers, self._options.login)
        try:
            self.partitions = self._find_partitions()
        except SqlUnavailable:
            # Servers may have come and gone.
            self._shards = find_shards(self._options.servers, self._options.login)
            self.partitions = self._find_partitions()

    def resolve(self, limits: OffsetLimits, *, starting: bool) -> Offsets:
        """The offset where each partition begins or ends. Raises LogError."""
        if limits.everywhere is not None:
            wanted = dict.fromkeys(self.partitions, limits.everywhere)
        else:
            wanted = dict(limits.each)
            if wanted.keys() != self.partitions.keys():
                raise LogError(
                    "offsets and timestamps must be given for all partitions:"
                    f" given are {shown(wanted)}, but there are {shown(self.partitions)}"
                )
        if limits.by_time:
            wanted = self._at_times(wanted, starting)
        return {key: _resolved(offset, self.partitions[key]) for key, offset in wanted.items()}

    def slices(self, ranges: Iterable[OffsetRange], filters: Filters) -> list[Slice]:
        """Slices of about the same number of rows, however the rows are spread over offsets."""
        options = self._options
        parts = [
            part
            for one in ranges
            if filters.partition(one.topic, one.partition)
            for part in (_ShardRange(one, shard) for shard in range(len(self._shards)))
            if one.start < part.until
        ]
        offsets = sum(part.until - part.range.start for part in parts)
        cores = os.cpu_count() or 1
        slices = max(_SLICES_PER_CORE * cores, options.min_partitions or 1)
        most = options.max_records_per_partition or SLICE_MOST_ROWS
        least = 1 if options.min_partitions else min(SLICE_LEAST_ROWS, most)
        width = max(1, min(most, max(least, offsets // slices)) // _BUCKETS_PER_SLICE)
        buckets = self._buckets(parts, width, filters)
        total = sum(count for found in buckets.values() for _, count in found)
        size = min(most, max(least, -(-total // slices)))
        return [
            Slice(
                part.range.topic,
                part.range.offsets.topic_id,
                part.range.partition,
                start,
                until,
                self._shards,
                part.shard,
            )
            for part in parts
            for start, until in _cut(part, buckets[part], size)
        ]

    def _find_partitions(self) -> dict[TopicPartition, PartitionOffsets]:
        options = self._options
        named = options.topics
        if options.assigned is not None:
            named = tuple({topic for topic, _ in options.assigned})
        where = "" if named is None else " WHERE topic IN {topics:Array(String)}"
        parameters: dict[str, Parameter] = {} if named is None else {"topics": named}
        sql = (
            "SELECT topic, toString(topic_id), partition, log_start_offset, end_offset"
            f" FROM partition_stats{where}"
        )
        found: dict[TopicPartition, dict[int, tuple[str, int, int]]] = defaultdict(dict)
        for shard, servers in enumerate(self._shards):
            for topic, topic_id, partition, start, end in servers.rows(sql, parameters):
                found[topic, partition][shard] = (topic_id, start, end)
        _check_named(options, found.keys())
        pattern = options.pattern
        return {
            key: _together(by_shard, len(self._shards))
            for key, by_shard in sorted(found.items())
            if (pattern is None or re.search(pattern, key[0]))
            and (options.assigned is None or key in options.assigned)
        }

    def _at_times(self, times: Offsets, starting: bool) -> Offsets:
        """The first record that is not older, per partition; else the end, or an error."""
        found: Offsets = {}
        for (topic, partition), time in times.items():
            known = self.partitions[topic, partition]
            parameters: dict[str, Parameter] = {
                "topic": topic,
                "topic_id": known.topic_id,
                "partition": partition,
                "start": known.start,
                "until": known.end,
                "time": time,
            }
            answers = [
                servers.rows(query("first_record_since"), parameters)[0] for servers in self._shards
            ]
            offsets = [offset for count, offset in answers if count]
            if not offsets and starting and not self._options.latest_if_no_time:
                raise LogError(
                    f"partition {partition} of topic {topic} has no record from {time} ms on: set"
                    " startingOffsetsByTimestampStrategy to latest to begin at its end"
                )
            found[topic, partition] = min(offsets, default=LATEST)
        return found

    def _buckets(
        self, parts: Iterable[_ShardRange], width: int, filters: Filters
    ) -> dict[_ShardRange, list[tuple[int, int]]]:
        """(first offset, number of rows) of each bucket. Small ranges are not counted."""
        of_topic: dict[tuple[int, str], list[_ShardRange]] = defaultdict(list)
        found: dict[_ShardRange, list[tuple[int, int]]] = {}
        for part in parts:
            if part.until - part.range.start > width:
                of_topic[part.shard, part.range.topic].append(part)
                found[part] = []
            else:
                found[part] = [(part.range.start, part.until - part.range.start)]
        table, condition = rows_to_read(self._options)
        sql = query("rows_by_offset_bucket", table=table, filters=condition + filters.sql)
        for (shard, topic), some in of_topic.items():
            by_partition = {part.range.partition: part for part in some}
            parameters: dict[str, Parameter] = {
                "width": width,
                "topic": topic,
                "topic_id": some[0].range.offsets.topic_id,
                "partitions": "[" + ",".join(map(str, by_partition)) + "]",
                "start": min(part.range.start for part in some),
                "until": max(part.until for part in some),
                **filters.params,
            }
            for partition, first, count in self._shards[shard].rows(sql, parameters):
                part = by_partition[partition]
                if part.range.start < first + width and first < part.until:
                    found[part].append((first, count))
        return found


@dataclass(frozen=True, slots=True)
class _ShardRange:
    """What one shard may have of a range."""

    range: OffsetRange
    shard: int

    @property
    def until(self) -> int:
        return min(self.range.until, self.range.offsets.ends[self.shard])


def _resolved(offset: int, known: PartitionOffsets) -> int:
    if offset == LATEST:
        return known.end
    return known.start if offset == EARLIEST else offset


def _check_named(options: ReadOptions, existing: Iterable[TopicPartition]) -> None:
    """Raises LogError for a topic or partition that was named and does not exist."""
    assigned = options.assigned or frozenset()
    topics = {topic for topic, _ in existing}
    named = {*(options.topics or ()), *(topic for topic, _ in assigned)}
    if missing := sorted(named - topics):
        raise LogError(f"topic {missing[0]} does not exist")
    for topic, partition in sorted(assigned.difference(existing)):
        raise LogError(f"partition {partition} of topic {topic} does not exist")


def rows_to_read(options: ReadOptions) -> tuple[str, str]:
    """The table, and a condition to add to others: control records are never shown."""
    return ("messages_committed", "") if options.committed else ("messages", " AND NOT control")


def _together(by_shard: Mapping[int, tuple[str, int, int]], shards: int) -> PartitionOffsets:
    """What the shards say about one partition: its topic id, start and end on each shard.

    While a topic is deleted and created again, shards may know different topic ids: one is taken.
    """
    topic_id = max(topic_id for topic_id, _, _ in by_shard.values())
    known = {
        shard: (start, end) for shard, (one, start, end) in by_shard.items() if one == topic_id
    }
    return PartitionOffsets(
        topic_id,
        start=max(start for start, _ in known.values()),
        end=max(end for _, end in known.values()),
        ends=tuple(known[shard][1] if shard in known else 0 for shard in range(shards)),
    )


def _cut(
    part: _ShardRange, buckets: Iterable[tuple[int, int]], size: int
) -> Iterator[tuple[int, int]]:
    """Ranges of offsets with at most `size` rows each, unless one bucket alone has more."""
    start, rows_so_far = part.range.start, 0
    for first, count in buckets:
        if rows_so_far and rows_so_far + count > size:
            yield start, first
            start, rows_so_far = first, 0
        rows_so_far += count
    if rows_so_far:
        yield start, part.until
