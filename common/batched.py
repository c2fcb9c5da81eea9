"""`itertools.batched` of Python 3.12, with lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """The items in groups of `count`; the last one may have fewer."""
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some
