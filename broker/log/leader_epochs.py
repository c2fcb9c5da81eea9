"""Where each leader epoch of a log began, and what follows: where one ended. Values without IO.

An epoch begins where the log ends when its leader opens the log, and ends where the next one
begins, whether records were written in it or not. That is a fact of its own: retention,
DeleteRecords and compaction may remove every record of an epoch. broker/log/epoch_table.py stores
it. The rules are those of Kafka's LeaderEpochFileCache (KIP-101, KIP-320):

* An epoch in which nothing was written is forgotten when the next one begins at the same offset.
* Of the epochs that began at or below the log start, the last one is kept, and begins there.

A single broker has one epoch, the first, which began with the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_UNDEFINED = -1


class EpochStart(NamedTuple):
    epoch: int
    offset: int


class EpochEnd(NamedTuple):
    """Where an epoch ended: the offset after its last one."""

    epoch: int
    offset: int


NO_END = EpochEnd(_UNDEFINED, _UNDEFINED)
"""The answer for an epoch that has not begun."""


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The epochs of one log. Both numbers of `starts` ascend; the last epoch is the current one."""

    starts: tuple[EpochStart, ...] = ()

    def began(self, epoch: int, offset: int) -> LeaderEpochs:
        """With this epoch. What contradicts it is dropped: later epochs, and later offsets.

        An epoch that is the current one already keeps its offset, unless the new one is lower.
        """
        starts = list(self.starts)
        _begin(starts, epoch, offset)
        return LeaderEpochs(tuple(starts))

    def since(self, log_start: int) -> LeaderEpochs:
        """Without epochs that ended before the log starts; the first one that is left begins there.

        If the log starts below all of them, nothing changes.
        """
        count = bisect_right(self.starts, log_start, key=lambda one: one.offset)
        if count == 0 or (count == 1 and self.starts[0].offset == log_start):
            return self
        first = EpochStart(self.starts[count - 1].epoch, log_start)
        return LeaderEpochs((first, *self.starts[count:]))

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """The largest known epoch up to the given one, and where it ended. `NO_END` if in future.

        Of an epoch before all known ones, the records were removed: it ends where the first of
        these begins.
        """
        if epoch == _UNDEFINED or not self.starts or epoch > self.starts[-1].epoch:
            return NO_END
        if epoch == self.starts[-1].epoch:
            return EpochEnd(epoch, log_end)
        after = bisect_right(self.starts, epoch, key=lambda one: one.epoch)
        return EpochEnd(self.starts[after - 1].epoch if after else epoch, self.starts[after].offset)

    def at(self, offset: int) -> int:
        """The epoch in which this offset was written; -1 if that is not known."""
        after = bisect_right(self.starts, offset, key=lambda one: one.offset)
        return self.starts[after - 1].epoch if after else _UNDEFINED


def known_epochs(stored: Iterable[tuple[int, int]]) -> LeaderEpochs:
    """Of stored epochs and offsets, in any order, also several for one epoch."""
    starts: list[EpochStart] = []
    for epoch, offset in sorted(stored):
        _begin(starts, epoch, offset)
    return LeaderEpochs(tuple(starts))


def _begin(starts: list[EpochStart], epoch: int, offset: int) -> None:
    if starts and starts[-1].epoch == epoch and starts[-1].offset <= offset:
        return
    while starts and (starts[-1].epoch >= epoch or starts[-1].offset >= offset):
        starts.pop()
    starts.append(EpochStart(epoch, offset))
