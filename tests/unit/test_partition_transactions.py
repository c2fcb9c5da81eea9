"""Which transactions of a partition were aborted, in any range of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.broker.log.partition_transactions import (
    ABORTED_KEPT,
    AbortedTransaction,
    OpenTransaction,
    PartitionTransactions,
)


@st.composite
def aborted(draw: st.DrawFn) -> list[AbortedTransaction]:
    ends = sorted(draw(st.sets(st.integers(1, 100), max_size=20)))
    return [
        AbortedTransaction(draw(st.integers(0, 3)), draw(st.integers(0, end - 1)), end)
        for end in ends
    ]


@given(aborted(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_the_aborted_transactions_of_a_range_are_those_that_overlap_it(
    known: list[AbortedTransaction], first: int, size: int, log_start: int
) -> None:
    transactions = PartitionTransactions()
    for one in known:
        transactions.note_aborted(one)
    end = first + size
    expected = [one for one in known if one.first_offset < end and one.last_offset >= first]
    assert transactions.aborted_between(first, end) == expected
    transactions.forget_below(log_start)
    left = [one for one in expected if one.last_offset >= log_start]
    assert transactions.aborted_between(first, end) == left
    for producer_id in range(4):
        of_producer = [
            one for one in known if one.producer_id == producer_id and one.last_offset >= log_start
        ]
        last = of_producer[-1] if of_producer else None
        assert transactions.last_aborted(producer_id) == last


def test_the_first_open_offset_is_that_of_the_oldest_open_transaction() -> None:
    transactions = PartitionTransactions()
    assert transactions.first_open_offset() is None
    transactions.open[7] = OpenTransaction(30, 1)
    transactions.open[8] = OpenTransaction(10, 0)
    assert transactions.first_open_offset() == 10
    assert transactions.has_open(7, 1)
    assert not transactions.has_open(7, 2), "the marker of the one before is on its way"


def test_only_the_last_aborted_transactions_are_listed() -> None:
    transactions = PartitionTransactions()
    known = [AbortedTransaction(n % 7, 10 * n, 10 * n + 5) for n in range(5 * ABORTED_KEPT)]
    for one in known:
        transactions.note_aborted(one)
        listed = transactions.aborted_between(0, 10**9)
        assert len(listed) <= 2 * ABORTED_KEPT
        assert listed[-1] == one
    assert len(listed) >= ABORTED_KEPT
    assert listed == [one for one in known if one.last_offset >= transactions.listed_from]
    assert transactions.last_aborted(3) == next(one for one in known[::-1] if one.producer_id == 3)


async def test_a_fetch_asks_the_table_only_for_transactions_that_are_no_longer_listed() -> None:
    transactions = PartitionTransactions()
    listed, forgotten = AbortedTransaction(1, 80, 90), AbortedTransaction(2, 10, 20)
    transactions.note_aborted(listed)
    transactions.listed_from = 50
    asked = []

    async def stored(first: int, end: int) -> list[AbortedTransaction]:
        asked.append((first, end))
        return [listed, forgotten]

    assert await transactions.aborted_in_fetch(50, 100, stored) == [listed]
    assert asked == []
    assert await transactions.aborted_in_fetch(49, 100, stored) == [forgotten, listed]
    assert asked == [(49, 100)]
