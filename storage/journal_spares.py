"""Files of the journal that were emptied, kept for its next segments.

A file that was used before has its pages in memory: writing to a new one takes eight times as long
(measured).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MAX = 12
"""Segments for whose bytes files are kept: a round empties about six, or some larger ones."""
_SHARE = 8
"""With less space on the disk than for so many times these files, one segment's bytes are kept."""
_SMALL_BELOW = 8
"""With less space than for so many segments, a new one is that much smaller."""


def spare_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("spare*")) if path.is_file()]


def spare_name(segment: Path) -> str:
    return f"spare-{segment.stem}"


class _Spare(NamedTuple):
    path: Path
    size: int


class SpareFiles:
    """Of one directory, in the order in which they were emptied. Methods raise `OSError`."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._spares = [_Spare(path, path.stat().st_size) for path in spare_files(directory)]

    def keep(self, segment: Path, size: int) -> None:
        """Nothing in this file is needed any more."""
        spare = self._directory / spare_name(segment)
        segment.rename(spare)
        self._spares.append(_Spare(spare, size))

    def remove_surplus(self) -> None:
        """Keep only as many as are of use."""
        kept_bytes = self._segment_bytes * (_MAX if self._has_space() else 1)
        while sum(spare.size for spare in self._spares) > kept_bytes:
            self._spares.pop(0).path.unlink(missing_ok=True)

    def take(self, segment: Path, needed: int) -> int:
        """Put a file there if one is large enough. Returns the size that the segment should have.

        The file is the smallest of these, and of several the one that was emptied last.
        """
        fitting = [spare for spare in reversed(self._spares) if spare.size >= needed]
        if not fitting:
            return self._new_size(needed)
        found = min(fitting, key=lambda spare: spare.size)
        self._spares.remove(found)
        with suppress(FileNotFoundError):
            found.path.rename(segment)
        return found.size

    def _new_size(self, needed: int) -> int:
        """A multiple, so that the file will be large enough for others like this one.

        A nearly full disk gives no more than is of use soon.
        """
        if self._free_bytes() < _SMALL_BELOW * self._segment_bytes:
            return max(needed, self._segment_bytes // _SMALL_BELOW)
        if needed > self._segment_bytes and self._has_space():
            return needed + -needed % self._segment_bytes
        return max(needed, self._segment_bytes)

    def _has_space(self) -> bool:
        return self._free_bytes() >= _SHARE * _MAX * self._segment_bytes

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize
