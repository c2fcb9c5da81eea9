"""The model of the job `compaction`: short and slow, it says which records must stay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

ABORT, COMMIT = 0, 1


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a partition. `marker`: what the transaction marker says; None for a record."""

    offset: int
    key: bytes | None
    value: bytes | None
    at_ms: int = 0
    producer: int = -1
    transactional: bool = False
    marker: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The clock, and the times that apply, in ms."""

    now_ms: int
    min_lag_ms: int = 0
    retention_ms: int = 0
    retry_ms: int = 0
    known_ms: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    goes: frozenset[int]
    bound: int
    tombstones_end: int


@dataclass(slots=True)
class History:
    """A partition: its rows in order, and the time and `tombstones_end` of each run."""

    rows: list[Row]
    marks: list[tuple[int, int]] = field(default_factory=list)


def outcome(rows: Sequence[Row], row: Row) -> int | None:
    """How the transaction of a record ended; None while it is open."""
    for later in rows:
        if (
            later.offset > row.offset
            and later.producer == row.producer
            and later.marker in (ABORT, COMMIT)
        ):
            return later.marker
    return None


def decided(history: History, rules: Rules) -> Decision:
    rows = history.rows
    if not rows:
        return Decision(frozenset(), 0, 0)
    records = [row for row in rows if row.marker is None]
    ended = {row.offset: outcome(rows, row) for row in records if row.transactional}
    bound = min(
        [rows[-1].offset + 1]
        + [r.offset for r in rows if rules.min_lag_ms and r.at_ms > rules.now_ms - rules.min_lag_ms]
        + [offset for offset, how in ended.items() if how is None]
    )
    due_end = max(
        [end for at_ms, end in history.marks if at_ms <= rules.now_ms - rules.retention_ms],
        default=0,
    )
    by_producer: dict[int, list[Row]] = {}
    for row in records:
        if row.producer >= 0:
            by_producer.setdefault(row.producer, []).append(row)
    stays = {rows[-1].offset}
    for its in by_producer.values():
        if max(row.at_ms for row in its) > rules.now_ms - rules.known_ms:
            stays.add(its[-1].offset)
        stays |= {row.offset for row in its if row.at_ms > rules.now_ms - rules.retry_ms}

    below = [row for row in records if row.offset < bound]
    seen = [row for row in below if row.key is not None and ended.get(row.offset) != ABORT]
    goes: set[int] = set()
    tombstones_end = bound
    for row in below:
        older = [one for one in seen if one.key == row.key and one.offset < row.offset]
        newer = [one for one in seen if one.key == row.key and one.offset > row.offset]
        if row not in seen or newer:
            may_go = True
        elif row.value is None:
            may_go = not older and row.offset < due_end
            if any(one.offset in stays for one in older):
                tombstones_end = min(tombstones_end, row.offset)
        else:
            may_go = False
        if may_go and row.offset not in stays:
            goes.add(row.offset)
    return Decision(frozenset(goes), bound, tombstones_end)


def state(rows: Sequence[Row]) -> dict[bytes, bytes]:
    """What a consumer of committed records knows after these rows: key to value."""
    known: dict[bytes, bytes] = {}
    for row in rows:
        if row.marker is not None or row.key is None:
            continue
        if row.transactional and outcome(rows, row) != COMMIT:
            continue
        if row.value is None:
            known.pop(row.key, None)
        else:
            known[row.key] = row.value
    return known


def random_rows(
    chance: random.Random, count: int, first: int, at_ms: Sequence[int], transactions: bool
) -> list[Row]:
    """A history of few keys, tombstones, records without a key, producers and transactions.

    `at_ms`: times to take from, in order. Some transactions stay open at the end.
    """
    rows: list[Row] = []
    keys = [b"k%d" % n for n in range(chance.randint(1, 6))] + [b"", b"\xff\xfe", b"long" * 40]
    open_since: dict[int, int] = {}
    times = sorted(chance.choice(at_ms) for _ in range(count))
    for n in range(count):
        offset = first + n
        if open_since and chance.random() < 0.3:
            producer = chance.choice(sorted(open_since))
            del open_since[producer]
            marker = chance.choice([ABORT, COMMIT])
            key = b"\0\0\0" + bytes([marker])
            rows.append(Row(offset, key, b"\0" * 6, times[n], producer, True, marker))
            continue
        transactional = transactions and chance.random() < 0.4
        if transactional:
            producer = chance.choice([100, 101])
            open_since.setdefault(producer, offset)
        else:
            producer = chance.choice([-1, -1, 1, 2, 3])
        key_or_none = None if chance.random() < 0.05 else chance.choice(keys)
        value = None if chance.random() < 0.3 else b"%d" % offset
        rows.append(Row(offset, key_or_none, value, times[n], producer, transactional))
    return rows
