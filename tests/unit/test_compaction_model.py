"""The model of compaction keeps what Kafka promises of a compacted log, over any history of runs.

Anybody who reads from the start and reaches the end within delete.retention.ms knows the last value
of every key and of no other, whatever is removed meanwhile and wherever a run is cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction_model import ABORT, COMMIT, History, Row, Rules, decided, state
from tests.support.examples import up_to

RULES = Rules(0, retention_ms=20, retry_ms=5, known_ms=12)
KEYS = [b"a", b"b"]


@dataclass
class Log:
    """A log that is written and compacted; `all_rows` is what was ever written.

    `shown`: when it ended where and looked how: what somebody may have read by then.
    """

    rules: Rules
    history: History = field(default_factory=lambda: History([]))
    all_rows: list[Row] = field(default_factory=list)
    shown: list[tuple[int, int, list[Row]]] = field(default_factory=list)

    def step(self, action: tuple[object, ...]) -> None:
        match action:
            case ("write", int(key), bool(has_value), int(producer)):
                offset = len(self.all_rows)
                value = b"%d" % offset if has_value else None
                row = Row(offset, KEYS[key], value, self.rules.now_ms, producer)
                self.all_rows.append(row)
                self.history.rows.append(row)
            case ("wait", int(ms)):
                self.rules = replace(self.rules, now_ms=self.rules.now_ms + ms)
            case ("compact", float(part)):
                self.compact(part)
        self.shown.append((self.rules.now_ms, len(self.all_rows), list(self.history.rows)))

    def compact(self, part: float) -> None:
        """A run that is cut short after `part` of its removals; only a whole one is noted."""
        found = decided(self.history, self.rules)
        going = sorted(found.goes)[: round(len(found.goes) * part)]
        self.history.rows = [row for row in self.history.rows if row.offset not in going]
        if part == 1.0:
            self.history.marks.append((self.rules.now_ms, found.tombstones_end))

    def check(self) -> None:
        """Whoever read up to anywhere in time, and reads on now, knows what there is to know."""
        rows, expected = self.history.rows, state(self.all_rows)
        if self.all_rows:
            assert rows[-1] == self.all_rows[-1]
        for at_ms, end, earlier in self.shown:
            if self.rules.now_ms - at_ms < self.rules.retention_ms:
                for position in range(end + 1):
                    read = [row for row in earlier if row.offset < position]
                    rest = [row for row in rows if row.offset >= position]
                    assert state([*read, *rest]) == expected


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.booleans(), st.sampled_from([-1, -1, 1])),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 13, 21])),
    st.tuples(st.just("compact"), st.sampled_from([0.5, 1.0, 1.0])),
)


@settings(max_examples=up_to(500))
@given(st.lists(ACTIONS, max_size=25))
def test_a_reader_within_the_retention_of_tombstones_ends_with_the_last_value_of_every_key(
    actions: Sequence[tuple[object, ...]],
) -> None:
    log = Log(RULES)
    for action in actions:
        log.step(action)
        log.check()


@settings(max_examples=up_to(200))
@given(st.lists(ACTIONS, max_size=40))
def test_after_enough_runs_one_record_of_each_key_is_left(
    actions: Sequence[tuple[object, ...]],
) -> None:
    log = Log(RULES)
    for action in actions:
        log.step(action)
    for _ in range(3):
        log.step(("wait", 100))
        log.step(("compact", 1.0))
    rows = log.history.rows
    assert {row.key: row.value for row in rows[:-1] if row.value is not None}.items() <= state(
        log.all_rows
    ).items() | ({(rows[-1].key, rows[-1].value)} if rows else set())
    assert len({row.key for row in rows}) == len(rows)
    assert all(row.value is not None for row in rows[:-1])


def test_a_tombstone_is_kept_until_the_records_that_it_deletes_are_gone() -> None:
    """A value that has to stay for its producer's sake must not come back to life."""
    value, tombstone, last = Row(0, b"a", b"1", 0, 7), Row(1, b"a", None, 0), Row(2, b"b", b"2", 0)
    history = History([value, tombstone, last], [(0, 3)])
    known = Rules(1000, known_ms=2000)
    assert decided(history, known).goes == frozenset()
    assert decided(history, known).tombstones_end == 1
    assert decided(history, Rules(3000, known_ms=2000)).goes == {0}
    assert decided(History([tombstone, last], [(3000, 3)]), Rules(3000)).goes == {1}


def test_records_from_the_first_open_transaction_on_are_not_compacted() -> None:
    rows = [
        Row(0, b"a", b"1"),
        Row(1, b"a", b"2"),
        Row(2, b"a", b"3", producer=5, transactional=True),
        Row(3, b"a", b"4"),
        Row(4, b"b", b"5"),
    ]
    assert decided(History(rows), Rules(1000)).goes == {0}
    ended = Row(5, b"", b"", 0, 5, True, COMMIT)
    assert decided(History([*rows, ended]), Rules(1000)).goes == {0, 1, 2}
    aborted = replace(ended, marker=ABORT)
    assert decided(History([*rows, aborted]), Rules(1000)).goes == {0, 1, 2}
