"""The files of the journal (storage/journal.py): segments of entries, each with a checksum.

A segment is a file `NUMBER.journal`, allocated before it is used and recycled when all of it is in
the engine. All have the same size, but for those that were made for a larger block, and files that
were such a one before (journal_spares.py). A segment begins with a head of 512 bytes:

    magic, version, journal id, number of the segment, sequence number of its first entry,
    for each stream: drained up to, round from, round up to; CRC32C of all that

Entries follow, each at a multiple of 8 bytes:

    u32 length of the body, u32 CRC32C of the journal id and of all but the first length, itself
    and the rest of the body,
    u64 sequence number, u64 number up to which entries were known to be acknowledged,
    u32 kind, u32 length of the prefix, u32 length of the body again, u32 CRC32C of the rest,
    body: prefix and rest

There are two sums because a large block need not be copied to its head then.
Sequence numbers go up by one, through all segments; what follows the last entry is zeros, or
entries of the file's earlier use with lower numbers. Kinds: a block of rows; a round of a stream
has begun (from now on some of its rows may be in the engine); the round has ended; the tokens that
are known, which is the first entry of each segment; a token whose block goes to the engine itself.
So the newest segment knows the tokens of all before it, and they can be recycled.

An entry that a crash cut off is left out: nobody was told of it. It is the last one, as entries are
written one after the other; only after a power failure the disk may have kept a later one and lost
an earlier one. So every entry says up to which entry clients had been told when it was written.
Damage up to there is `DamagedJournal`; after it, the journal ends at the damage. Without `fsync`
clients are told as soon as an entry is written, so a power failure may look like damage.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from protocol._batches import crc32c
from storage.journal_spares import SpareFiles
from storage.token_memory import TokenMemory

VERSION = 3
_OLDER_VERSIONS = (2,)
"""These are read, too. 3: a block may be a packed one (protocol/packed_blocks.py)."""
STREAMS = 2
HEAD_BYTES = 512
ENTRY_BYTES = 40

_MAGIC = b"BHJOURNL"
_HEAD = struct.Struct(f"<8sI16sQQ{3 * STREAMS}Q")
_CRC = struct.Struct("<I")
_LENGTH_AND_CRC = struct.Struct("<II")
_ENTRY = struct.Struct("<IIQQIIII")
_CHECKED = struct.Struct("<QQIIII")  # the last six of these
_NAMES = struct.Struct("<IHHH")
_ROUND = struct.Struct("<IIQQ")
_SIZE = struct.Struct("<I")
_MAX_BODY = (1 << 32) - 1

log = logging.getLogger(__name__)

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


@dataclass(slots=True)
class _SegmentFile:
    number: int
    path: Path
    size: int
    last_sequence: int = 0


@dataclass(frozen=True, slots=True)
class _Head:
    journal_id: uuid.UUID
    number: int
    first_sequence: int
    streams: list[StreamState]


# --- what the bytes are


def _head_bytes(
    journal_id: uuid.UUID, number: int, first_sequence: int, streams: Sequence[StreamState]
) -> bytes:
    numbers = [n for one in streams for n in (one.drained, one.round_from, one.round_to)]
    packed = _HEAD.pack(_MAGIC, VERSION, journal_id.bytes, number, first_sequence, *numbers)
    return (packed + _CRC.pack(crc32c(packed))).ljust(HEAD_BYTES, b"\0")


def _read_head(data: memoryview, path: Path) -> _Head | None:
    """None if the head is damaged, or was never written. Raises `JournalError`."""
    if len(data) < HEAD_BYTES:
        return None
    magic, version, journal_id, number, first, *numbers = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version not in (VERSION, *_OLDER_VERSIONS):
        raise JournalError(
            f"{path} has version {version} of the journal's format, and this brokerhouse knows"
            f" version {VERSION}: start the brokerhouse that wrote it, stop it, and if it ended"
            f" without an error, remove {path.parent}"
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if crc != crc32c(data[: _HEAD.size]):
        return None
    streams = [StreamState(*numbers[3 * n : 3 * n + 3]) for n in range(STREAMS)]
    return _Head(uuid.UUID(bytes=journal_id), number, first, streams)


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


def _read_block(sequence: int, body: memoryview) -> JournalBlock:
    stream, *sizes = _NAMES.unpack_from(body)
    at = _NAMES.size
    names = []
    for size in sizes:
        names.append(str(body[at : at + size], "utf-8"))
        at += size
    table, columns, token = names
    return JournalBlock(sequence, stream, table, columns, token, bytes(body[at:]))


@dataclass(frozen=True, slots=True)
class _Entry:
    sequence: int
    acknowledged: int
    kind: int
    body: memoryview
    end: int


def _read_entry(salt: bytes, data: memoryview, at: int) -> _Entry | None:
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
    return _Entry(sequence, acknowledged, kind, data[start:end], end + _padding(end))


def _later_entries(salt: bytes, data: memoryview, at: int, after: int) -> Iterator[_Entry]:
    """Whole entries, from `at` on, with a sequence number above `after`."""
    if _is_zeros(data[at:]):
        return
    numbers = data[at : len(data) - len(data) % 8].cast("Q")
    highest = after + len(data) // ENTRY_BYTES + 1
    begin = at
    for index, sequence in enumerate(numbers):
        if after < sequence <= highest and at + 8 * index - 8 >= begin:
            entry = _read_entry(salt, data, at + 8 * index - 8)
            if entry is not None:
                yield entry
                begin = entry.end


# --- reading all of it


def read_journal(directory: Path, *, skip_damage: bool = False) -> JournalContents:
    """What the segments in `directory` hold; nothing is changed.

    `skip_damage`: leave out what is damaged, and keep every entry that is whole. Raises
    `DamagedJournal` and `JournalError`.
    """
    found: JournalContents | None = None
    segments = _segments(directory)
    for position, segment in enumerate(segments):
        data = memoryview(_content(segment.path))
        head = _read_head(data, segment.path)
        is_last = position == len(segments) - 1
        foreign = found is not None and head is not None and head.journal_id != found.journal_id
        if head is None or head.number != segment.number or foreign:
            if is_last and (head is not None or _is_zeros(data)):
                break  # it was being put into use
            if not skip_damage:
                raise _damaged(segment.path, 0, "its head is damaged", found, data)
            log.warning("%s: its head is damaged", segment.path)
            if found is None:
                found = JournalContents(_journal_id(directory, segments))
            found.last_segment = segment.number
            _read_entries(segment.path, data, found, skip_damage=True)
            continue
        if found is None:
            found = JournalContents(head.journal_id, head.first_sequence - 1, 0, head.streams)
        elif head.first_sequence != found.last_sequence + 1:
            if not skip_damage:
                lost = f"{found.last_sequence + 1} to {head.first_sequence - 1}"
                why = f"entries {lost} before it are missing"
                raise _damaged(segment.path, 0, why, found, data)
            log.warning("%s: entries before it are lost", segment.path)
            found.last_sequence = max(found.last_sequence, head.first_sequence - 1)
        found.last_segment = segment.number
        _read_entries(segment.path, data, found, skip_damage=skip_damage)
    if found is None:
        return JournalContents(uuid.uuid4())
    return found


def _journal_id(directory: Path, segments: Sequence[_SegmentFile]) -> uuid.UUID:
    """The id that the segments have in common, where the head of the first one is damaged."""
    heads = (_read_head(memoryview(_content(one.path)), one.path) for one in segments)
    with suppress(OSError, ValueError):
        return uuid.UUID((directory / ID_FILE).read_text())
    return next((head.journal_id for head in heads if head is not None), uuid.uuid4())


def _read_entries(
    path: Path, data: memoryview, found: JournalContents, *, skip_damage: bool
) -> None:
    at = HEAD_BYTES
    while True:
        entry = _read_entry(found.journal_id.bytes, data, at)
        if entry is None or entry.sequence != found.last_sequence + 1:
            missing = found.last_sequence + 1
            after = list(_entries_after(found, data, at))
            if not any(one.acknowledged >= missing for one in after):
                return
            if not skip_damage:
                raise _damaged(path, at, f"entry {missing} is damaged", found, data)
            entry = after[0]
            log.warning("%s: entries %d to %d are lost", path, missing, entry.sequence - 1)
        found.last_sequence, at = entry.sequence, entry.end
        if entry.kind == BLOCK:
            block = _read_block(entry.sequence, entry.body)
            found.tokens.journaled.add(block.table, block.token)
            if block.sequence > found.streams[block.stream].drained:
                found.blocks.append(block)
        elif entry.kind in (ROUND_BEGUN, ROUND_ENDED):
            stream, _, first, last = _ROUND.unpack(entry.body)
            state = found.streams[stream]
            state.begin(first, last)
            if entry.kind == ROUND_ENDED:
                state.end()
                found.blocks = [
                    one for one in found.blocks if one.stream != stream or one.sequence > last
                ]
        elif entry.kind == TOKENS:
            found.tokens = JournalTokens.from_bytes(entry.body)
        elif entry.kind == DIRECT:
            direct = _read_block(entry.sequence, entry.body)
            found.tokens.direct.add(direct.table, direct.token)
        else:
            raise JournalError(f"{path} has an entry of the unknown kind {entry.kind}")


def _entries_after(found: JournalContents, data: memoryview, at: int) -> Iterator[_Entry]:
    return _later_entries(found.journal_id.bytes, data, at, found.last_sequence)


def _is_zeros(data: memoryview) -> bool:
    return bytes(data).count(0) == len(data)


def _damaged(
    path: Path, at: int, why: str, found: JournalContents | None, data: memoryview
) -> DamagedJournal:
    whole = 0
    if found is not None:
        after = _entries_after(found, data, max(at, HEAD_BYTES))
        whole = sum(entry.kind == BLOCK for entry in after)
    return DamagedJournal(
        f"the journal is damaged: {path} at byte {at}: {why}, and {whole} blocks of records after"
        " it in this file are whole. Restore the file, or start once with --journal-skip-damage:"
        " what is damaged is lost then, everything else is kept, and the files are kept in"
        f" {path.parent / 'damaged'}"
    )


def _segments(directory: Path) -> list[_SegmentFile]:
    found = []
    for path in directory.glob("*.journal"):
        with suppress(ValueError):
            found.append(_SegmentFile(int(path.stem), path, path.stat().st_size))
    return sorted(found, key=lambda segment: segment.number)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {error.strerror}") from error


def keep_copies(directory: Path) -> None:
    """Copy all segments to `damaged/`, before a start that leaves out what is damaged."""
    kept = directory / "damaged"
    kept.mkdir(exist_ok=True)
    for segment in _segments(directory):
        shutil.copyfile(segment.path, kept / segment.path.name)


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
            _SegmentFile(segment.number, segment.path, segment.size, contents.last_sequence)
            for segment in _segments(directory)
            if segment.number <= contents.last_segment
        ]
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
        self._tokens.journaled.add(table, token)
        return sequence

    def note_direct(self, table: str, token: str) -> None:
        """A block with this token is sent to the engine by itself from now on."""
        self._append(DIRECT, block_body(0, table, "", token))
        self._tokens.direct.add(table, token)

    def begin_round(self, stream: int, first: int, last: int) -> None:
        """The blocks first <= sequence <= last of a stream go into the engine from now on."""
        self._append(ROUND_BEGUN, _ROUND.pack(stream, 0, first, last))
        self.streams[stream].begin(first, last)

    def end_round(self, stream: int) -> None:
        """The blocks of the round are in the engine."""
        state = self.streams[stream]
        self._append(ROUND_ENDED, _ROUND.pack(stream, 0, state.round_from, state.round_to))
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
        while self.may_recycle(needed_from):
            segment = self._segments.pop(0)
            self.file_bytes -= segment.size
            self._spares.keep(segment.path, segment.size)
        self._spares.remove_surplus()

    def close(self) -> None:
        """Entries can no longer be appended."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = -1, 0
        self._closed = True

    def _append(self, kind: int, prefix: bytes, rest: bytes = b"") -> int:
        if self._closed:
            raise OSError(errno.EBADF, "the journal is closed")
        sequence = self.last_sequence + 1
        length = len(prefix) + len(rest)
        if length > _MAX_BODY:
            raise OSError(errno.EFBIG, "a block is too large for the journal")
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
        tokens = self._tokens.to_bytes()
        begin = HEAD_BYTES + ENTRY_BYTES + len(tokens) + _padding(len(tokens))
        path = self._directory / f"{number:012}.journal"
        size = self._spares.take(path, begin + entry_bytes)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._fd < 0:
                (self._directory / ID_FILE).write_text(str(self.journal_id))
            os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, size)
            if self._durable:
                self.sync()  # a segment exists only if all before it are whole
            head = _head_bytes(self.journal_id, number, sequence, self.streams)
            _write(fd, (head,), len(head), 0)
            numbers = (sequence, self._synced if self._durable else self.last_sequence)
            entry = _entry_head(self.journal_id.bytes, numbers, TOKENS, b"", tokens)
            _write(fd, (entry, tokens), ENTRY_BYTES + len(tokens), HEAD_BYTES)
            if self._durable:
                _flush(fd)
                _flush_directory(self._directory)
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
        self._segments.append(_SegmentFile(number, path, size, sequence))


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
