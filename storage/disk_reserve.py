"""Space on the disk that only deleting may use.

Deleting records needs space, too: a few rows that say what is deleted, and room to write a part
again without them. So a file of that size is allocated while there is space, and given back to the
file system when something is deleted on a disk that is low (`release`). What is missing from the
reserve does not count as free for anything else (`free_for_records`): records are refused until
deleting has freed so much that the reserve could be held again. A start uses it, too, to put
acknowledged records of the journal into their tables (storage/journal_recovery.py).

Another program may take the space of a reserve that was released, or all other space. So nothing
here replaces the checks of free_space.py.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from brokerhouse.storage.engine import NotSent

log = logging.getLogger(__name__)

KEEP_FREE_BYTES = 64 << 20
"""Left free by everything that this process writes: chDB does not notice a full disk."""
LOW_BYTES = 2 * KEEP_FREE_BYTES
NOT_ENOUGH_SPACE = 243
"""ClickHouse's error code."""

_FILE = "reserve"
_SHARE = 20
_MIN_BYTES = 96 << 20
"""`KEEP_FREE_BYTES`, and room to write a small part."""
_MAX_BYTES = 512 << 20
_SMALLEST_DISK_BYTES = 256 << 20
_PARTS_OF_A_FULL_DISK = 400


def default_reserve_bytes(directory: Path) -> int:
    """A twentieth of the disk, within limits; nothing on a disk that would hold little else."""
    disk = os.statvfs(directory)
    total = disk.f_blocks * disk.f_frsize
    if total < _SMALLEST_DISK_BYTES:
        return 0
    return min(max(total // _SHARE, _MIN_BYTES), _MAX_BYTES)


def part_max_bytes(reserve_bytes: int, disk_bytes: int) -> int:
    """How large a part of the log may become on a disk of this size.

    It can be written again in the space of the reserve: ClickHouse reserves a tenth more than its
    size, and the part that was replaced stays for some seconds. On a large disk that would be too
    many parts, as ClickHouse delays inserts from 1,000 parts of a day on: there a part may be
    larger than the reserve has room for.
    """
    fitting = (max(reserve_bytes, _MIN_BYTES) - KEEP_FREE_BYTES) // 2
    return max(fitting, disk_bytes // _PARTS_OF_A_FULL_DISK)


class DiskReserve:
    """The reserve on the disk of one directory. A size of 0: there is none."""

    def __init__(self, directory: Path, size: int) -> None:
        """Holds the reserve if there is space for it. Raises `OSError`."""
        self.size = size
        self._directory = directory
        self._path = directory / _FILE
        self._is_held = size == 0
        if size and _is_allocated(self._path, size):
            self._is_held = True
        else:
            self._path.unlink(missing_ok=True)
            self.hold_again(announced=False)

    @property
    def is_held(self) -> bool:
        return self._is_held

    @property
    def part_max_bytes(self) -> int | None:
        """How large parts may become, so that they can be written again. None: any size."""
        if not self.size:
            return None
        disk = os.statvfs(self._directory)
        return part_max_bytes(self.size, disk.f_blocks * disk.f_frsize)

    def free_bytes(self) -> int:
        """What is free on the disk."""
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    def free_for_records(self) -> int:
        """What is free, without what is missing from the reserve. May be negative."""
        return self.free_bytes() - (0 if self._is_held else self.size)

    @property
    def is_roomy(self) -> bool:
        """Whether a quarter of the disk is free: deleted records can wait for ordinary merges."""
        disk = os.statvfs(self._directory)
        return self.free_for_records() >= disk.f_blocks * disk.f_frsize // 4

    def check(self) -> None:
        """Raises `NotSent` if nothing but deleting may use the disk."""
        if self.free_for_records() < KEEP_FREE_BYTES:
            raise self.is_full()

    def is_full(self) -> NotSent:
        """The error for whoever wants to store something."""
        more = "" if self._is_held else f", and {self.size >> 20} MB more for deleting"
        return NotSent(
            f"the disk of {self._directory} is full ({self.free_bytes() >> 20} MB are free, at"
            f" least {KEEP_FREE_BYTES >> 20} MB are kept free{more}): delete topics or records, or"
            " add space",
            NOT_ENOUGH_SPACE,
        )

    def release(self, what: str = "deleting") -> None:
        """Give the space to what begins, a deletion or a recovery, if the disk is low."""
        if not self._is_held or not self.size or self.free_bytes() >= LOW_BYTES:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.error("cannot use the reserve %s: %s", self._path, error.strerror)
            return
        self._is_held = False
        log.warning(
            "the disk of %s is low: %s may use its reserve of %d MB",
            self._directory,
            what,
            self.size >> 20,
        )

    def hold_again(self, *, announced: bool = True) -> bool:
        """Allocate the reserve if the disk is not low then. Raises `OSError`."""
        if self._is_held or self.free_for_records() < LOW_BYTES:
            return self._is_held
        part = self._path.with_suffix(".new")
        try:
            with part.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self.size)
            part.rename(self._path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._is_held = True
        if announced:
            log.info("%d MB of the disk are reserved for deleting again", self.size >> 20)
        return True


def _is_allocated(path: Path, size: int) -> bool:
    """Whether the file takes that much of the disk: a copy or a backup may have made it sparse."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return found.st_size == size and found.st_blocks * 512 >= size
