"""The files of the journal (storage/journal.py): segments of entries, each with a checksum.

A segment is a file `NUMBER.journal`, allocated before it is used and recycled when all of it is in
the engine. All have the same size, but for those that were made for a larger block, and files that
were such a one before (journal_spares.py). Numbers are little-endian; an entry begins at a multiple
of 8 bytes.

    segment   +-------------------+-------+-------+-----+-----------------------------------------+
              | head of 512 bytes | entry | entry | ... | zeros, or entries of an earlier use of  |
              |                   |       |       |     | the file, with lower sequence numbers   |
              +-------------------+-------+-------+-----+-----------------------------------------+

    head      0          8         12           28           36           44              92
              +----------+---------+------------+------------+------------+---------------+--------+
              | BHJOURNL | version | journal id | number of  | sequence   | of 2 streams, | CRC32C |
              |          | u32     | 16 bytes   | the        | number of  | u64 each:     | of 0   |
              |          |         |            | segment    | its first  | drained up to,| to 92  |
              |          |         |            | u64        | entry, u64 | round from, to|        |
              +----------+---------+------------+------------+------------+---------------+--------+
              96                 104       108                                                   512
              +------------------+---------+-------------------------------------------------------+
              | size of the file | CRC32C  | zeros; up to version 3 they begin at 96               |
              | u64              | 0 to 104|                                                       |
              +------------------+---------+-------------------------------------------------------+

    entry     0         4         8          16              24     28        32        36       40
              +---------+---------+----------+---------------+------+---------+---------+--------+
              | length  | CRC32C, | sequence | number up to  | kind | length  | length  | CRC32C |
              | of the  | see     | number   | which entries | u32  | of the  | of the  | of the |
              | body    | below   | u64      | were acknow-  |      | prefix  | body    | rest   |
              | u32     |         |          | ledged, u64   |      | u32     | u32     |        |
              +---------+---------+----------+---------------+------+---------+---------+--------+
              | body: prefix | rest | zeros up to a multiple of 8                                |
              +--------------+------+------------------------------------------------------------+

    body of   +--------+---------------------+-------+---------+-------+------+
    a block   | stream | lengths, u16 each   | table | columns | token | rows |   rows: the rest
              | u32    | of the next three   |       |         |       |      |
              +--------+---------------------+-------+---------+-------+------+
    of a      +--------+-------+-----------+----------+
    round     | stream | 0     | first u64 | last u64 |
              | u32    | u32   |           |          |
              +--------+-------+-----------+----------+
    of tokens +-----------------------+-----------------------+--------------------------+
              | length of the next u32| tokens of the journal | tokens of direct inserts |
              +-----------------------+-----------------------+--------------------------+

The CRC at 4 is of the journal id, of the bytes from 8 to 40 and of the prefix: a large block, which
is the rest, need not be copied to its head then. Sequence numbers go up by one, through all
segments.

Kinds: a block of rows (1); a round of a stream has begun (2: from now on some of its rows may be in
the engine); the round has ended (3); the tokens that are known (4), which comes first in each
segment; a token whose block goes to the engine itself (5: a block without columns and rows). So the
newest segment knows the tokens of all before it, and they can be recycled.

An entry that a crash cut off is left out: nobody was told of it. It is the last one, as entries are
written one after the other; only after a power failure the disk may have kept a later one and lost
an earlier one. So every entry says up to which entry clients had been told when it was written.
Damage up to there is `DamagedJournal`; after it, the journal ends at the damage. Without `fsync`
clients are told as soon as an entry is written, so a power failure may look like damage.

storage/journal_reading.py reads these files, journal_register.py says which of them exist.
"""

from __future__ import annotations

import errno
import os
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from brokerhouse.protocol._batches import crc32c
from brokerhouse.storage.journal_register import KnownSegments, SegmentRegister
from brokerhouse.storage.journal_spares import SpareFiles
from brokerhouse.storage.token_memory import TokenMemory

VERSION = 4
UNREGISTERED_VERSIONS = (2, 3)
"""These are read, too. 3: a block may be a packed one (protocol/packed_blocks.py). 4: the head has
the size of the file, and the segment is in the register."""
STREAMS = 2
HEAD_BYTES = 512
ENTRY_BYTES = 40

