"""What there is to read: on which servers, where partitions start and end, and in what slices.

Runs on Spark's driver. A *place* is where a part of the rows is: all of them behind a single
broker, or those of one shard in a cluster, with the servers that hold the same rows. Where the
servers that are named do not reach every shard, ClickHouse's own Distributed tables are read.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from spark_jobs.filters import Filters
from spark_jobs.options import EARLIEST, LATEST, Limit, Login, ReadOptions, TopicPartition
from spark_jobs.servers import Refused, ServerError, Unreachable, rows, rows_of_any
from storage.cluster_sql import SHARD_DATABASE
from storage.engine import DATABASE, Parameter
from storage.registry_values import MalformedState
from storage.slot_map import SlotMap

SLOTS_KEY = "slots"
"""Where the registry has the slot map: broker/cluster/ownership.py."""

Offsets = dict[TopicPartition, int]

SLICE_LEAST_ROWS, SLICE_MOST_ROWS = 50_000, 500_000
"""A slice costs a query and a task, some 20 ms; reading 50,000 small rows takes as long."""
_SLICES_PER_CORE = 3
_BUCKETS_PER_SLICE = 8


class LogError(Exception):
    """What was asked for is not there; the message is one sentence."""


class DataLoss(LogError):
    """Records that should have been read are gone."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: set failOnDataLoss to false to go on without them")


