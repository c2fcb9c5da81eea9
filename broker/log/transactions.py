"""The transactions of one partition: which are open, and which were aborted.

Values, without IO or clock. A transaction begins here with the first batch of its producer and ends
with a marker of the coordinator. What lies below the first offset of every open transaction is
stable; read_committed consumers read no further, and leave out the aborted ones by the list that
they get with the records (KIP-98).

Each row of a transaction, its marker included, has the offset where the transaction began on this
partition (`transaction_start`): that is the name of the transaction there, for SQL as well.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """`last_offset` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class PartitionTransactions:
    """`open`: the first offset of each producer's transaction, in the order in which they began."""

    __slots__ = ("_aborted", "_ends", "_last_aborted", "open", "recovered_epochs")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.recovered_epochs: dict[int, int] = {}
        """Of producers whose transactions were open when the log was opened."""
        self._aborted: list[AbortedTransaction] = []
        self._ends: list[int] = []
        self._last_aborted: dict[int, AbortedTransaction] = {}

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return min(self.open.values(), default=None)

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """One more, behind all that are known."""
        self._aborted.append(aborted)
        self._ends.append(aborted.last_offset)
        self._last_aborted[aborted.producer_id] = aborted

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with records in first <= offset < end, in the order of their ends."""
        found = self._aborted[bisect_left(self._ends, first) :]
        return [one for one in found if one.first_offset < end]

    def last_aborted(self, producer_id: int) -> AbortedTransaction | None:
        """The last transaction of this producer that was aborted."""
        return self._last_aborted.get(producer_id)

    def forget_below(self, offset: int) -> None:
        """The log begins here now."""
        gone = bisect_left(self._ends, offset)
        if gone:
            for one in self._aborted[:gone]:
                if self._last_aborted.get(one.producer_id) is one:
                    del self._last_aborted[one.producer_id]
            del self._aborted[:gone]
            del self._ends[:gone]