_MAGIC = b"BHJOURNL"
_HEAD = struct.Struct(f"<8sI16sQQ{3 * STREAMS}Q")
_CRC = struct.Struct("<I")
_FILE_SIZE = struct.Struct("<Q")
_LENGTH_AND_CRC = struct.Struct("<II")
_ENTRY = struct.Struct("<IIQQIIII")
_CHECKED = struct.Struct("<QQIIII")  # the last six of these
_NAMES = struct.Struct("<IHHH")
ROUND = struct.Struct("<IIQQ")
_SIZE = struct.Struct("<I")
_MAX_BODY = (1 << 32) - 1

Data = bytes | memoryview

BLOCK, ROUND_BEGUN, ROUND_ENDED, TOKENS, DIRECT = 1, 2, 3, 4, 5

ID_FILE = "id"
"""The journal's id again, in case that the head of the only segment is damaged."""


class JournalError(Exception):
    """The journal cannot be used. The message says in one sentence what to do."""


class FlushError(OSError):
    """A flush has failed: what was written before may not be on the disk, now or later."""


class DamagedJournal(JournalError):
    """Acknowledged entries of the journal are damaged or missing."""


class JournalBlock(NamedTuple):
    """One block of rows in the journal, not yet in the engine."""

    sequence: int
    stream: int
    table: str
    columns: str
    token: str
    data: bytes


@dataclass(slots=True)
class StreamState:
    """How far a stream is in the engine: all up to `drained`; a round's rows may be in part.

    `round_from` and `round_to` are 0 when no round has begun.
    """

    drained: int = 0
    round_from: int = 0
    round_to: int = 0

    def begin(self, first: int, last: int) -> None:
        self.round_from, self.round_to = first, last

    def end(self) -> None:
        self.drained, self.round_from, self.round_to = self.round_to, 0, 0


def _streams() -> list[StreamState]:
    return [StreamState() for _ in range(STREAMS)]


@dataclass(slots=True)
class JournalTokens:
    """Tokens that were used: `journaled` for blocks of the journal, wherever their rows are now.

    The blocks of `direct` were sent to the engine by themselves, which may have stored them or not.
    """

    journaled: TokenMemory = field(default_factory=TokenMemory)
    direct: TokenMemory = field(default_factory=TokenMemory)

    def copy(self) -> JournalTokens:
        return JournalTokens(self.journaled.copy(), self.direct.copy())

    def to_bytes(self) -> bytes:
        journaled = self.journaled.to_bytes()
        return b"".join((_SIZE.pack(len(journaled)), journaled, self.direct.to_bytes()))

    @classmethod
    def from_bytes(cls, data: memoryview) -> JournalTokens:
        (size,) = _SIZE.unpack_from(data)
        end = _SIZE.size + size
        return cls(
            TokenMemory.from_bytes(data[_SIZE.size : end]), TokenMemory.from_bytes(data[end:])
        )


@dataclass(slots=True)
class JournalContents:
    """What the files hold: `blocks` are not in the engine, but for those of a begun round."""

    journal_id: uuid.UUID
    last_sequence: int = 0
    last_segment: int = 0
    streams: list[StreamState] = field(default_factory=_streams)
    blocks: list[JournalBlock] = field(default_factory=list)
    tokens: JournalTokens = field(default_factory=JournalTokens)
    files: list[SegmentFile] = field(default_factory=list)
    """The segments that were read, in order."""
    misplaced: dict[int, Path] = field(default_factory=dict)
    """Those that have the name of another one, by number."""
    recycled: list[Path] = field(default_factory=list)
    """Nothing in these files is needed."""


@dataclass(slots=True)
class SegmentFile:
    number: int
    path: Path
    size: int
    last_sequence: int = 0


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """`size`: of the file; 0 if the head does not say it."""

    version: int
    journal_id: uuid.UUID
    number: int
    first_sequence: int
    streams: list[StreamState]
    size: int = 0


# --- what the bytes are


