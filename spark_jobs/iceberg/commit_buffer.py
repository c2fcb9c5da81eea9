"""What the coordinator knows of the commits, as a pure state machine. What makes each record count
once is in coordinator.py (offsets in the snapshot) and worker.py (files and offsets in one
transaction).

Invariants:
* Files leave the buffer only when their table has them, so a failed commit keeps them for the next.
* A commit takes a prefix of the control topic, everything before `next_offsets`, and only at a
  place where no transaction of a worker was read in part.
* Files of one table whose workers had the same partition are in snapshots of their own, in the
  order of the control topic: a later equality delete must apply to the earlier rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerhouse.spark_jobs.iceberg.events import (
    BeginCommit,
    DataComplete,
    DataFiles,
    Event,
    WrittenFile,
)

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event is on the control topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What one worker has sent in one transaction."""

    complete: DataComplete
    files: tuple[tuple[Place, DataFiles], ...]

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset((one.topic, one.partition) for one in self.complete.assignments)


@dataclass(slots=True)
class CommitBuffer:
    """`partitions`: how many the topics have. Times are in seconds, of a monotonic clock."""

    partitions: int
    interval_s: float
    timeout_s: float
    commit_id: str | None = None
    next_offsets: dict[int, int] = field(default_factory=dict)
    """Of the control topic: what was read, by partition."""
    _began: float = 0.0
    _ended: float = 0.0
    _answers: list[WorkerAnswer] = field(default_factory=list)
    _open: dict[str, list[tuple[Place, DataFiles]]] = field(default_factory=dict)

    def begin_at(self, now: float) -> None:
        """The coordinator has started; the first interval begins."""
        self._ended = now

    def add(self, place: Place, event: Event | None) -> None:
        """An event that was read from the control topic."""
        self.next_offsets[place.partition] = place.offset + 1
        if isinstance(event, DataFiles):
            self._open.setdefault(event.worker, []).append((place, event))
        elif isinstance(event, DataComplete):
            self._answers.append(WorkerAnswer(event, tuple(self._open.pop(event.worker, ()))))

    def is_due(self, now: float) -> bool:
        """Whether a commit is to begin."""
        return self.commit_id is None and now - self._ended >= self.interval_s

    def begin(self, commit_id: str, now: float) -> BeginCommit:
        self.commit_id, self._began = commit_id, now
        return BeginCommit(commit_id)

    def is_ready(self, now: float) -> bool:
        """Whether the commit that has begun can be made: all have answered, or it took too long."""
        if self.commit_id is None or self._open:
            return False
        return self.is_complete or now - self._began >= self.timeout_s

    @property
    def is_complete(self) -> bool:
        """Whether the answers to this commit cover all partitions."""
        return len(self._answered()) >= self.partitions

    def valid_through(self) -> int | None:
        """Through which time, in ms, all records are in the commit: of each partition the latest
        record, of these the earliest. None if a partition has none."""
        latest: dict[Partition, int] = {}
        for answer in self._answers:
            for one in answer.complete.assignments:
                if one.timestamp is not None:
                    partition = (one.topic, one.partition)
                    latest[partition] = max(latest.get(partition, 0), one.timestamp)
        if len(latest) < self.partitions or not self.is_complete:
            return None
        return min(latest.values())

    def tables(self) -> list[str]:
        """Those that files are waiting for."""
        return sorted({one.table for answer in self._answers for _, one in answer.files})

    def snapshots(
        self, table: str, stored: Mapping[int, int], table_uuid: str
    ) -> list[list[WrittenFile]]:
        """The snapshots to be made of a table, in their order and in one commit: files of each.

        `stored`: up to where the table has what the control topic has. Files of a table with the
        same name and another UUID, which was dropped, are left out.
        """
        runs: list[list[WorkerAnswer]] = []
        taken: frozenset[Partition] = frozenset()
        for answer in self._answers:
            if not runs or taken & answer.partitions:
                runs.append([])
                taken = frozenset()
            runs[-1].append(answer)
            taken |= answer.partitions
        new = [
            [
                file
                for answer in run
                for place, one in answer.files
                if one.table == table
                and one.table_uuid == table_uuid
                and place.offset >= stored.get(place.partition, 0)
                for file in one.files
            ]
            for run in runs
        ]
        return [files for files in new if files]

    def end(self, now: float) -> None:
        """All tables have what was waiting."""
        self._answers.clear()
        self.give_up(now)

    def give_up(self, now: float) -> None:
        """The commit failed; what waits is in the next one."""
        self.commit_id = None
        self._ended = now

    def _answered(self) -> set[Partition]:
        return {
            partition
            for answer in self._answers
            if answer.complete.commit_id == self.commit_id
            for partition in answer.partitions
        }
