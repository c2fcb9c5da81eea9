"""The newest batches in memory: within the budget, and always the same answer as the log."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from brokerhouse.broker.log.tail_cache import CachedBatch, PartitionTail, TailCache
from tests.support.examples import up_to

OVERHEAD_BYTES = 250


def batch(base: int, count: int = 1, size: int = 100) -> CachedBatch:
    return CachedBatch(base, base + count - 1, b"%d" % base + b"." * (size - len(b"%d" % base)))


def add(cache: TailCache, tail: PartitionTail, one: CachedBatch) -> None:
    cache.add(tail, one.base_offset, one.last_offset, one.data)


def filled(*batches: CachedBatch, budget: int = 1 << 20) -> PartitionTail:
    cache, tail = TailCache(budget), PartitionTail()
    for one in batches:
        add(cache, tail, one)
    return tail


def bases(found: list[bytes] | None) -> list[int] | None:
    return None if found is None else [int(data.rstrip(b".")) for data in found]


def test_an_empty_tail_has_no_records() -> None:
    tail = PartitionTail()
    assert tail.start_offset is None
    assert tail.read(0, 1000, at_least_one=True) is None


THREE = filled(batch(10, 5), batch(15, 5), batch(20, 5))


@pytest.mark.parametrize(
    ("offset", "max_bytes", "at_least_one", "expected"),
    [
        pytest.param(10, 1000, False, [10, 15, 20], id="everything from the start"),
        pytest.param(9, 1000, True, None, id="an offset before it has to come from the engine"),
        pytest.param(14, 1000, False, [10, 15, 20], id="the batch that holds the offset, whole"),
        pytest.param(15, 1000, False, [15, 20], id="from the first offset of a batch"),
        pytest.param(24, 1000, False, [20], id="the last offset"),
        pytest.param(25, 1000, True, [], id="nothing is there yet"),
        pytest.param(10, 200, False, [10, 15], id="as many as fit exactly"),
        pytest.param(10, 199, False, [10], id="never a part of a batch"),
        pytest.param(10, 99, False, [], id="none fits"),
        pytest.param(10, 99, True, [10], id="none fits and one must be (KIP-74)"),
        pytest.param(10, 0, True, [10], id="one must be, without room"),
        pytest.param(10, -1, True, [10], id="one must be, with less than no room"),
        pytest.param(10, -1, False, [], id="less than no room"),
    ],
)
def test_reads_are_whole_batches_within_the_limit(
    offset: int, max_bytes: int, at_least_one: bool, expected: list[int] | None
) -> None:
    assert bases(THREE.read(offset, max_bytes, at_least_one)) == expected


def test_an_offset_between_batches_reads_from_the_next() -> None:
    gap = filled(batch(0, 2), batch(10, 2))
    assert bases(gap.read(5, 1000, at_least_one=False)) == [10]


def test_the_oldest_batch_of_all_partitions_is_dropped_first() -> None:
    cache, a, b = TailCache(3 * (100 + OVERHEAD_BYTES)), PartitionTail(), PartitionTail()
    for tail, base in ((a, 0), (b, 0), (a, 1)):
        add(cache, tail, batch(base))
    assert (a.start_offset, b.start_offset) == (0, 0)
    add(cache, b, batch(1))
    assert (a.start_offset, b.start_offset) == (1, 0)
    add(cache, a, batch(2))
    assert (a.start_offset, b.start_offset) == (1, 1)
    add(cache, a, batch(3))
    assert (a.start_offset, b.start_offset) == (2, 1)


def test_a_batch_larger_than_the_budget_is_not_cached_and_evicts_nothing_needed() -> None:
    cache, tail = TailCache(1000), PartitionTail()
    add(cache, tail, batch(0))
    add(cache, tail, batch(1, size=5000))
    assert tail.start_offset is None
    add(cache, tail, batch(2))
    assert bases(tail.read(2, 1000, at_least_one=False)) == [2]
    assert tail.read(1, 1000, at_least_one=True) is None


def test_a_cache_without_a_budget_keeps_nothing() -> None:
    tail = filled(batch(0), budget=0)
    assert tail.start_offset is None


def test_many_small_batches_stay_within_the_budget_with_their_overhead() -> None:
    tail = filled(*(batch(n, size=10) for n in range(10_000)), budget=100 * (10 + OVERHEAD_BYTES))
    assert tail.start_offset == 9900
    assert len(tail._batches) < 500


class Tails(RuleBasedStateMachine):
    """Three partitions that share a cache, against lists that keep everything."""

    @initialize(budget=st.integers(0, 5000))
    def begin(self, budget: int) -> None:
        self.budget = budget
        self.cache = TailCache(budget)
        self.tails = [PartitionTail() for _ in range(3)]
        self.logs: list[list[CachedBatch]] = [[], [], []]
        self.order: list[tuple[int, CachedBatch]] = []

    @rule(
        number=st.integers(0, 2),
        gap=st.sampled_from([0, 0, 0, 1, 50]),
        count=st.integers(1, 20),
        size=st.integers(10, 1500),
    )
    def append(self, number: int, gap: int, count: int, size: int) -> None:
        log = self.logs[number]
        one = batch(log[-1].last_offset + 1 + gap if log else 0, count, size)
        log.append(one)
        self.order.append((number, one))
        add(self.cache, self.tails[number], one)

    def kept(self) -> list[tuple[int, CachedBatch]]:
        """The newest of all that fit the budget together."""
        size, kept = 0, []
        for number, one in reversed(self.order):
            size += len(one.data) + OVERHEAD_BYTES
            if size > self.budget:
                break
            kept.append((number, one))
        return kept[::-1]

    @rule(
        number=st.integers(0, 2),
        back=st.integers(-2, 60),
        max_bytes=st.integers(-1, 4000),
        at_least_one=st.booleans(),
    )
    def read(self, number: int, back: int, max_bytes: int, at_least_one: bool) -> None:
        log = self.logs[number]
        offset = (log[-1].last_offset + 1 if log else 0) - back
        kept = [one for owner, one in self.kept() if owner == number]
        found = self.tails[number].read(offset, max_bytes, at_least_one)
        if not kept or offset < kept[0].base_offset:
            assert found is None
            return
        expected: list[bytes] = []
        for one in kept:
            if one.last_offset >= offset:
                if sum(map(len, expected)) + len(one.data) > max_bytes and (
                    expected or not at_least_one
                ):
                    break
                expected.append(one.data)
        assert found == expected

    @invariant()
    def each_tail_starts_with_the_oldest_that_is_kept(self) -> None:
        kept = self.kept()
        for number, tail in enumerate(self.tails):
            mine = [one for owner, one in kept if owner == number]
            assert tail.start_offset == (mine[0].base_offset if mine else None)


TestTails = Tails.TestCase
TestTails.settings = settings(max_examples=up_to(50), stateful_step_count=40)