def _head_bytes(
    journal_id: uuid.UUID,
    number: int,
    first_sequence: int,
    streams: Sequence[StreamState],
    size: int,
) -> bytes:
    numbers = [n for one in streams for n in (one.drained, one.round_from, one.round_to)]
    packed = _HEAD.pack(_MAGIC, VERSION, journal_id.bytes, number, first_sequence, *numbers)
    for more in (b"", _FILE_SIZE.pack(size)):
        packed += more
        packed += _CRC.pack(crc32c(packed))
    return packed.ljust(HEAD_BYTES, b"\0")


def read_head(data: memoryview, path: Path) -> SegmentHead | None:
    """None if the head is damaged, or was never written. Raises `JournalError`."""
    if len(data) < HEAD_BYTES:
        return None
    magic, version, journal_id, number, first, *numbers = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version not in (VERSION, *UNREGISTERED_VERSIONS):
        raise JournalError(
            f"{path} has version {version} of the journal's format, and this brokerhouse knows"
            f" version {VERSION}: start the brokerhouse that wrote it, stop it, and if it ended"
            f" without an error, remove {path.parent} and {path.parent}.segments"
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if crc != crc32c(data[: _HEAD.size]):
        return None
    size = 0
    if version not in UNREGISTERED_VERSIONS:
        at = _HEAD.size + _CRC.size
        (size,), end = _FILE_SIZE.unpack_from(data, at), at + _FILE_SIZE.size
        if _CRC.unpack_from(data, end) != (crc32c(data[:end]),):
            return None
    streams = [StreamState(*numbers[3 * n : 3 * n + 3]) for n in range(STREAMS)]
    return SegmentHead(version, uuid.UUID(bytes=journal_id), number, first, streams, size)


def _entry_head(
    salt: bytes, numbers: tuple[int, int], kind: int, prefix: Data, rest: Data
) -> bytes:
    """`numbers`: of the entry itself, and of the last one that was acknowledged."""
    length = len(prefix) + len(rest)
    checked = _CHECKED.pack(*numbers, kind, len(prefix), length, crc32c(rest))
    return _LENGTH_AND_CRC.pack(length, crc32c(b"".join((salt, checked, prefix)))) + checked


def _padding(length: int) -> int:
    return -length % 8


def block_body(stream: int, table: str, columns: str, token: str) -> bytes:
    """The body of a block's entry, up to the block itself."""
    name, listed, key = table.encode(), columns.encode(), token.encode()
    return _NAMES.pack(stream, len(name), len(listed), len(key)) + name + listed + key


def read_block(sequence: int, body: memoryview) -> JournalBlock:
    stream, *sizes = _NAMES.unpack_from(body)
    at = _NAMES.size
    names = []
    for size in sizes:
        names.append(str(body[at : at + size], "utf-8"))
        at += size
    table, columns, token = names
    return JournalBlock(sequence, stream, table, columns, token, bytes(body[at:]))


@dataclass(frozen=True, slots=True)
class Entry:
    sequence: int
    acknowledged: int
    kind: int
    body: memoryview
    end: int


def read_entry(salt: bytes, data: memoryview, at: int) -> Entry | None:
    """The entry at this place; None if there is none, or if it is damaged or cut off."""
    if at + ENTRY_BYTES > len(data):
        return None
    length, _, sequence, acknowledged, kind, prefix, _, _ = _ENTRY.unpack_from(data, at)
    start, end = at + ENTRY_BYTES, at + ENTRY_BYTES + length
    if sequence == 0 or end > len(data) or prefix > length:
        return None
    rest = start + prefix
    numbers = (sequence, acknowledged)
    if data[at:start] != _entry_head(salt, numbers, kind, data[start:rest], data[rest:end]):
        return None
    return Entry(sequence, acknowledged, kind, data[start:end], end + _padding(end))


def may_have_begun(data: memoryview, at: int, sequence: int) -> bool:
    """Whether this entry may have been at this place, although the file ends in the middle of it.

    Not if its first bytes are there, and are zeros or of another entry.
    """
    begin = bytes(data[at : at + ENTRY_BYTES])
    if len(begin) == ENTRY_BYTES:
        return bool(_ENTRY.unpack(begin)[2] == sequence)
    return len(begin) < _SIZE.size or begin[: _SIZE.size] != bytes(_SIZE.size)


def later_entries(salt: bytes, data: memoryview, at: int, after: int) -> Iterator[Entry]:
    """Whole entries, from `at` on, with a sequence number above `after`."""
    if is_zeros(data[at:]):
        return
    numbers = data[at : len(data) - len(data) % 8].cast("Q")
    highest = after + len(data) // ENTRY_BYTES + 1
    begin = at
    for index, sequence in enumerate(numbers):
        if after < sequence <= highest and at + 8 * index - 8 >= begin:
            entry = read_entry(salt, data, at + 8 * index - 8)
            if entry is not None:
                yield entry
                begin = entry.end


def is_zeros(data: memoryview) -> bool:
    return bytes(data).count(0) == len(data)


# --- writing


class JournalWriter:
    """Appends entries to the segments of one directory. One call at a time, from any thread.

    A failed write raises `OSError`. The entry was not written then, and the next one takes its
    place. A failed flush raises `FlushError`: the kernel reports it once and may have dropped what
    it could not write (https://lwn.net/Articles/752063/), so the caller must stop.
    """

    def __init__(
        self, directory: Path, segment_bytes: int, contents: JournalContents, *, durable: bool
    ) -> None:
        """The first entry begins a new segment. `durable`: `sync` will be called."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self.journal_id = contents.journal_id
        self.streams = contents.streams
        self._tokens = contents.tokens
        self.last_sequence = contents.last_sequence
        self._durable = durable
        self._segments = [
            SegmentFile(one.number, one.path, one.size, contents.last_sequence)
            for one in contents.files
        ]
        self._register: SegmentRegister | None = None
        self._last_blocks = [0 for _ in self.streams]
        for block in contents.blocks:
            self._last_blocks[block.stream] = block.sequence
        self.file_bytes = sum(segment.size for segment in self._segments)
        self._synced = contents.last_sequence
        self._closed = False
        self._spares = SpareFiles(directory, segment_bytes)
        self._next_number = contents.last_segment + 1
        self._fd = -1
        self._at = self._size = 0

    def append_block(self, stream: int, table: str, columns: str, token: str, data: bytes) -> int:
        """The sequence number of the entry."""
        sequence = self._append(BLOCK, block_body(stream, table, columns, token), data)
        self._last_blocks[stream] = sequence
        self._tokens.journaled.add(table, token)
        return sequence

    def note_direct(self, table: str, token: str) -> None:
        """A block with this token is sent to the engine by itself from now on."""
        self._append(DIRECT, block_body(0, table, "", token))
        self._tokens.direct.add(table, token)

    def begin_round(self, stream: int, first: int, last: int) -> None:
        """The blocks first <= sequence <= last of a stream go into the engine from now on."""
        self._append(ROUND_BEGUN, ROUND.pack(stream, 0, first, last))
        self.streams[stream].begin(first, last)

    def end_round(self, stream: int) -> None:
        """The blocks of the round are in the engine."""
        state = self.streams[stream]
        self._append(ROUND_ENDED, ROUND.pack(stream, 0, state.round_from, state.round_to))
        state.end()

    def sync(self) -> None:
        """Returns when all that was appended is on the disk. Raises `FlushError`."""
        if self._fd >= 0:
            _flush(self._fd)
        self._synced = self.last_sequence

    def may_recycle(self, needed_from: int) -> bool:
        """Whether there is a segment without an entry from `needed_from` on.

        Not before a segment was begun: the older ones may be the only ones that know the tokens.
        """
        if self._fd < 0:
            return False
        return len(self._segments) > 1 and self._segments[0].last_sequence < needed_from

    def recycle(self, needed_from: int) -> None:
        """Reuse the segments with entries below `needed_from` alone.

        If the journal is durable, `sync` first: the disk has to know why they are not needed.
        """
        if self.may_recycle(needed_from):
            needed = (one for one in self._segments if one.last_sequence >= needed_from)
            first = next(needed, self._segments[-1])
            self._registered().note(first.number, self._segments[-1].number)
            while self._segments[0] is not first:
                emptied = self._segments[0]
                self._spares.keep(emptied.path, emptied.size)
                self.file_bytes -= emptied.size
                del self._segments[0]  # not before: what fails is repeated
        self._spares.remove_surplus()

    def begin_anew(self) -> None:
        """Begin a segment, so that those before it can be recycled if nothing in them is needed."""
        self._begin_segment(0)

    def close(self) -> None:
        """Entries can no longer be appended."""
        if self._fd >= 0:
            lacking = zip(self._last_blocks, self.streams, strict=True)
            has_blocks = any(last > stream.drained for last, stream in lacking)
            with suppress(OSError):  # then a start finds less of what may be missing
                self._registered().note_closed(self.last_sequence, has_blocks=has_blocks)
            os.close(self._fd)
        self._fd, self._size = -1, 0
        self._closed = True

    def _append(self, kind: int, prefix: bytes, rest: bytes = b"") -> int:
        if self._closed:
            raise OSError(errno.EBADF, "the journal is closed")
        sequence = self.last_sequence + 1
        length = len(prefix) + len(rest)
        if length > _MAX_BODY:
            raise OSError(errno.EFBIG, "the block is larger than the journal allows")
        if self._at + ENTRY_BYTES + length > self._size:
            self._begin_segment(ENTRY_BYTES + length)
            sequence = self.last_sequence + 1
        acknowledged = self._synced if self._durable else self.last_sequence
        numbers = (sequence, acknowledged)
        head = _entry_head(self.journal_id.bytes, numbers, kind, prefix, rest)
        _write(self._fd, (head, prefix, rest), ENTRY_BYTES + length, self._at)
        self._at += ENTRY_BYTES + length + _padding(length)
        self.last_sequence = self._segments[-1].last_sequence = sequence
        return sequence

    def _begin_segment(self, entry_bytes: int) -> None:
        """Begin a segment in which there is room for an entry after that of the tokens."""
        number, sequence = self._next_number, self.last_sequence + 1
        register = self._registered()
        tokens = self._tokens.to_bytes()
        begin = HEAD_BYTES + ENTRY_BYTES + len(tokens) + _padding(len(tokens))
        path = self._directory / f"{number:012}.journal"
        size = self._spares.take(path, begin + entry_bytes)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if self._fd < 0:
                (self._directory / ID_FILE).write_text(str(self.journal_id))
            os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, size)
            if self._durable:
                self.sync()  # a segment exists only if all before it are whole
            head = _head_bytes(self.journal_id, number, sequence, self.streams, size)
            _write(fd, (head,), len(head), 0)
            numbers = (sequence, self._synced if self._durable else self.last_sequence)
            entry = _entry_head(self.journal_id.bytes, numbers, TOKENS, b"", tokens)
            _write(fd, (entry, tokens), ENTRY_BYTES + len(tokens), HEAD_BYTES)
            if self._durable:
                _flush(fd)
                _flush_directory(self._directory)
            register.note(self._segments[0].number if self._segments else number, number)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._at, self._size = fd, begin, size
        self._next_number += 1
        self.file_bytes += size
        self.last_sequence = sequence
        self._segments.append(SegmentFile(number, path, size, sequence))

    def _registered(self) -> SegmentRegister:
        """The register of this run: it exists before the first segment that it names."""
        if self._register is None:
            first = self._segments[0].number if self._segments else self._next_number
            last = self._next_number - 1
            known = KnownSegments(self.journal_id, first, last)
            self._register = SegmentRegister(self._directory, known, durable=self._durable)
        return self._register


def _flush(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise FlushError(f"the journal cannot be flushed to the disk: {error.strerror}") from error


def _flush_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        _flush(fd)
    finally:
        os.close(fd)


def _write(fd: int, parts: Sequence[bytes], whole: int, at: int) -> None:
    """`whole`: bytes of all parts."""
    written = os.pwritev(fd, parts, at)
    if written < whole:
        rest = b"".join(parts)
        while written < whole:
            written += os.pwrite(fd, rest[written:], at + written)
