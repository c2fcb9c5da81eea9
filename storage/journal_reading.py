"""Reads the files of the journal (storage/journal_files.py) and finds what is damaged or missing.

A start reads everything that the register (storage/journal_register.py) says exists. Whatever is
not as it was written is `DamagedJournal`, with the file, what is gone and what to do; or it is left
out, if the operator has said so. What a crash can leave is no damage: a segment that was being put
into use, an entry at the end that was cut off, a recycled segment that has still its name.

A segment belongs where its head says, whatever its file is called: a file with another name is
read, and gets a name with its number (`settle_names`).
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brokerhouse.storage.journal_files import (
    BLOCK,
    DIRECT,
    HEAD_BYTES,
    ID_FILE,
    ROUND,
    ROUND_BEGUN,
    ROUND_ENDED,
    TOKENS,
    UNREGISTERED_VERSIONS,
    DamagedJournal,
    Entry,
    JournalContents,
    JournalError,
    JournalTokens,
    SegmentFile,
    SegmentHead,
    is_zeros,
    later_entries,
    may_have_begun,
    read_block,
    read_entry,
    read_head,
)
from brokerhouse.storage.journal_register import KnownSegments, read_register, register_path
from brokerhouse.storage.journal_spares import spare_files, spare_name

log = logging.getLogger(__name__)


def read_journal(directory: Path, *, skip_damage: bool = False) -> JournalContents:
    """What the segments in `directory` hold; nothing is changed.

    `skip_damage`: leave out what is damaged, and keep every entry that is whole. Raises
    `DamagedJournal` and `JournalError`.
    """
    return _JournalReading(directory, skip_damage=skip_damage).all()


def keep_copies(directory: Path) -> None:
    """Copy all files to `damaged/`, before a start that leaves out what is damaged."""
    kept = directory / "damaged"
    kept.mkdir(exist_ok=True)
    for path in (*directory.glob("*.journal"), register_path(directory)):
        if path.is_file():
            shutil.copyfile(path, kept / path.name)


def settle_names(directory: Path, contents: JournalContents) -> None:
    """Give segments with the names of others a name of their own. Raises `OSError`.

    A name with `.moved` is free, so that a crash in between loses none.
    """
    for number, path in contents.misplaced.items():
        target = directory / f"{number:012}.moved.journal"
        path.rename(target)
        contents.files = [
            SegmentFile(one.number, target if one.path == path else one.path, one.size)
            for one in contents.files
        ]
    for path in contents.recycled:
        with suppress(FileNotFoundError):
            path.rename(directory / spare_name(path))


@dataclass(frozen=True, slots=True)
class _SegmentCandidate:
    """A file that may be a segment. `number`: by its name; 0 of a spare file."""

    path: Path
    number: int
    head: SegmentHead | None


class _JournalReading:
    def __init__(self, directory: Path, *, skip_damage: bool) -> None:
        self._directory = directory
        self._skip_damage = skip_damage
        self._known: KnownSegments | None = None
        self._whole: dict[int, Path] = {}
        """Segments with a head, by the number that it says."""
        self._odd: dict[int, _SegmentCandidate] = {}
        """Files without a head, or with that of another segment, by the number in their name."""
        self._heads: dict[int, SegmentHead] = {}
        self._misplaced: dict[int, Path] = {}
        self._recycled: list[Path] = []
        self._found: JournalContents | None = None
        self._files: list[SegmentFile] = []

    def all(self) -> JournalContents:
        found = [*_named(self._directory), *_spares(self._directory)]
        self._look_at_register(found)
        self._place(found)
        if not self._is_forgotten():
            numbers = self._numbers()
            for number in numbers:
                if not self._read(number, is_last=number == numbers[-1]):
                    break
            self._check_end()
        contents = self._found or JournalContents(uuid.uuid4())
        contents.files = self._files
        contents.misplaced = self._misplaced
        contents.recycled = self._recycled
        return contents

    # --- which files there are

    def _look_at_register(self, found: list[_SegmentCandidate]) -> None:
        path = register_path(self._directory)
        try:
            known, damaged = read_register(self._directory)
        except OSError as error:
            raise _unreadable(path, error) from error
        heads = [one.head for one in found if one.head is not None and one.number]
        if known is None:
            if damaged or any(one.version not in UNREGISTERED_VERSIONS for one in heads):
                why = "the file has no valid record" if damaged else "the file is missing"
                self._damage(path, f"{why}, so missing segments cannot be detected")
            return
        if damaged:
            log.warning("%s: one of its two records is damaged, and the other one is used", path)
        if heads and all(one.journal_id != known.journal_id for one in heads):
            if known.is_drained and all(one.version in UNREGISTERED_VERSIONS for one in heads):
                return  # that journal was removed, and an older version began this one
            self._damage(path, f"the file is not of the journal in {self._directory}")
            return
        self._known = known

    def _place(self, found: list[_SegmentCandidate]) -> None:
        misplaced = []
        for one in found:
            head = one.head
            if self._is_recycled(one):
                self._recycled.append(one.path)
            elif head is None or not self._is_ours(head):
                if one.number:
                    self._odd[one.number] = one
            elif head.number == one.number:
                self._whole[head.number] = one.path
                self._heads[head.number] = head
            else:
                misplaced.append((one, head))
        for one, head in misplaced:
            if self._known is None or head.number < self._known.first:
                if one.number:
                    self._odd[one.number] = one
            elif head.number in self._whole:
                log.warning("ignoring %s, which is a copy of segment %d", one.path, head.number)
                self._odd.setdefault(one.number, one)
            else:
                log.warning(
                    "%s has the content of segment %d of the journal: reading it as that segment",
                    one.path,
                    head.number,
                )
                self._whole[head.number] = self._misplaced[head.number] = one.path
                self._heads[head.number] = head

    def _is_recycled(self, one: _SegmentCandidate) -> bool:
        """Whether a crash came before it got the name of a spare file."""
        return (
            self._known is not None
            and 0 < one.number < self._known.first
            and (one.head is None or one.head.number < self._known.first)
        )

    def _is_ours(self, head: SegmentHead) -> bool:
        return self._known is None or head.journal_id == self._known.journal_id

    def _is_forgotten(self) -> bool:
        """Whether all segments were removed after a stop at which the tables had everything."""
        known = self._known
        if known is None or not known.is_drained or self._whole or self._odd:
            return False
        log.warning(
            "the segments of the journal in %s were removed: no record is lost, as the tables had"
            " all of them when the journal was closed",
            self._directory,
        )
        return True

    def _numbers(self) -> list[int]:
        """The segments that are read, or missed, in order."""
        if self._known is None:
            return sorted({*self._whole, *self._odd})
        return list(range(self._known.first, max(self._known.last, *self._whole, 0) + 1))

    # --- what is in them

    def _read(self, number: int, *, is_last: bool) -> bool:
        """Read a segment. False: there is nothing from here on."""
        path = self._whole.get(number)
        if path is None:
            return self._read_odd(number, is_last=is_last)
        data, head = _content(path), self._heads[number]
        found = self._found
        if found is None:
            found = JournalContents(head.journal_id, head.first_sequence - 1, 0, head.streams)
            self._found = found
        elif head.journal_id != found.journal_id:
            self._damage(path, "the file belongs to another journal", data)
            return True
        elif head.first_sequence != found.last_sequence + 1:
            lost = f"{found.last_sequence + 1} to {head.first_sequence - 1}"
            self._damage(path, f"entries {lost} before it are missing", data)
            found.last_sequence = max(found.last_sequence, head.first_sequence - 1)
        self._use(number, path, data)
        if self._is_known(number) and read_entry(head.journal_id.bytes, data, HEAD_BYTES) is None:
            lost = f"entries from {head.first_sequence} on may be missing"
            self._damage(path, f"the first entry is damaged: {lost}", data)
        self._read_entries(path, data, is_short=len(data) < head.size)
        return True

    def _is_known(self, number: int) -> bool:
        """Whether it was put into use, by the register."""
        return self._known is not None and number <= self._known.last

    def _read_odd(self, number: int, *, is_last: bool) -> bool:
        """A segment without a whole head: missing, damaged, or never put into use."""
        one = self._odd.get(number)
        path = self._directory / f"{number:012}.journal"
        if one is None:
            self._damage(path, f"the file is missing, and {self._lost_with(number)} in it")
            return True
        data = _content(one.path)
        if not self._is_known(number) and is_last and (one.head is not None or is_zeros(data)):
            return False  # it was being put into use
        if one.head is not None:
            self._damage(path, f"the file has the content of another segment ({one.head.number})")
            return True
        why = "the head is damaged" if len(data) else "the file is empty"
        self._damage(path, f"{why}, and {self._lost_with(number)} in it", data)
        if self._found is None:
            self._found = JournalContents(self._journal_id())
        self._use(number, path, data)
        self._read_entries(path, data, is_short=False, is_headless=True)
        return True

    def _use(self, number: int, path: Path, data: memoryview) -> None:
        assert self._found is not None
        self._found.last_segment = number
        self._files.append(SegmentFile(number, path, len(data)))

    def _lost_with(self, number: int) -> str:
        """Which entries were in a segment, by what is around it."""
        after = min((n for n in self._heads if n > number), default=None)
        last = "" if after is None else f" to {self._heads[after].first_sequence - 1}"
        first = "the first" if self._found is None else str(self._found.last_sequence + 1)
        return f"the entries from {first}{last or ' on'} were"

    def _read_entries(
        self, path: Path, data: memoryview, *, is_short: bool, is_headless: bool = False
    ) -> None:
        found = self._found
        assert found is not None
        at = HEAD_BYTES
        while True:
            missing = found.last_sequence + 1
            entry = read_entry(found.journal_id.bytes, data, at)
            if entry is None or entry.sequence != missing:
                after = list(self._entries_after(data, at))
                if not any(one.acknowledged >= missing for one in after):
                    if is_short and may_have_begun(data, at, missing):
                        why = f"the file is cut short: entries from {missing} on are missing"
                        self._damage(path, why, data, at)
                    return
                if not is_headless:
                    self._damage(path, f"entry {missing} is damaged", data, at)
                entry = after[0]
                log.warning("%s: entries %d to %d are lost", path, missing, entry.sequence - 1)
            found.last_sequence, at = entry.sequence, entry.end
            _apply(entry, found, path)

    def _check_end(self) -> None:
        """What was there when the journal was closed must be there."""
        if self._known is None or not self._known.closed_at:
            return
        last = 0 if self._found is None else self._found.last_sequence
        if last < self._known.closed_at:
            path = self._files[-1].path if self._files else self._directory
            lost = f"{last + 1} to {self._known.closed_at}"
            self._damage(path, f"entries {lost} were at its end when the journal was closed")

    def _entries_after(self, data: memoryview, at: int) -> Iterator[Entry]:
        if self._found is None:
            return iter(())
        return later_entries(self._found.journal_id.bytes, data, at, self._found.last_sequence)

    def _journal_id(self) -> uuid.UUID:
        """The id that the segments have in common, where the head of the first one is damaged."""
        if self._known is not None:
            return self._known.journal_id
        for number in sorted(self._heads):
            return self._heads[number].journal_id
        with suppress(OSError, ValueError):
            return uuid.UUID((self._directory / ID_FILE).read_text())
        return uuid.uuid4()

    def _damage(self, path: Path, why: str, data: memoryview | None = None, at: int = 0) -> None:
        """Raises `DamagedJournal`, unless damage is to be left out."""
        if self._skip_damage:
            log.warning("%s: %s", path, why)
            return
        rest = ""
        if data is not None:
            after = self._entries_after(data, max(at, HEAD_BYTES))
            whole = sum(entry.kind == BLOCK for entry in after)
            rest = f", and {whole} blocks of records after it in this file are whole"
        where = f"{path} at byte {at}" if data is not None else str(path)
        raise DamagedJournal(
            f"the journal is damaged: {where}: {why}{rest}. Restore the file, or start once with"
            " --journal-skip-damage: then the damaged and missing entries are lost, all others are"
            f" kept, and the files are kept in {self._directory / 'damaged'}"
        )


def _apply(entry: Entry, found: JournalContents, path: Path) -> None:
    """What the journal holds after this entry."""
    if entry.kind == BLOCK:
        block = read_block(entry.sequence, entry.body)
        found.tokens.journaled.add(block.table, block.token)
        if block.sequence > found.streams[block.stream].drained:
            found.blocks.append(block)
    elif entry.kind in (ROUND_BEGUN, ROUND_ENDED):
        stream, _, first, last = ROUND.unpack(entry.body)
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
        direct = read_block(entry.sequence, entry.body)
        found.tokens.direct.add(direct.table, direct.token)
    else:
        raise JournalError(
            f"{path} has an entry of kind {entry.kind}, which this version does not know"
        )


def _named(directory: Path) -> Iterator[_SegmentCandidate]:
    """The files with names of segments, in order: 17.journal, 17.moved.journal."""
    for path in sorted(directory.glob("*.journal")):
        number = path.stem.partition(".")[0]
        if number.isascii() and number.isdigit():
            yield _SegmentCandidate(path, int(number), _head_of(path))


def _spares(directory: Path) -> Iterator[_SegmentCandidate]:
    """Spare files: one may have changed its name with a segment."""
    for path in spare_files(directory):
        with suppress(JournalError):
            yield _SegmentCandidate(path, 0, _head_of(path))


def _head_of(path: Path) -> SegmentHead | None:
    try:
        with path.open("rb") as file:
            return read_head(memoryview(file.read(HEAD_BYTES)), path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _content(path: Path) -> memoryview:
    try:
        return memoryview(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> JournalError:
    return JournalError(
        f"the journal cannot be read: {path}: {os.strerror(error.errno or 0)}; make it readable for"
        " this user, or put the file back"
    )
