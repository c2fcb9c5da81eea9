"""What producers know of their transactions, and what must hold of the log afterwards.

Each value occurs once. A producer knows that a transaction was committed, or aborted, or it does
not know: then all of it must be there, or nothing. A transaction may also send the offset of a
group of its own: the last one that was committed must be the group's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

NO_OFFSET = -1
_LIMIT_S = 180.0


@dataclass
class Written:
    """One transaction: its values by partition, in order, and the offset that it sent."""

    values: defaultdict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    offset: int = NO_OFFSET

    def all_values(self) -> set[bytes]:
        return {value for some in self.values.values() for value in some}


@dataclass
class History:
    """The transactions of one producer, by what it knows of their ends."""

    committed: list[Written] = field(default_factory=list)
    aborted: list[Written] = field(default_factory=list)
    unknown: list[Written] = field(default_factory=list)

    def last_offset(self, found: set[bytes]) -> int:
        """The offset of its group, if the log has these values."""
        there = [one for one in self.unknown if one.values and one.all_values() <= found]
        offsets = [one.offset for one in (*self.committed, *there)]
        return max(offsets, default=NO_OFFSET)


class Writer(threading.Thread):
    """Writes transactions until it is told to stop. `failure`: what ended it instead."""

    history: History
    failure: BaseException | None = None


@contextmanager
def ended(writers: Sequence[Writer], stopped: threading.Event) -> Iterator[None]:
    """They are told to stop when the block ends, and their failures are raised."""
    try:
        yield
    finally:
        stopped.set()
        for one in writers:
            one.join(_LIMIT_S)
    for one in writers:
        assert not one.is_alive(), f"{one.name} does not end"
        if one.failure is not None:
            raise one.failure


def violations(
    histories: Sequence[History],
    shown: Mapping[int, Sequence[bytes]],
    read: Mapping[int, Sequence[bytes]],
) -> list[str]:
    """`shown`: what SQL has as committed; `read`: what read_committed consumers got; in order."""
    wrong = []
    for partition in shown:
        if list(read[partition]) != list(shown[partition]):
            wrong.append(f"a consumer and SQL differ in partition {partition}")
        if len(set(shown[partition])) != len(shown[partition]):
            wrong.append(f"partition {partition} has a value twice")
        if not _is_in_order(shown[partition]):
            wrong.append(f"the order has changed in partition {partition}")
    found = {value for some in shown.values() for value in some}
    expected: set[bytes] = set()
    for history in histories:
        for one in history.committed:
            expected |= one.all_values()
            if not one.all_values() <= found:
                wrong.append(f"an acknowledged transaction is lost: {_some(one, found)}")
        wrong += [
            f"an aborted transaction is shown: {_some(one, found)}"
            for one in history.aborted
            if one.all_values() & found
        ]
        for one in history.unknown:
            there = one.all_values() & found
            if there and there != one.all_values():
                wrong.append(f"a transaction is torn: {_some(one, found)}")
            expected |= there
    if found != expected:
        wrong.append(f"nobody wrote {sorted(found - expected)[:3]}")
    return wrong


def _is_in_order(values: Sequence[bytes]) -> bool:
    """Values are a name and a number that grows."""
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for value in values:
        name, _, number = value.partition(b" ")
        numbers[name].append(int(number))
    return all(order == sorted(order) for order in numbers.values())


def _some(one: Written, found: set[bytes]) -> str:
    values = one.all_values()
    return f"{sorted(values - found)[:3]} are missing, {sorted(values & found)[:3]} are there"
