"""Which segments the journal has: what tells that one is missing or was cut short.

The register is the file `journal.segments` beside the directory `journal`, so it outlives that one.
It has two records of 512 bytes, which are written in turn and in place: that needs no space on a
full disk, and a crash leaves one of them whole. The one with the higher count is valid:

    magic, version, journal id, count, number of the first and of the last segment,
    number of the last entry when the journal was closed (0: it is open), 1 if blocks of it were not
    in the engine then; CRC32C of all that

A record is written when a segment was begun or is about to be recycled, and when the journal is
closed: never for an entry. What must hold: a segment is in the register before an entry of it is
acknowledged, and it leaves the register before its file is used for something else. So a file that
the register names is needed, and one that it does not name yet has only the known tokens.
"""

from __future__ import annotations

import errno
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from brokerhouse.protocol._batches import crc32c

RECORD_BYTES = 512

_MAGIC = b"BHSEGMNT"
_VERSION = 1
_RECORD = struct.Struct("<8sI16sQQQQQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class KnownSegments:
    """The segments first <= number <= last. `closed_at`: the last entry; 0 while it is open."""

    journal_id: uuid.UUID
    first: int
    last: int
    count: int = 0
    closed_at: int = 0
    has_blocks: bool = True
    """Whether the engine lacked blocks of the journal when it was closed."""

    @property
    def is_drained(self) -> bool:
        return self.closed_at > 0 and not self.has_blocks


def register_path(directory: Path) -> Path:
    """The register of the journal in this directory."""
    return directory.with_name(f"{directory.name}.segments")


def read_register(directory: Path) -> tuple[KnownSegments | None, int]:
    """What the register says, and how many of its records are damaged.

    None: there is none, or no record is whole. Raises `OSError`.
    """
    try:
        data = register_path(directory).read_bytes()
    except FileNotFoundError:
        return None, 0
    whole = list(_records(data))
    newest = max(whole, key=lambda known: known.count, default=None)
    return newest, 2 - len(whole)


def _records(data: bytes) -> Iterator[KnownSegments]:
    for at in (0, RECORD_BYTES):
        if len(data) < at + RECORD_BYTES:
            return
        magic, version, journal_id, *numbers = _RECORD.unpack_from(data, at)
        (crc,) = _CRC.unpack_from(data, at + _RECORD.size)
        is_whole = crc == crc32c(data[at : at + _RECORD.size])
        if is_whole and (magic, version) == (_MAGIC, _VERSION):
            count, first, last, closed_at, has_blocks = numbers
            yield KnownSegments(
                uuid.UUID(bytes=journal_id), first, last, count, closed_at, bool(has_blocks)
            )


def _record(known: KnownSegments) -> bytes:
    packed = _RECORD.pack(
        _MAGIC,
        _VERSION,
        known.journal_id.bytes,
        known.count,
        known.first,
        known.last,
        known.closed_at,
        known.has_blocks,
    )
    return (packed + _CRC.pack(crc32c(packed))).ljust(RECORD_BYTES, b"\0")


class SegmentRegister:
    """Writes the register of one journal. Methods raise `OSError`."""

    def __init__(self, directory: Path, known: KnownSegments, *, durable: bool) -> None:
        """A new register replaces the one that is there."""
        self._path = register_path(directory)
        self._known = known
        self._durable = durable
        part = self._path.with_name(f"{self._path.name}.new")
        with part.open("wb") as file:
            file.write(_record(known) * 2)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.rename(self._path)
        if durable:  # else a power failure leaves the earlier one, or none
            _flush_directory(self._path.parent)

    def note(self, first: int, last: int) -> None:
        """From now on the journal consists of these segments."""
        self._write(replace(self._known, first=first, last=last))

    def note_closed(self, last_sequence: int, *, has_blocks: bool) -> None:
        self._write(replace(self._known, closed_at=last_sequence, has_blocks=has_blocks))

    def _write(self, known: KnownSegments) -> None:
        known = replace(known, count=self._known.count + 1)
        at = RECORD_BYTES * (known.count % 2)
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_record(fd, known, at)
            if self._durable:
                os.fsync(fd)
        except OSError:
            with suppress(OSError):  # nobody acts on what failed: a start must not find it
                _write_record(fd, replace(self._known, count=known.count), at)
            raise
        finally:
            os.close(fd)
        self._known = known


def _write_record(fd: int, known: KnownSegments, at: int) -> None:
    if os.pwrite(fd, _record(known), at) < RECORD_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _flush_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
