"""Writes batches of offsets to remove into `compaction_removals`, in Spark's workers.

A batch is one row: ranges of offsets of one partition, at most `BATCH_RECORDS` records in
`BATCH_RANGES` ranges. Its id follows from the run, the partition and the offsets, and is the
insert's deduplication token: a task that runs again stores nothing twice. Which records are removed
is decided in compaction.py; broker/log/removals.py removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from brokerhouse.spark_jobs.compaction_targets import CompactionTarget
from brokerhouse.spark_jobs.sql_client import SqlServers

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_RECORDS = 1_000_000
BATCH_RANGES = 20_000
WRITTEN = (
    "target int, superseded long, tombstones long, bytes long, batches long, first_blocked long"
)
"""What the writer yields for each region; see `CompactionTotals`."""

_REMOVALS = pa.schema(
    [
        ("run_id", pa.string()),
        ("batch_id", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("ranges", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
        ("records", pa.uint64()),
        ("tombstones", pa.uint64()),
        ("bytes", pa.uint64()),
        ("log_end", pa.int64()),
        ("tombstones_end", pa.int64()),
    ]
)


class RemovalWriter:
    """Writes batches of offsets to remove into compaction_removals; runs in Spark's workers.

    Rows come sorted by target and offset, all rows of a region to one task. So a task that is run
    again makes the same batches, and the engine stores each once.
    """

    def __init__(
        self, run_id: str, targets: Sequence[CompactionTarget], servers: SqlServers | None
    ) -> None:
        """Without servers the batches are only counted."""
        self._run_id = run_id
        self._targets = targets
        self._servers = servers

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: tuple[int, int] | None = None
        batch = _RegionRemovals()
        for chunk in rows:
            target, offset, size, tombstone, superseded, blocked, region = (
                column.to_numpy(zero_copy_only=False) for column in chunk.columns
            )
            edges = np.flatnonzero((np.diff(target) != 0) | (np.diff(region) != 0)) + 1
            for start, end in zip([0, *edges], [*edges, len(target)], strict=True):
                if start == end:
                    continue
                here = int(target[start]), int(region[start])
                if here != current:
                    yield from self._finished(current, batch)
                    current, batch = here, _RegionRemovals()
                part = slice(start, end)
                removed = ~blocked[part]
                if not removed.all():
                    batch.block(int(offset[part][~removed][0]))
                batch.add(
                    offset[part][removed],
                    size[part][removed],
                    tombstone[part][removed],
                    superseded[part][removed],
                )
                if batch.is_full:
                    yield from self._finished(current, batch)
                    batch = _RegionRemovals()
        yield from self._finished(current, batch)

    def _finished(
        self, region: tuple[int, int] | None, batch: _RegionRemovals
    ) -> Iterator[pa.RecordBatch]:
        if region is None or not (batch.records or batch.first_blocked is not None):
            return
        number, _ = region
        batches = 0
        for ranges in batch.ranges():
            batches += 1
            if self._servers is not None:
                self._write(self._servers, self._targets[number], ranges, batch)
        tombstones = batch.records - batch.superseded
        row = [number, batch.superseded, tombstones, batch.bytes, batches, batch.first_blocked]
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in zip(_WRITTEN_SCHEMA.names, row, strict=True)},
            schema=_WRITTEN_SCHEMA,
        )

    def _write(
        self,
        servers: SqlServers,
        target: CompactionTarget,
        ranges: NDArray[np.int64],
        batch: _RegionRemovals,
    ) -> None:
        inside = (batch.offsets >= ranges[0, 0]) & (batch.offsets <= ranges[-1, 1])
        batch_id = uuid.uuid5(
            uuid.UUID(self._run_id),
            f"{target.topic_id} {target.partition} {ranges[0, 0]} {ranges[-1, 1]}",
        )
        row = removal(
            self._run_id,
            str(batch_id),
            target,
            ranges.tolist(),
            records=int(inside.sum()),
            tombstones=int(batch.tombstones[inside].sum()),
            size=int(batch.sizes[inside].sum()),
        )
        servers.insert("compaction_removals", row, str(batch_id))


_WRITTEN_TYPES = (column.split() for column in WRITTEN.split(", "))
_WRITTEN_SCHEMA = pa.schema(
    [(name, pa.int32() if kind == "int" else pa.int64()) for name, kind in _WRITTEN_TYPES]
)


class _RegionRemovals:
    """The records to remove of one region, in the order of offsets."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any, Any, Any]] = []
        self.records = 0
        self.first_blocked: int | None = None

    def block(self, offset: int) -> None:
        self.first_blocked = offset if self.first_blocked is None else self.first_blocked

    def add(self, *columns: Any) -> None:
        offsets, sizes, tombstones, superseded = columns
        if len(offsets):
            self._parts.append((offsets, sizes, tombstones, superseded))
            self.records += len(offsets)

    @property
    def is_full(self) -> bool:
        return self.records >= BATCH_RECORDS

    def _column(self, index: int) -> Any:
        parts = [part[index] for part in self._parts]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @property
    def offsets(self) -> Any:
        return self._column(0)

    @property
    def sizes(self) -> Any:
        return self._column(1)

    @property
    def tombstones(self) -> Any:
        return self._column(2)

    @property
    def superseded(self) -> int:
        return int(np.count_nonzero(self._column(3)))

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def ranges(self) -> Iterator[NDArray[np.int64]]:
        """First and last of each run of consecutive offsets, in pieces of BATCH_RANGES."""
        found = ranges_of(self.offsets)
        for start in range(0, len(found), BATCH_RANGES):
            yield found[start : start + BATCH_RANGES]


def ranges_of(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending offsets as an array of (first, last)."""
    if not len(offsets):
        return np.empty((0, 2), np.int64)
    edges = np.flatnonzero(np.diff(offsets) != 1)
    firsts = offsets[np.concatenate(([0], edges + 1))]
    lasts = offsets[np.concatenate((edges, [len(offsets) - 1]))]
    return np.column_stack((firsts, lasts)).astype(np.int64)


def removal(
    run_id: str,
    batch_id: str,
    target: CompactionTarget,
    ranges: Sequence[Sequence[int]],
    *,
    records: int = 0,
    tombstones: int = 0,
    size: int = 0,
    tombstones_end: int = 0,
) -> pa.Table:
    """A row of compaction_removals."""
    place = run_id, batch_id, target.topic, target.topic_id, target.partition
    removed = [{"first": first, "last": last} for first, last in ranges]
    row = [*place, removed, records, tombstones, size, target.bound, tombstones_end]
    return pa.table(
        [pa.array([value], field.type) for value, field in zip(row, _REMOVALS, strict=True)],
        schema=_REMOVALS,
    )
