"""Dead letters of a feed that are parsed again, after a fix. Runs in workers.

As in the broker's own feeds, those that fit now become rows and are marked as replayed, and the
others keep their place with a new error and time. Their records are read from Kafka again: those
that it has deleted stay dead letters.

They go in blocks, whose rows are known by a token. Such a block is a part of the state
(feeds/blocks.py) from before its rows are inserted until its dead letters are written:
a run that finds one removes what is stored of it, and stores it again. The dead letters of a block
are written by one insert, so either all of them still wait, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from brokerhouse.feeds.blocks import BlockCounts, Offsets, Replay
from brokerhouse.feeds.feeder import EVERYWHERE
from brokerhouse.feeds.statements import DEAD
from brokerhouse.feeds.writer import FeedSource
from brokerhouse.spark_jobs.feed_task import FeedTask, PartitionBlocks
from brokerhouse.spark_jobs.feed_writer import SparkBlockWriter
from brokerhouse.storage.engine import Parameter


@dataclass(frozen=True, slots=True)
class ReplayTask(FeedTask):
    """As FeedTask, of records that are dead letters older than `asked_ms`."""

    asked_ms: int

    def blocks(self, source: FeedSource) -> ReplayBlocks:
        return ReplayBlocks(self, source)

    def range_of(self, source: FeedSource, replay: Replay) -> Offsets | None:
        """From the first dead letter of the replay to its last; None if there are none."""
        [[first, last, count]] = self.servers.rows(
            f"SELECT min(offset), max(offset), toInt64(count()) {_DEAD}",
            self._parameters(source, replay),
        )
        return Offsets(first, last + 1) if count else None

    def offsets_of(self, source: FeedSource, asked_ms: int) -> pa.ChunkedArray:
        replay = Replay(asked_ms, EVERYWHERE)
        found = self.servers.table(f"SELECT offset {_DEAD}", self._parameters(source, replay))
        return found["offset"]

    def _parameters(self, source: FeedSource, replay: Replay) -> dict[str, Parameter]:
        place = source.range(replay.offsets)
        return {**place, "feed_id": self.feed.feed_id, "asked_ms": replay.asked_ms}


_DEAD = f"{DEAD} AND offset >= {{first:Int64}} AND offset < {{end:Int64}}"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Called by Spark in its workers: leaves those records that are dead letters.

    It looks when the task begins: one that failed may have stored some of them.
    """

    task: ReplayTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises SqlFailure."""
        offsets: dict[tuple[str, int], pa.ChunkedArray] = {}
        for batch in batches:
            for source, rows in self.task.by_partition(pa.table(batch)):
                key = (source.topic, source.partition)
                if key not in offsets:
                    offsets[key] = self.task.offsets_of(source, self._asked_ms(source))
                dead = pc.is_in(rows["offset"], value_set=offsets[key])
                yield from rows.filter(dead).combine_chunks().to_batches()

    def _asked_ms(self, source: FeedSource) -> int:
        progress = self.task.progress(source)
        begun = progress.state.replay if progress.exists() else None
        return begun.asked_ms if begun else self.task.asked_ms


class ReplayBlocks(PartitionBlocks):
    """Makes blocks of dead letters."""

    def __init__(self, task: ReplayTask, source: FeedSource) -> None:
        super().__init__(task, source)
        self._replaying = task

    def repeat_without_records(self) -> None:
        """Complete a replay of which Kafka has no dead letter any more, or that has none left."""
        if not self._fenced and self._progress.state.replay is not None:
            self._unless_fenced(self._without_records)

    @property
    def _begun(self) -> Offsets | None:
        replay = self._progress.state.replay
        return replay.offsets if replay else None

    @property
    def _known_end(self) -> int:
        return self._begun.first if self._begun else 0

    def _form(self) -> None:
        begun = self._begun
        if not self._waiting_rows:
            self._without_records()
            return
        rows, self._waiting = pa.concat_tables(self._waiting), []
        if begun is None:
            offsets = Offsets(rows["offset"][0].as_py(), rows["offset"][-1].as_py() + 1)
            self._progress.begin_replay(Replay(self._replaying.asked_ms, offsets))
        self._store(rows, again=begun is not None)

    def _without_records(self) -> None:
        replay = self._progress.state.replay
        assert replay is not None, "no replay has begun"
        if self._replaying.range_of(self._source, replay) is None:
            self._progress.complete_replay()
        else:
            self._store(None, again=True)

    def _write(
        self, writer: SparkBlockWriter, rows: pa.Table | None, *, again: bool
    ) -> BlockCounts:
        return writer.replay(self._progress.state, rows, again=again)

    def _try_again(self, writer: SparkBlockWriter) -> None:
        self._progress.try_replay_again()
        writer.take_away_replay(self._progress.state)

    def _complete(self, counted: BlockCounts) -> None:
        self._progress.complete_replay()