@dataclass(frozen=True, slots=True)
class Place:
    """Servers that answer alike, the most up to date first, and the database with the tables."""

    urls: tuple[str, ...]
    database: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic, as it is now."""

    topic_id: str
    start: int
    end: int
    ends: tuple[int, ...]
    """The end of what each place has."""


@dataclass
class Slice(InputPartition):
    """The records of one partition from `start` to before `until`, as far as one place has them."""

    topic: str
    topic_id: str
    partition: int
    start: int
    until: int
    places: tuple[Place, ...]
    place: int


@dataclass(frozen=True, slots=True)
class Range:
    """What is to be read of a partition."""

    topic: str
    partition: int
    state: Partition
    start: int
    until: int


class Log:
    """The log behind some servers. `look` finds out everything anew."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._login = options.login
        self._places: tuple[Place, ...] = ()
        self.partitions: dict[TopicPartition, Partition] = {}

    def look(self) -> None:
        """Raises LogError for topics and partitions that are not there, and ServerError."""
        if not self._places:
            self._places = find_places(self._options.servers, self._login)
        try:
            self.partitions = self._ask()
        except Unreachable:
            # Servers may have come and gone.
            self._places = find_places(self._options.servers, self._login)
            self.partitions = self._ask()

    def resolve(self, limit: Limit, *, starting: bool) -> Offsets:
        """The offset of every partition. Raises LogError."""
        if limit.everywhere is not None:
            wanted = dict.fromkeys(self.partitions, limit.everywhere)
        else:
            wanted = dict(limit.each)
            if wanted.keys() != self.partitions.keys():
                raise LogError(
                    "offsets and timestamps have to be given for all partitions:"
                    f" given are {shown(wanted)}, and there are {shown(self.partitions)}"
                )
        if limit.by_time:
            wanted = self._at_times(wanted, starting)
        return {key: _resolved(offset, self.partitions[key]) for key, offset in wanted.items()}

    def slices(self, ranges: Iterable[Range], filters: Filters) -> list[Slice]:
        """Tasks of about the same number of rows, however the rows lie over offsets."""
        options = self._options
        parts = [
            _Part(one, place, min(one.until, one.state.ends[place]))
            for one in ranges
            for place in range(len(self._places))
            if filters.partition(one.topic, one.partition)
            and one.start < min(one.until, one.state.ends[place])
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
                part.range.state.topic_id,
                part.range.partition,
                start,
                until,
                self._places,
                part.place,
            )
            for part in parts
            for start, until in _cut(part, buckets[part], size)
        ]

    def _ask(self) -> dict[TopicPartition, Partition]:
        options = self._options
        named = options.topics
        if options.assigned is not None:
            named = tuple({topic for topic, _ in options.assigned})
        where = "" if named is None else " WHERE topic IN {topics:Array(String)}"
        params: dict[str, Parameter] = {} if named is None else {"topics": named}
        found: dict[TopicPartition, dict[int, tuple[str, int, int]]] = defaultdict(dict)
        for number, place in enumerate(self._places):
            sql = (
                "SELECT topic, topic_id, partition, log_start_offset, end_offset"
                f" FROM {place.database}.partition_stats{where}"
            )
            for topic, topic_id, partition, start, end in self._rows(place, sql, params):
                found[topic, int(partition)][number] = (topic_id, int(start), int(end))
        _check_named(options, found.keys())
        pattern = options.pattern
        return {
            key: _together(parts, len(self._places))
            for key, parts in sorted(found.items())
            if (pattern is None or re.search(pattern, key[0]))
            and (options.assigned is None or key in options.assigned)
        }

    def _at_times(self, times: Offsets, starting: bool) -> Offsets:
        """The first record that is not older, per partition; else the end, or an error."""
        found: Offsets = {}
        for (topic, partition), time in times.items():
            state = self.partitions[topic, partition]
            params: dict[str, Parameter] = {
                "topic": topic,
                "topic_id": state.topic_id,
                "partition": partition,
                "start": state.start,
                "until": state.end,
                "time": time,
            }
            offsets = []
            for place in self._places:
                sql = (
                    f"SELECT count(), min(offset) FROM {place.database}.messages"
                    f" WHERE {WHERE} AND NOT control AND timestamp_ms >= {{time:Int64}}"
                )
                answer = self._rows(place, sql, params)
                offsets += [int(offset) for count, offset in answer if int(count)]
            if not offsets and starting and not self._options.latest_if_no_time:
                raise LogError(
                    f"partition {partition} of topic {topic} has no record from {time} ms on: set"
                    " startingOffsetsByTimestampStrategy to latest to begin at its end"
                )
            found[topic, partition] = min(offsets, default=LATEST)
        return found

    def _buckets(
        self, parts: Iterable[_Part], width: int, filters: Filters
    ) -> dict[_Part, list[tuple[int, int]]]:
        """How many rows there are from what offset on. What is small anyway is not counted."""
        together: dict[tuple[int, str], list[_Part]] = defaultdict(list)
        found: dict[_Part, list[tuple[int, int]]] = {}
        for part in parts:
            if part.until - part.range.start > width:
                together[part.place, part.range.topic].append(part)
                found[part] = []
            else:
                found[part] = [(part.range.start, part.until - part.range.start)]
        table, condition = source(self._options)
        for (number, topic), some in together.items():
            place = self._places[number]
            by_partition = {part.range.partition: part for part in some}
            sql = (
                f"SELECT partition, intDiv(offset, {{width:Int64}}) * {{width:Int64}} AS first,"
                f" count() FROM {place.database}.{table} WHERE topic = {{topic:String}}"
                " AND topic_id = {topic_id:UUID} AND partition IN {partitions:Array(Int32)}"
                " AND offset >= {start:Int64} AND offset < {until:Int64}"
                f"{condition}{filters.sql} GROUP BY partition, first ORDER BY partition, first"
            )
            params: dict[str, Parameter] = {
                "width": width,
                "topic": topic,
                "topic_id": some[0].range.state.topic_id,
                "partitions": "[" + ",".join(str(number) for number in by_partition) + "]",
                "start": min(part.range.start for part in some),
                "until": max(part.until for part in some),
                **filters.params,
            }
            for partition, first, count in self._rows(place, sql, params):
                part = by_partition[int(partition)]
                if part.range.start < int(first) + width and int(first) < part.until:
                    found[part].append((int(first), int(count)))
        return found

    def _rows(self, place: Place, sql: str, params: Mapping[str, Parameter]) -> list[list[Any]]:
        return rows_of_any(place.urls, self._login, sql, params)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one place may have of a range."""

    range: Range
    place: int
    until: int


WHERE = (
    "topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
    " AND offset >= {start:Int64} AND offset < {until:Int64}"
)


def _resolved(offset: int, there: Partition) -> int:
    if offset == LATEST:
        return there.end
    return there.start if offset == EARLIEST else offset


def _check_named(options: ReadOptions, there: Iterable[TopicPartition]) -> None:
    """Raises LogError for what was named and is not there."""
    assigned = options.assigned or frozenset()
    topics = {topic for topic, _ in there}
    named = {*(options.topics or ()), *(topic for topic, _ in assigned)}
    if missing := sorted(named - topics):
        raise LogError(f"there is no topic {missing[0]}")
    for topic, partition in sorted(assigned.difference(there)):
        raise LogError(f"there is no partition {partition} of topic {topic}")


def slice_params(one: Slice, start: int) -> dict[str, str | int]:
    """For WHERE, with another start."""
    return {
        "topic": one.topic,
        "topic_id": one.topic_id,
        "partition": one.partition,
        "start": start,
        "until": one.until,
    }


def source(options: ReadOptions) -> tuple[str, str]:
    """What is read, and a condition to be put behind others: no control record is ever shown."""
    return ("messages_committed", "") if options.committed else ("messages", " AND NOT control")


def find_places(servers: Iterable[str], login: Login) -> tuple[Place, ...]:
    """Raises ServerError when none of the servers answers, or they cannot show all of the log."""
    whole: list[str] = []
    shards: dict[str, list[tuple[int, str]]] = defaultdict(list)
    away: list[Unreachable] = []
    for url in servers:
        try:
            ((of_whole, of_shard, shard, delay),) = rows(url, login, _FACTS, _FACTS_PARAMS)
        except Unreachable as error:
            away.append(error)
            continue
        if int(of_whole):
            whole.append(url)
        if int(of_shard):
            shards[shard].append((int(delay), url))
    if not whole and not shards:
        if away:
            raise Unreachable("; ".join(str(error) for error in away))
        raise Refused(f"there is no database {DATABASE} on {', '.join(servers)}")
    there = _shards_there(shards, login, needed=not whole) if shards else 0
    if shards and len(shards) == there:
        return tuple(
            Place(tuple(url for _, url in sorted(found)), SHARD_DATABASE)
            for _, found in sorted(shards.items())
        )
    if whole:
        return (Place(tuple(whole), DATABASE),)
    unknown = f" ({'; '.join(str(error) for error in away)})" if away else ""
    raise Unreachable(
        f"the servers reach {len(shards)} of the cluster's {there} shards:"
        f" name one of each{unknown}"
    )


_FACTS = (
    "SELECT"
    " (SELECT count() FROM system.tables WHERE database = {whole:String} AND name = 'messages'),"
    " (SELECT count() FROM system.tables WHERE database = {shard:String} AND name = 'messages'),"
    " (SELECT any(substitution) FROM system.macros WHERE macro = 'shard'),"
    " (SELECT max(absolute_delay) FROM system.replicas"
    " WHERE database = {shard:String} AND table = 'messages')"
)
_FACTS_PARAMS = {"whole": DATABASE, "shard": SHARD_DATABASE}


def _shards_there(
    shards: Mapping[str, list[tuple[int, str]]], login: Login, *, needed: bool
) -> int:
    """How many shards of the cluster have rows, or may have; 0 where that cannot be known."""
    urls = [url for found in shards.values() for _, url in found]
    sql = f"SELECT value FROM {SHARD_DATABASE}.registry WHERE key = {{key:String}}"
    try:
        stored = rows_of_any(urls, login, sql, {"key": SLOTS_KEY})
    except Refused:  # who may read rows need not see this table
        if needed:
            raise
        return 0
    if not stored:
        return 0
    # Before the text stand the marks of those who wrote it.
    text = str(stored[0][0])
    try:
        slot_map = SlotMap.from_text(text[text.find("{") :])
    except MalformedState as error:
        raise ServerError(f"the slot map in the registry is not one: {error}") from error
    return len({shard for slot in slot_map.slots for shard in slot.shards})


def _together(parts: Mapping[int, tuple[str, int, int]], places: int) -> Partition:
    """What the places say of one partition.

    Where a topic is being made again they may disagree for a moment: then it is one of the two.
    """
    topic_id = max(topic_id for topic_id, _, _ in parts.values())
    mine = {place: (start, end) for place, (one, start, end) in parts.items() if one == topic_id}
    return Partition(
        topic_id,
        start=max(start for start, _ in mine.values()),
        end=max(end for _, end in mine.values()),
        ends=tuple(mine[place][1] if place in mine else 0 for place in range(places)),
    )


def _cut(part: _Part, buckets: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets with at most `size` rows each, if no bucket alone has more."""
    start, rows_so_far = part.range.start, 0
    for first, count in buckets:
        if rows_so_far and rows_so_far + count > size:
            yield start, first
            start, rows_so_far = first, 0
        rows_so_far += count
    if rows_so_far:
        yield start, part.until


def shown(partitions: Iterable[TopicPartition]) -> str:
    """For messages."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"
