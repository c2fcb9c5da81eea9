"""The partitions of a lane whose next batch is large when it is decompressed.

While such a batch is decompressed (decompression.py), the later batches of its partition wait
behind it, in their order; the lane stores those of other partitions. The batches behind it are
decompressed meanwhile. Each asks for room after the one before it has its own, so what has room is
never stuck behind what has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from brokerhouse.broker.log.batch_records import BatchRecords
from brokerhouse.broker.log.block import PendingAppend
from brokerhouse.broker.log.decompression import Decompressions, LargeBatch
from brokerhouse.broker.log.partition import PartitionLog


class _Line:
    """The batches of one partition: the first `asked` of them have asked for room."""

    __slots__ = ("asked", "batches", "is_asking")

    def __init__(self) -> None:
        self.batches: deque[LargeBatch] = deque()
        self.asked = 0
        self.is_asking = False


class LargeBatches:
    """Those of one lane: its `LargeBatchWaiter`."""

    def __init__(self, decompressions: Decompressions, wake: Callable[[], None]) -> None:
        """`wake` is called when there may be something to store."""
        self._decompressions = decompressions
        self._wake = wake
        self._lines: dict[PartitionLog, _Line] = {}
        self._ready: dict[PartitionLog, None] = {}  # its first batch is decompressed; in turn
        self._in_block: dict[int, LargeBatch] = {}  # by the id of the append

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def has_ready(self) -> bool:
        """Whether `next_appends` has something."""
        return bool(self._ready)

    def holds(self, partition: PartitionLog) -> bool:
        """Whether batches of this partition must wait behind a large one."""
        return partition in self._lines

    def add(self, append: PendingAppend, begun: BatchRecords | None = None) -> None:
        """A batch that turned out to be large, or a batch behind one.

        `begun`: how far the lane got with it.
        """
        line = self._lines.setdefault(append.partition, _Line())
        line.batches.append(LargeBatch(append, self, begun))
        self._ask(line)

    def next_appends(self, max_bytes: int) -> list[PendingAppend]:
        """Batches for the next block: until they have `max_bytes`, and at least one."""
        appends: list[PendingAppend] = []
        size = 0
        while self._ready and size < max_bytes:
            partition = next(iter(self._ready))
            del self._ready[partition]
            line = self._lines[partition]
            while line.batches and line.batches[0].is_finished and size < max_bytes:
                batch = line.batches.popleft()
                line.asked -= 1
                self._in_block[id(batch.append)] = batch
                appends.append(batch.append)
                size += batch.append.size + batch.room
            self._settle(partition, line)
        return appends

    def put_back(self, append: PendingAppend) -> bool:
        """Return a batch that did not fit into the block. False if it is not a large one."""
        batch = self._in_block.pop(id(append), None)
        if batch is None:
            return False
        line = self._lines.setdefault(append.partition, _Line())
        line.batches.appendleft(batch)
        line.asked += 1
        self._ready[append.partition] = None
        return True

    def end_block(self) -> None:
        """The batches of the block are stored or refused."""
        batches, self._in_block = self._in_block, {}
        for batch in batches.values():
            self._decompressions.release(batch)

    def remove(self, partitions: Collection[PartitionLog]) -> Iterator[PendingAppend]:
        """Take everything that waits for these partitions out, to refuse it."""
        for partition in partitions:
            line = self._lines.pop(partition, None)
            self._ready.pop(partition, None)
            for batch in () if line is None else line.batches:
                batch.is_removed = True
                yield batch.append
                if batch.is_finished:
                    self._decompressions.release(batch)
        self._decompressions.grant_in_turn()  # what was refused needs no room

    def remove_all(self) -> Iterator[PendingAppend]:
        return self.remove(tuple(self._lines))

    # --- `LargeBatchWaiter`

    def granted(self, batch: LargeBatch) -> None:
        line = self._lines.get(batch.append.partition)
        if line is not None:
            self._ask(line)

    def finished(self, batch: LargeBatch) -> None:
        if batch.is_removed:
            self._decompressions.release(batch)
        elif self._lines[batch.append.partition].batches[0] is batch:
            self._ready[batch.append.partition] = None
            self._wake()

    def _ask(self, line: _Line) -> None:
        """Ask for room for further batches, as long as the one before has its own."""
        if line.is_asking:
            return  # called by what is below
        line.is_asking = True
        while line.asked < len(line.batches) and (
            line.asked == 0 or line.batches[line.asked - 1].is_granted
        ):
            line.asked += 1
            self._decompressions.request(line.batches[line.asked - 1])
        line.is_asking = False

    def _settle(self, partition: PartitionLog, line: _Line) -> None:
        if not line.batches:
            del self._lines[partition]
        elif line.batches[0].is_finished:
            self._ready[partition] = None
