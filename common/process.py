"""The process: how much memory it may use, and Python's garbage collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def memory_bytes(root: Path = Path("/")) -> int:
    """What this process may use: the memory of the machine, or the least limit of a control group.

    Both versions of control groups (https://docs.kernel.org/admin-guide/cgroup-v2.html) are read,
    from the files below `root`.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit of a group above holds too. In a container the group itself is the mount.
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory == mount.parent:
                break
            try:
                text = (directory / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # otherwise "max": no limit
                yield int(text)


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
