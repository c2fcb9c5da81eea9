"""Where leader epochs begin and end: Kafka's answers, row by row, and a model of whole logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.broker.log.leader_epochs import NO_END, LeaderEpochs, known_epochs

LOG_END = 30
THREE = known_epochs([(2, 5), (4, 10), (7, 20)])
NONE = LeaderEpochs()


def starts(epochs: LeaderEpochs) -> list[tuple[int, int]]:
    return [(one.epoch, one.offset) for one in epochs.starts]


@pytest.mark.parametrize(
    ("what", "asked", "epoch", "end"),
    [
        ("no epoch", -1, -1, -1),
        ("the current epoch", 7, 7, LOG_END),
        ("an epoch that has not begun", 8, -1, -1),
        ("a past epoch", 4, 4, 20),
        ("the first epoch", 2, 2, 10),
        ("between two, nothing was written", 3, 2, 10),
        ("between two, nothing was written", 6, 4, 20),
        ("before all that are known", 1, 1, 5),
        ("before all that are known", 0, 0, 5),
        ("a number that no epoch has", -2, -2, 5),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(
    what: str, asked: int, epoch: int, end: int
) -> None:
    assert THREE.end_of(asked, LOG_END) == (epoch, end), what


def test_a_log_without_epochs_knows_no_end_of_any_epoch() -> None:
    assert [NONE.end_of(asked, LOG_END) for asked in (-1, 0, 5)] == [NO_END] * 3


@pytest.mark.parametrize(
    ("what", "epoch", "offset", "left"),
    [
        ("a new epoch", 9, 30, [(2, 5), (4, 10), (7, 20), (9, 30)]),
        ("the current epoch again", 7, 20, [(2, 5), (4, 10), (7, 20)]),
        ("the current epoch, later", 7, 25, [(2, 5), (4, 10), (7, 20)]),
        ("the current epoch, earlier", 7, 15, [(2, 5), (4, 10), (7, 15)]),
        ("nothing was written in the last one", 9, 20, [(2, 5), (4, 10), (9, 20)]),
        ("nothing is left of the last two", 9, 10, [(2, 5), (9, 10)]),
        ("nothing is left of any", 9, 0, [(9, 0)]),
        ("an older epoch", 4, 8, [(2, 5), (4, 8)]),
    ],
)
def test_a_new_epoch_replaces_what_contradicts_it(
    what: str, epoch: int, offset: int, left: list[tuple[int, int]]
) -> None:
    assert starts(THREE.began(epoch, offset)) == left, what


@pytest.mark.parametrize(
    ("what", "log_start", "left"),
    [
        ("below all epochs", 3, [(2, 5), (4, 10), (7, 20)]),
        ("where the first one begins", 5, [(2, 5), (4, 10), (7, 20)]),
        ("within the first one", 8, [(2, 8), (4, 10), (7, 20)]),
        ("where the second one begins", 10, [(4, 10), (7, 20)]),
        ("within the second one", 19, [(4, 19), (7, 20)]),
        ("within the last one", 25, [(7, 25)]),
        ("at the end of the log", LOG_END, [(7, LOG_END)]),
    ],
)
def test_of_epochs_below_the_log_start_the_last_one_is_kept_and_begins_there(
    what: str, log_start: int, left: list[tuple[int, int]]
) -> None:
    assert starts(THREE.since(log_start)) == left, what


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, -1), (4, -1), (5, 2), (9, 2), (10, 4), (19, 4), (20, 7), (99, 7)]
)
def test_an_offset_belongs_to_the_last_epoch_that_began_at_or_before_it(
    offset: int, epoch: int
) -> None:
    assert THREE.at(offset) == epoch


@given(st.permutations([(2, 5), (4, 10), (4, 12), (7, 20), (7, 25), (7, 20)]))
def test_stored_epochs_are_read_in_any_order_and_the_lowest_offset_counts(
    rows: list[tuple[int, int]],
) -> None:
    assert known_epochs(rows) == THREE


# A log as it was written: leaders come with higher epochs, append, and the log start moves.

STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=12
)


@given(STEPS)
def test_every_epoch_ends_after_its_last_record_whatever_is_removed(
    steps: list[tuple[int, int, int]],
) -> None:
    epoch = end = log_start = 0
    epochs = LeaderEpochs()
    written: dict[int, int] = {}
    for later, records, removed in steps:
        epoch += later
        epochs = epochs.began(epoch, end)
        end += records
        if records:
            written[epoch] = end
        log_start = min(log_start + removed, end)
        epochs = epochs.since(log_start)
        for asked in range(epoch):
            found = epochs.end_of(asked, end)
            # A consumer that has read all of the epoch finds its position in the log.
            assert found.offset >= max(written.get(asked, 0), log_start)
            assert found.offset == max(_ended(written, asked), log_start)
            assert found.epoch <= asked
        assert epochs.end_of(epoch, end) == (epoch, end)
        assert epochs.end_of(epoch + 1, end) == NO_END
        assert starts(epochs) == sorted(set(starts(epochs)))
        assert epochs.at(log_start) == _of(written, epoch, log_start)


def _ended(written: dict[int, int], asked: int) -> int:
    return max((end for epoch, end in written.items() if epoch <= asked), default=0)


def _of(written: dict[int, int], current: int, offset: int) -> int:
    return min((epoch for epoch, end in written.items() if offset < end), default=current)


def test_the_start_of_a_log_belongs_to_no_epoch_if_its_first_epoch_is_unknown() -> None:
    assert known_epochs([(4, 10)]).at(0) == -1
    assert NONE.at(0) == -1
