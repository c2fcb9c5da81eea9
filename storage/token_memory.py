"""Deduplication tokens, as ClickHouse remembers them for a table: a token comes once.

Senders count: the tokens of a lane are `17-3-1`, `17-3-2`, and so on. So what stands before the
number is kept once, with ranges of numbers, and the tokens of a day take a few bytes. A token
without a number is a range by itself. journal_files.py stores it; here is neither a file nor a
clock, so that it can be tested with any sequence of tokens.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from functools import lru_cache

RANGES_MAX = 20_000
"""Of all tables together. Beyond it, senders that were silent for longest are forgotten first."""

_COUNT = struct.Struct("<I")
_SENDER = struct.Struct("<HHI")
_DIGITS_MAX = 18  # a number fits into 63 bits
_NO_NUMBER = -1


class TokenMemory:
    """Which tokens of which tables were used."""

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._senders: OrderedDict[tuple[str, str], list[tuple[int, int]]] = OrderedDict()
        """By table and what stands before the number: first and last numbers, in order."""
        self._count = 0

    def has(self, table: str, token: str) -> bool:
        sender, number = _split(token)
        ranges = self._senders.get((table, sender))
        if ranges is None:
            return False
        at = _place(ranges, number)
        return at > 0 and number <= ranges[at - 1][1]

    def add(self, table: str, token: str) -> None:
        sender, number = _split(token)
        ranges = self._senders.setdefault((table, sender), [])
        self._senders.move_to_end((table, sender))
        at = _place(ranges, number)
        if at and number <= ranges[at - 1][1]:
            return
        first = last = number
        begin = end = at
        if at and ranges[at - 1][1] == number - 1:
            begin, first = at - 1, ranges[at - 1][0]
        if at < len(ranges) and ranges[at][0] == number + 1:
            end, last = at + 1, ranges[at][1]
        ranges[begin:end] = [(first, last)]
        self._count += 1 - (end - begin)
        while self._count > self._ranges_max:
            self._forget_one()

    def _forget_one(self) -> None:
        oldest, ranges = next(iter(self._senders.items()))
        del ranges[0]
        self._count -= 1
        if not ranges:
            del self._senders[oldest]

    def to_bytes(self) -> bytes:
        parts = [_COUNT.pack(len(self._senders))]
        for (table, sender), ranges in self._senders.items():
            names = table.encode(), sender.encode()
            numbers = [number for one in ranges for number in one]
            parts += (_SENDER.pack(*map(len, names), len(ranges)), *names)
            parts.append(struct.pack(f"<{len(numbers)}q", *numbers))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> TokenMemory:
        found = cls()
        (senders,) = _COUNT.unpack_from(data)
        at = _COUNT.size
        for _ in range(senders):
            table_bytes, sender_bytes, count = _SENDER.unpack_from(data, at)
            at += _SENDER.size
            middle, end = at + table_bytes, at + table_bytes + sender_bytes
            table, sender = str(data[at:middle], "utf-8"), str(data[middle:end], "utf-8")
            at = end
            numbers = struct.unpack_from(f"<{2 * count}q", data, at)
            at += 16 * count
            found._senders[table, sender] = list(zip(numbers[::2], numbers[1::2], strict=True))
            found._count += count
        return found

    def copy(self) -> TokenMemory:
        return TokenMemory.from_bytes(self.to_bytes())


def _place(ranges: list[tuple[int, int]], number: int) -> int:
    """How many ranges begin at this number or below it."""
    if ranges and ranges[-1][0] <= number:
        return len(ranges)
    return bisect_right(ranges, number, key=lambda one: one[0])


@lru_cache(maxsize=16)  # a token is looked up and then added, here and by the writer of the files
def _split(token: str) -> tuple[str, int]:
    """What stands before the number, and the number. The same pair means the same token."""
    sender, dash, digits = token.rpartition("-")
    if dash and len(digits) <= _DIGITS_MAX and digits.isascii() and digits.isdecimal():
        number = int(digits)
        if str(number) == digits:
            return sender + dash, number
    return token, _NO_NUMBER
