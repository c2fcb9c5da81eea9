"""The transactions of one partition: which are open, and which were aborted.

Values, without IO or clock. A transaction begins here with the first batch of its producer and ends
with a marker of the coordinator. What lies below the first offset of every open transaction is
stable; read_committed consumers read no further, and leave out the aborted ones by the list that
they get with the records (KIP-98): `aborted_in_fetch` decides what is in that list.

Only the last aborted ones are kept in memory, the table has all (transaction_tables.py).

Each row of a transaction, its marker included, has the offset where the transaction began on this
partition (`transaction_start`): that is the name of the transaction there, for SQL as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import NamedTuple

from brokerhouse.storage.slot_map import VERSIONS_OF_EPOCH

ABORTED_KEPT = 1000
"""So many of the last aborted transactions are listed; up to twice as many, so that old ones are
dropped together."""


class OpenTransaction(NamedTuple):
    first_offset: int
    epoch: int


class AbortedTransaction(NamedTuple):
    """`last_offset` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int


StoredAborted = Callable[[int, int], Awaitable[Iterable[AbortedTransaction]]]
"""Reads aborted transactions with records in first <= offset < end from the table."""


class PartitionTransactions:
    """`open`: by producer id. `listed_from`: aborted transactions that ended before this offset are
    not listed.
    """

    __slots__ = (
        "_aborted",
        "_ends",
        "_last_aborted",
        "_longest",
        "_version",
        "listed_from",
        "open",
    )

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}
        self.listed_from = 0
        self._aborted: list[AbortedTransaction] = []
        self._ends: list[int] = []
        self._last_aborted: dict[int, AbortedTransaction] = {}
        self._longest = 0
        self._version = 0

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        if not self.open:  # as a rule
            return None
        return min(one.first_offset for one in self.open.values())

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer of this epoch has begun one. With version 2 of the protocol the epoch
        before may still have one: its marker is on its way.
        """
        found = self.open.get(producer_id)
        return found is not None and found.epoch == epoch

    def next_version(self, leader_epoch: int, now_ms: int) -> int:
        """Of a row of `open_transaction_versions`: higher than any before, by any leader."""
        self._version = max(self._version + 1, leader_epoch * VERSIONS_OF_EPOCH + now_ms)
        return self._version

    def note_version(self, version: int) -> None:
        """A row with this version is stored."""
        self._version = max(self._version, version)

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """One more, behind all that are known."""
        self._aborted.append(aborted)
        self._ends.append(aborted.last_offset)
        self._last_aborted[aborted.producer_id] = aborted
        self._longest = max(self._longest, aborted.last_offset - aborted.first_offset)
        if len(self._aborted) > 2 * ABORTED_KEPT:
            self.forget_below(self._ends[-ABORTED_KEPT])
            self.listed_from = self._ends[0]

    async def aborted_in_fetch(
        self, first: int, end: int, stored: StoredAborted
    ) -> list[AbortedTransaction]:
        """The aborted transactions of a fetch that read first <= offset < end.

        In the order of their ends. The table is asked only where the list does not go back so far;
        then this raises as `stored`.
        """
        listed = self.aborted_between(first, end)
        if first >= self.listed_from:
            return listed
        found = {*listed, *await stored(first, end)}
        return sorted(found, key=lambda one: one.last_offset)

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those listed with records in first <= offset < end, in the order of their ends."""
        found = []
        for one in islice(self._aborted, bisect_left(self._ends, first), None):
            if one.last_offset >= end + self._longest:
                break  # this one and all later ones began behind it
            if one.first_offset < end:
                found.append(one)
        return found

    def last_aborted(self, producer_id: int) -> AbortedTransaction | None:
        """The last transaction of this producer that was aborted."""
        return self._last_aborted.get(producer_id)

    def forget_below(self, offset: int) -> None:
        """Drop those that ended before this offset."""
        gone = bisect_left(self._ends, offset)
        if gone:
            for one in self._aborted[:gone]:
                if self._last_aborted.get(one.producer_id) is one:
                    del self._last_aborted[one.producer_id]
            del self._aborted[:gone]
            del self._ends[:gone]
