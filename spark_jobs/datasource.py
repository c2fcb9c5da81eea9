"""`spark.read.format("brokerhouse")`, and streams: the log, as Spark's Kafka source shows it.

Spark makes a `BrokerhouseDataSource` from options. Its readers plan on Spark's driver, and read a
slice each in its tasks. What must hold:

* A slice is read in the order of offsets. So a task that loses its server continues at another one
  after the last record that it gave to Spark, and no record comes twice.
* A stream's offsets are its only state, and they mean the same whenever they are read:
  `{"topic": {"0": 23}}`, the next offset of each partition.
* Records that were deleted before they could be read are an error, unless failOnDataLoss is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from brokerhouse.spark_jobs.filters import FITS, Filters
from brokerhouse.spark_jobs.options import ReadOptions, TopicPartition, check_schema, schema, shown
from brokerhouse.spark_jobs.slices import (
    OF_SLICE,
    DataLoss,
    LogSnapshot,
    OffsetRange,
    Offsets,
    PartitionOffsets,
    Slice,
    rows_to_read,
)
from brokerhouse.spark_jobs.sql_client import Attempts, SqlUnavailable
from brokerhouse.sql.queries import query

JsonOffsets = dict[str, dict[str, int]]

BATCH_MAX_BYTES = 64 * 1024 * 1024
"""Larger batches, of large records, are cut before they go to the JVM."""

# Topic and partition are the same for a whole slice: they are added here and not selected.
_SELECTED = {
    "key": "key",
    "value": "value",
    "timestamp": f"if({FITS}, timestamp_ms * 1000, NULL) AS microseconds",
    "timestampType": "CAST(timestamp_type, 'Int32') AS type",
    "headers": "arrayMap(header -> (toValidUTF8(header.1), header.2), headers) AS valid_headers",
}


class BrokerhouseDataSource(DataSource):
    """Pass it to `spark.dataSource.register`; its options are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "brokerhouse"

    def schema(self) -> StructType:
        return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return BatchReader(ReadOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        check_schema(schema)
        return StreamReader(ReadOptions.parse(self.options, streaming=True), schema)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, as of when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = Filters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return list(self._filters.push_down(filters))

    def partitions(self) -> list[InputPartition]:
        options = self._options
        snapshot = LogSnapshot(options)
        snapshot.refresh()
        starts = snapshot.resolve(options.starting, starting=True)
        ends = snapshot.resolve(options.ending, starting=False)
        ranges = _available(snapshot, starts, ends, options.fail_on_data_loss)
        return list(snapshot.slices(ranges, self._filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, self._filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads batch after batch, each from where the one before it ended."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._snapshot = LogSnapshot(options)
        self._seen: dict[TopicPartition, PartitionOffsets] = {}
        self._moving_start: JsonOffsets | None = None
        self._last: dict[TopicPartition, PartitionOffsets] | None = None

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        self._refresh()
        starting = self._options.starting
        initial = to_json(self._snapshot.resolve(starting, starting=True))
        if starting.by_time or starting.is_latest_somewhere:
            self._moving_start = initial
        return initial

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        if self._begins_here(start):
            return start
        if self._last is None:
            self._refresh()
        there = self._known() if self._last is None else self._last
        begin = from_json(start)
        ends = {key: found.end for key, found in there.items()}
        if isinstance(limit, ReadMaxRows):
            starts = {key: found.start for key, found in there.items()}
            ends = rate_limited(limit.max_rows, starts | begin, ends)
        return to_json(ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refresh()
        self._last = self._known()

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return to_json({key: found.end for key, found in self._known().items()}) or None

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        if start == end or self._begins_here(start):
            return []
        self._refresh()
        starts, ends = from_json(start), from_json(end)
        fail = self._options.fail_on_data_loss
        for key in ends.keys() - starts.keys():
            found = self._snapshot.partitions.get(key)
            starts[key] = found.start if found else 0
            if fail and starts[key]:
                raise DataLoss(f"partition {shown([key])} is new and begins at {starts[key]}")
        if fail:
            _check_still_there(self._snapshot, starts, ends)
        ranges = _available(self._snapshot, starts, ends, fail)
        return list(self._snapshot.slices(ranges, Filters()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, Filters())

    def _begins_here(self, start: JsonOffsets) -> bool:
        """Whether this is the first batch of a stream whose start would be another one later.

        Spark stores where a batch ends, but not where the first one began: after a crash it would
        begin at the latest offset of that time. So the first batch is empty, and Spark stores its
        end.
        """
        begins = start == self._moving_start
        self._moving_start = None
        return begins

    def _known(self) -> dict[TopicPartition, PartitionOffsets]:
        """The partitions of the last refresh, none with an end that went back."""
        return {key: self._seen[key] for key in self._snapshot.partitions}

    def _refresh(self) -> None:
        self._snapshot.refresh()
        for key, found in self._snapshot.partitions.items():
            before = self._seen.get(key, found)
            if before.topic_id == found.topic_id:
                # The end of a log never goes back: a replica that says so is behind the others.
                found = max(before, found, key=lambda one: one.end)
            elif self._options.fail_on_data_loss:
                raise DataLoss(f"topic {key[0]} was deleted and created again")
            self._seen[key] = found


def rate_limited(limit: int, begin: Offsets, ends: Offsets) -> Offsets:
    """Ends of a batch of about `limit` records, shared in proportion, at least one each."""
    sizes = {key: end - begin[key] for key, end in ends.items() if end > begin[key]}
    total = sum(sizes.values())
    return {
        key: min(end, begin[key] + max(1, limit * sizes[key] // total)) if key in sizes else end
        for key, end in ends.items()
    }


def to_json(offsets: Offsets) -> JsonOffsets:
    """The offsets in the order of topics and partitions: equal offsets give equal text."""
    found: JsonOffsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(found: JsonOffsets) -> Offsets:
    return {
        (topic, int(partition)): offset
        for topic, offsets in found.items()
        for partition, offset in offsets.items()
    }


def _check_still_there(snapshot: LogSnapshot, starts: Offsets, ends: Offsets) -> None:
    """Raises DataLoss where a partition no longer exists, or ends before what a stream has read."""
    if gone := (starts.keys() - ends.keys()) | (ends.keys() - snapshot.partitions.keys()):
        raise DataLoss(f"partitions no longer exist: {shown(gone)}")
    for key, until in ends.items():
        if until < starts[key]:
            raise DataLoss(f"{shown([key])} ends at {until} and was read up to {starts[key]}")


def _available(
    snapshot: LogSnapshot, starts: Offsets, ends: Offsets, fail: bool
) -> Iterator[OffsetRange]:
    """The part of the wanted ranges that exists. If it is not all, raises DataLoss with `fail`."""
    for key, until in ends.items():
        found, start = snapshot.partitions.get(key), starts[key]
        if found is None or start >= until:
            continue
        if fail and not found.start <= start < until <= found.end:
            raise DataLoss(
                f"{shown([key])} has offsets {found.start} to {found.end},"
                f" but {start} to {until} were asked for"
            )
        yield OffsetRange(*key, found, max(start, found.start), min(until, found.end))


def _read(
    one: InputPartition, options: ReadOptions, schema: StructType, filters: Filters
) -> Iterator[pa.RecordBatch]:
    """The records of a slice, in the order of offsets, each once."""
    if not isinstance(one, Slice):  # Spark's own, where there is nothing to read
        return
    to_spark = _Converter(one, schema)
    table, condition = rows_to_read(options)
    selected = ", ".join(["offset", *(_SELECTED[name] for name in to_spark.selected)])
    sql = (
        f"SELECT {selected} FROM {table} WHERE {OF_SLICE}{condition}{filters.sql}"
        " ORDER BY topic, partition, offset"
    )
    servers = one.shards[one.shard]
    position, attempts, complete = one.start, Attempts(servers.urls), False
    while not complete:
        parameters = one.parameters(position) | filters.params
        answer = servers.stream(attempts.url, sql, parameters)
        begun = False
        while True:
            try:
                batch = next(answer, None)
            except SqlUnavailable as error:
                attempts.failed(error)
                break
            if batch is not None and batch.num_rows == 0:
                continue
            first = None if batch is None else batch.column(0)[0].as_py()
            if not begun and first != position and options.fail_on_data_loss:
                _check_not_lost(one, position)
            if batch is None:
                complete = True
                break
            yield from to_spark(batch)
            begun, position = True, batch.column(0)[-1].as_py() + 1
            attempts.succeeded()


def _check_not_lost(one: Slice, position: int) -> None:
    """Raises DataLoss if the log now begins after `position`.

    Called only where the record at `position` is not the first that comes. That alone is not an
    error: the offset may be a control record, compacted away, or on another shard.
    """
    name = shown([(one.topic, one.partition)])
    start = 0
    for servers in one.shards:
        ((topics, log_start),) = servers.rows(
            query("topic_and_log_start"), {"topic_id": one.topic_id, "partition": one.partition}
        )
        if not topics:
            raise DataLoss(f"the topic of {name} was deleted while it was read")
        start = max(start, log_start or 0)
    if start > position:
        raise DataLoss(f"{name} begins at {start}, but {position} was to be read")


class _Converter:
    """Makes Spark's columns of ClickHouse's, by views instead of copies where possible."""

    def __init__(self, one: Slice, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._constants = {
            "topic": pa.scalar(one.topic, pa.string()),
            "partition": pa.scalar(one.partition, pa.int32()),
        }
        self.selected = [name for name in self._schema.names if name in _SELECTED]

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found = dict(zip(["offset", *self.selected], batch.columns, strict=True))
        columns = [
            pa.repeat(self._constants[field.name], batch.num_rows)
            if field.name in self._constants
            else _as(found[field.name], field.type)
            for field in self._schema
        ]
        yield from _pieces(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(wanted):
        return column.view(wanted)
    if pa.types.is_list(wanted):
        return _headers(column, wanted)
    return column.cast(wanted)


def _headers(column: pa.ListArray, wanted: pa.ListType) -> pa.ListArray:
    """Null where a record has no headers, as in Spark's Kafka source."""
    empty = pc.equal(pc.list_value_length(column), 0)
    if pc.all(empty).as_py():
        return pa.nulls(len(column), wanted)
    entry = wanted.value_type
    keys, values = column.values.flatten()
    # The type may be binary; the text is valid, because the query used toValidUTF8.
    keys = keys.cast(pa.binary()).view(entry.field(0).type)
    entries = pa.StructArray.from_arrays(
        [keys, values.cast(entry.field(1).type)], fields=[entry.field(0), entry.field(1)]
    )
    return pa.ListArray.from_arrays(column.offsets, entries, type=wanted, mask=empty)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= BATCH_MAX_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))
