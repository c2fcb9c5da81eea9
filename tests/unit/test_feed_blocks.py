"""The protocol of feeds: every case of its design, and a model in which feeders die anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from brokerhouse.feeds.blocks import (
    BlockCounts,
    BlockPlan,
    Case,
    FeedState,
    Offsets,
    Phase,
    begun,
    completed,
    first_state,
    moved_to_keeper,
    plan,
    state_from_text,
    taken_over,
    token,
    tried_again,
)

LAST = Offsets(10, 20)


def state(phase: Phase) -> FeedState:
    before = begun(first_state("one", 10), LAST)
    return before if phase is Phase.BEFORE else completed(before, BlockCounts(9, 1))


@pytest.mark.parametrize(
    ("batch", "case", "insert", "skipped"),
    [
        (Offsets(20, 30), Case.NEW, Offsets(20, 30), None),
        (Offsets(25, 30), Case.NEW, Offsets(25, 30), Offsets(20, 25)),
        (Offsets(10, 20), Case.SAME, None, None),
        (Offsets(10, 25), Case.OVERLAPPING, Offsets(20, 25), None),
        (Offsets(15, 25), Case.OVERLAPPING, Offsets(20, 25), None),
        (Offsets(12, 18), Case.CONTAINED, None, None),
        (Offsets(10, 15), Case.CONTAINED, None, None),
        (Offsets(15, 20), Case.CONTAINED, None, None),
        (Offsets(5, 15), Case.BEFORE_PREVIOUS, None, None),
        (Offsets(5, 25), Case.BEFORE_PREVIOUS, Offsets(20, 25), None),
        (Offsets(0, 5), Case.BEFORE_PREVIOUS, None, None),
    ],
)
@pytest.mark.parametrize("phase", Phase)
def test_a_batch_is_cut_to_the_records_that_are_not_stored(
    phase: Phase, batch: Offsets, case: Case, insert: Offsets | None, skipped: Offsets | None
) -> None:
    replay = LAST if phase is Phase.BEFORE else None

    assert plan(state(phase), batch) == BlockPlan(case, replay, insert, skipped)


def test_the_first_batch_is_not_cut() -> None:
    fresh = first_state("one", 10)

    assert plan(fresh, Offsets(10, 12)) == BlockPlan(Case.NEW, insert=Offsets(10, 12))
    assert plan(fresh, Offsets(5, 12)) == BlockPlan(Case.BEFORE_PREVIOUS, insert=Offsets(10, 12))


def test_totals_are_counted_from_the_reference_block_on() -> None:
    after = completed(begun(state(Phase.AFTER), Offsets(20, 30)), BlockCounts(7, 3))

    assert (after.reference, after.next_offset) == (10, 30)
    assert (after.counted, after.total) == (BlockCounts(7, 3), BlockCounts(16, 4))


def test_a_step_that_would_lose_or_repeat_records_is_refused() -> None:
    with pytest.raises(ValueError, match="is not complete"):
        begun(state(Phase.BEFORE), Offsets(20, 30))
    with pytest.raises(ValueError, match="below 20 are stored"):
        begun(state(Phase.AFTER), Offsets(19, 30))
    with pytest.raises(ValueError, match="no block has begun"):
        completed(state(Phase.AFTER), BlockCounts())
    for first, end in ((5, 5), (6, 5), (-1, 5)):
        with pytest.raises(ValueError, match="no range"):
            Offsets(first, end)


@pytest.mark.parametrize("phase", Phase)
def test_a_state_is_read_back_from_its_text(phase: Phase) -> None:
    for one in (state(phase), tried_again(taken_over(state(phase), "two")), first_state("x", 3)):
        assert state_from_text(one.as_text()) == one


def test_every_block_and_attempt_has_a_token_of_its_own() -> None:
    names = {
        token(feed, topic, partition, offsets, attempt)
        for feed in ("a", "b")
        for topic in ("t", "u")
        for partition in (0, 1)
        for offsets in (Offsets(0, 5), Offsets(0, 6), Offsets(1, 5))
        for attempt in (0, 1, 11)
    }

    assert len(names) == 2 * 2 * 2 * 3 * 3


class Model:
    """A registry, and a table that knows tokens. Feeders of any number act on it, step by step."""

    def __init__(self) -> None:
        self.version = 0
        self.text = ""
        self.rows: list[int] = []
        self.tokens: set[str] = set()

    def compare_and_set(self, version: int, text: str) -> bool:
        if version != self.version:
            return False
        self.version, self.text = version + 1, text
        return True

    def insert(self, name: str, offsets: Offsets) -> None:
        if name not in self.tokens:
            self.tokens.add(name)
            self.rows += range(offsets.first, offsets.end)


class ModelFeeder:
    """One step of the protocol at a time; between any two it may die, or sleep for long."""

    def __init__(self, model: Model, name: str, chance: random.Random) -> None:
        self.model = model
        self.chance = chance
        self.name = name
        self.alive = True
        self.steps = self.run()

    def run(self) -> Iterator[None]:
        model = self.model
        version = model.version
        yield
        held = state_from_text(model.text) if version else None
        now = first_state(self.name, 0) if held is None else taken_over(held, self.name)
        while True:
            if not model.compare_and_set(version, now.as_text()):
                return
            version += 1
            yield
            if now.phase is Phase.AFTER:
                first = now.next_offset
                now = begun(now, Offsets(first, first + self.chance.randint(1, 5)))
                continue
            assert now.offsets is not None
            model.insert(token("f", "t", 0, now.offsets, now.attempt), now.offsets)
            yield
            now = completed(now, BlockCounts(now.offsets.end - now.offsets.first))


@pytest.mark.parametrize(
    "seed",
    [*range(40), *(pytest.param(seed, marks=pytest.mark.test_all) for seed in range(40, 200))],
)
def test_feeders_that_die_and_sleep_anywhere_store_each_record_once(seed: int) -> None:
    chance = random.Random(seed)
    model = Model()
    feeders: list[ModelFeeder] = []
    for number in range(400):
        if not feeders or chance.random() < 0.05:
            feeders.append(ModelFeeder(model, str(number), chance))
        feeder = chance.choice(feeders)
        if next(feeder.steps, "fenced") == "fenced" or chance.random() < 0.02:
            feeders.remove(feeder)

    last = ModelFeeder(model, "last", chance)
    for _ in range(20):
        next(last.steps)
    end = state_from_text(model.text)
    stored = end.offsets.end if end.phase is Phase.BEFORE and end.offsets else end.next_offset
    assert [row for row in sorted(model.rows) if row < end.next_offset] == list(
        range(end.next_offset)
    )
    assert sorted(model.rows) in (list(range(end.next_offset)), list(range(stored)))
    assert end.total.rows == end.next_offset


def test_a_state_that_moves_to_keeper_keeps_its_progress_and_counts_its_versions_on() -> None:
    before = begun(first_state("single", 5), Offsets(5, 9), "embedded")
    moved = state_from_text(moved_to_keeper(before.as_text(), 40, "one"))
    assert moved == replace(before, shard="one", versions_before=40)
    again = state_from_text(moved_to_keeper(moved.as_text(), 3, "two"))
    assert (again.shard, again.versions_before) == ("two", 43)
