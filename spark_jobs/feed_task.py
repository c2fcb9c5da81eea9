"""What a worker of Spark does with the records of a micro-batch: blocks, by the feeds' protocol.

Rows come in the order of a partition's offsets, as Spark's Kafka source gives them. They are cut
into blocks; each is begun, stored and completed before the next one. Of a batch that comes again,
after the task has failed, only the rest is stored, and a block that had begun is repeated with the
same offsets. A block begins where the one before it ended: between them are only offsets that no
consumer sees (markers of transactions, records that compaction removed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc

from brokerhouse.feeds.blocks import BlockCounts, Offsets, Phase, plan
from brokerhouse.feeds.progress import Fenced
from brokerhouse.feeds.writer import FeedSource
from brokerhouse.spark_jobs.feed_state import FeedRegistry, SparkFeedProgress
from brokerhouse.spark_jobs.feed_writer import SparkBlockWriter, SparkFeed
from brokerhouse.spark_jobs.sql_client import Attempts, SqlServers, SqlUnavailable
from brokerhouse.storage.engine import TokenUsed

BLOCK_MAX_BYTES = 64 << 20
RESULT = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "rows": pa.int64(),
    "dead_letters": pa.int64(),
    "fenced": pa.string(),
}
"""What a task returns of a partition. `fenced`: who has taken over, or nothing."""
RESULT_COLUMNS = "topic string, partition int, rows bigint, dead_letters bigint, fenced string"


@dataclass(frozen=True, slots=True)
class FeedTask:
    """Called by Spark with a part of the rows; travels to the workers.

    `feeder`: the run of the job, which has taken over the partitions. `topics`: the id of each.
    """

    servers: SqlServers
    registry: FeedRegistry
    feed: SparkFeed
    feeder: str
    topics: Mapping[str, str]
    block_records: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises SqlFailure."""
        done: dict[tuple[str, int], PartitionBlocks] = {}
        for batch in batches:
            for source, rows in self.by_partition(pa.table(batch)):
                key = (source.topic, source.partition)
                if key not in done:
                    for other in done.values():
                        other.finish()
                    done[key] = self.blocks(source)
                done[key].add(rows)
        for blocks in done.values():
            blocks.finish()
        if done:
            results = [blocks.result() for blocks in done.values()]
            yield pa.RecordBatch.from_pylist(results, pa.schema(RESULT))

    def progress(self, source: FeedSource) -> SparkFeedProgress:
        feed = (self.feed.name, self.feed.feed_id)
        return SparkFeedProgress(self.servers, self.registry, feed, self.feeder, source)

    def source(self, topic: str, partition: int) -> FeedSource:
        return FeedSource(topic, UUID(self.topics[topic]), partition)

    def blocks(self, source: FeedSource) -> PartitionBlocks:
        return PartitionBlocks(self, source)

    def by_partition(self, rows: pa.Table) -> Iterator[tuple[FeedSource, pa.Table]]:
        places = rows.group_by(["topic", "partition"], use_threads=False).aggregate([])
        for place in places.to_pylist():
            mine = pc.and_(
                pc.equal(rows["topic"], place["topic"]),
                pc.equal(rows["partition"], place["partition"]),
            )
            part = rows if places.num_rows == 1 else rows.filter(mine)
            yield self.source(place["topic"], place["partition"]), part


