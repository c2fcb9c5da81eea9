"""Python's garbage collector, for processes with many objects that are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 1_000_000


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For imports, of which everything stays: it is a tenth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_no_garbage_yet() -> None:
    """Look for garbage hardly ever: a start makes many objects that stay, such as topics.

    `collect_garbage_less` ends it.
    """
    gc.set_threshold(_MANY_OBJECTS, 1000, 1000)


def collect_garbage_less(young_objects_max: int) -> None:
    """Leave out what is there now, and look for garbage only after so many more new objects.

    The collector only has to find cycles of references; everything else is freed at once. A full
    collection looks at every object.
    """
    gc.freeze()
    gc.set_threshold(young_objects_max, 10, 10)
