"""What the machine gives this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