class PartitionBlocks:
    """Makes blocks of the rows that are added, of one partition and in their order.

    When another run has taken over, nothing more is stored. Everything raises SqlFailure.
    """

    def __init__(self, task: FeedTask, source: FeedSource) -> None:
        self._task = task
        self._source = source
        self._waiting: list[pa.Table] = []
        self._counted = BlockCounts()
        self._fenced = ""
        self._progress = task.progress(source)
        self._unless_fenced(self._progress.open)

    def add(self, rows: pa.Table) -> None:
        while rows.num_rows and not self._fenced:
            begun = self._begun
            rows = rows.filter(pc.greater_equal(rows["offset"], self._known_end))
            # Of a block that has begun the records are known; another one takes what is there.
            room = (
                pc.sum(pc.less(rows["offset"], begun.end)).as_py() or 0
                if begun
                else self._task.block_records - self._waiting_rows
            )
            self._waiting.append(rows.slice(0, room))
            rows = rows.slice(room)
            is_full = rows.num_rows > 0 if begun else self._is_full
            if is_full and not self._fenced:
                self._unless_fenced(self._form)

    def finish(self) -> None:
        if self._waiting_rows and not self._fenced:
            self._unless_fenced(self._form)

    def repeat_without_records(self) -> None:
        """Complete a block that has begun, and of which Kafka has no record any more."""
        if not self._fenced and self._progress.state.phase is Phase.BEFORE:
            self._unless_fenced(lambda: self._store(None, again=True))

    def result(self) -> dict[str, object]:
        return {
            "topic": self._source.topic,
            "partition": self._source.partition,
            "rows": self._counted.rows,
            "dead_letters": self._counted.dead_letters,
            "fenced": self._fenced,
        }

    @property
    def _begun(self) -> Offsets | None:
        """The block that an earlier attempt of this task has begun and not completed."""
        state = self._progress.state
        return state.offsets if state.phase is Phase.BEFORE else None

    @property
    def _known_end(self) -> int:
        """Records below it are stored."""
        return self._begun.first if self._begun else self._progress.state.next_offset

    @property
    def _waiting_rows(self) -> int:
        return sum(map(len, self._waiting))

    @property
    def _is_full(self) -> bool:
        waiting_bytes = sum(part.nbytes for part in self._waiting)
        return self._waiting_rows >= self._task.block_records or waiting_bytes >= BLOCK_MAX_BYTES

    def _unless_fenced(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Fenced as error:
            self._fenced = str(error)

    def _form(self) -> None:
        """Store what waits."""
        if not self._waiting_rows:
            raise ValueError(f"none of the records of {self._begun} came again")
        rows, self._waiting = pa.concat_tables(self._waiting), []
        offsets = rows["offset"]
        batch = Offsets(offsets[0].as_py(), offsets[-1].as_py() + 1)
        todo = plan(self._progress.state, batch)
        if todo.replay is not None:
            self._store(rows.filter(pc.less(offsets, todo.replay.end)), again=True)
        if todo.insert is not None:
            first = (todo.skipped or todo.insert).first
            self._progress.begin(Offsets(first, todo.insert.end))
            rest = pc.greater_equal(offsets, todo.insert.first)
            self._store(rows.filter(rest), again=False)

    def _store(self, rows: pa.Table | None, *, again: bool) -> None:
        attempts = Attempts(self._task.servers.urls)
        # Each micro-batch uses the same session; a broker has room for a few hundred.
        session = f"{self._task.feeder}-{self._source.topic_id}-{self._source.partition}"
        while True:
            writer = SparkBlockWriter(
                self._task.servers,
                attempts.url,
                session,
                self._task.feed,
                self._source,
                self._progress.fence,
            )
            try:
                counted = self._write(writer, rows, again=again)
            except SqlUnavailable as error:
                self._progress.check()
                attempts.failed(error)
                session, again = uuid4().hex, True  # the other may still be busy
            except TokenUsed:
                self._try_again(writer)
                again = False  # nobody has used the next token, and a table may merge rows at once
            else:
                self._complete(counted)
                self._counted += counted
                return

    def _write(
        self, writer: SparkBlockWriter, rows: pa.Table | None, *, again: bool
    ) -> BlockCounts:
        return writer.write(self._progress.state, rows, again=again)

    def _try_again(self, writer: SparkBlockWriter) -> None:
        """First the change of the state, which a fenced run cannot make."""
        self._progress.try_again()
        writer.take_away(self._progress.state)

    def _complete(self, counted: BlockCounts) -> None:
        self._progress.complete(counted)
