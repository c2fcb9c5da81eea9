"""What a start says about each kind of damage to each file of the journal.

The process was killed, so nothing tells but the files themselves. A row of the table is what
happens to them and what the start says; `None`: nothing is lost, and every record is read.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerhouse.storage.journal_files import (
    HEAD_BYTES,
    DamagedJournal,
    JournalError,
    JournalWriter,
)
from brokerhouse.storage.journal_reading import keep_copies, read_journal, settle_names
from brokerhouse.storage.journal_register import RECORD_BYTES, register_path

SEGMENT_BYTES = 4096
FIRST, LAST = 3, 6
"""The segments that are needed: those before them were recycled."""
IN_A_SEGMENT = 2
WRITTEN = [f"block {n}" for n in range(IN_A_SEGMENT * FIRST - 2, IN_A_SEGMENT * LAST)]
"""The blocks of these segments, two in each."""


@contextmanager
def writer(directory: Path, *, skip_damage: bool = False) -> Iterator[JournalWriter]:
    """As a start does it."""
    found = read_journal(directory, skip_damage=skip_damage)
    if skip_damage:
        keep_copies(directory)
    settle_names(directory, found)
    opened = JournalWriter(directory, SEGMENT_BYTES, found, durable=False)
    try:
        yield opened
    finally:
        opened.close()


def append(journal: JournalWriter, text: str) -> int:
    token = f"1-1-{journal.last_sequence}"
    return journal.append_block(0, "messages", "a", token, text.ljust(1500).encode())


def texts(directory: Path, *, skip_damage: bool = False) -> list[str]:
    found = read_journal(directory, skip_damage=skip_damage)
    return [block.data.decode().strip() for block in found.blocks]


class Files:
    """The files of a journal whose process was killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "journal"
        self.register = register_path(self.directory)
        self.directory.mkdir()
        self.earlier_register = directory / "earlier register"
        with writer(self.directory) as journal:
            for n in range(IN_A_SEGMENT * LAST):
                last = append(journal, f"block {n}")
                if n == IN_A_SEGMENT * (FIRST - 1) - 1:
                    append_round(journal, last)
                    drained = journal.last_sequence
                if n == len(WRITTEN):
                    journal.recycle(drained + 1)
                    self.copy(self.register, self.earlier_register)
            register = self.register.read_bytes()
        self.register.write_bytes(register)
        named = sorted(path.name for path in self.directory.glob("*.journal"))
        assert named == [self.segment(n).name for n in range(FIRST, LAST + 1)]
        assert texts(self.directory) == WRITTEN

    def segment(self, number: int) -> Path:
        return self.directory / f"{number:012}.journal"

    @property
    def spare(self) -> Path:
        return next(self.directory.glob("spare*"))

    def remove(self, path: Path) -> None:
        path.unlink()

    def cut(self, path: Path, *sizes: int) -> None:
        """To one size after the other: what is longer than before has zeros."""
        for size in sizes:
            os.truncate(path, size)

    def copy(self, path: Path, target: Path) -> None:
        shutil.copyfile(path, target)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def flip(self, path: Path, at: int) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def swap(self, one: Path, other: Path) -> None:
        between = self.directory / "between"
        one.rename(between)
        other.rename(one)
        between.rename(other)

    def of_another_journal(self, name: str) -> Path:
        other = self.directory.parent / "other"
        other.mkdir()
        return next(Files(other).directory.parent.rglob(name))


def append_round(journal: JournalWriter, last: int) -> None:
    """All blocks up to this one go into the engine."""
    journal.begin_round(0, 1, last)
    journal.end_round(0)


def all_removed(files: Files) -> None:
    for number in range(FIRST, LAST + 1):
        files.segment(number).unlink()


def made_a_directory(files: Files) -> None:
    files.segment(4).unlink()
    files.segment(4).mkdir()


def unreadable(files: Files) -> None:
    """Also for root."""
    files.segment(4).unlink()
    files.segment(4).symlink_to(files.segment(4))


def extra_files(files: Files) -> None:
    (files.directory / "notes.txt").write_text("mine")
    (files.directory / "old 4.journal").write_text("mine")
    (files.directory / "spare-directory").mkdir()
    (files.directory / "damaged").mkdir()


def being_put_into_use(files: Files) -> None:
    """A crash in the middle of it."""
    shutil.copyfile(files.spare, files.segment(LAST + 1))


def recycled_and_not_renamed(files: Files) -> None:
    files.spare.rename(files.segment(FIRST - 1))


@dataclass(frozen=True)
class Case:
    """`says`: of the start; None if nothing is lost. `kept`: the blocks that can be kept."""

    damage: Callable[[Files], None]
    says: str | None = None
    kept: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)


WITHOUT_FIRST = (2, 3, 4, 5, 6, 7)
WITHOUT_SECOND = (0, 1, 4, 5, 6, 7)
WITHOUT_LAST = (0, 1, 2, 3, 4, 5)
IN_A_BLOCK = SEGMENT_BYTES // 2

CASES = {
    "first removed": Case(
        lambda files: files.remove(files.segment(FIRST)),
        r"000003.journal: the file is missing, and the entries from the first to \d+ were in it",
        WITHOUT_FIRST,
    ),
    "second removed": Case(
        lambda files: files.remove(files.segment(4)),
        r"000004.journal: the file is missing, and the entries from \d+ to \d+ were in it",
        WITHOUT_SECOND,
    ),
    "last removed": Case(
        lambda files: files.remove(files.segment(LAST)),
        r"000006.journal: the file is missing, and the entries from \d+ on were in it",
        WITHOUT_LAST,
    ),
    "all removed": Case(all_removed, "000003.journal: the file is missing", ()),
    "directory removed": Case(
        lambda files: shutil.rmtree(files.directory), "000003.journal: the file is missing", ()
    ),
    "first cut": Case(
        lambda files: files.cut(files.segment(FIRST), IN_A_BLOCK),
        "entries .* are missing",
        WITHOUT_FIRST,
    ),
    "last cut": Case(
        lambda files: files.cut(files.segment(LAST), IN_A_BLOCK),
        r"000006.journal at byte \d+: the file is cut short: entries from \d+ on are missing",
        WITHOUT_LAST,
    ),
    "last cut in its head": Case(
        lambda files: files.cut(files.segment(LAST), 100), "the head is damaged", WITHOUT_LAST
    ),
    "last emptied": Case(
        lambda files: files.cut(files.segment(LAST), 0), "the file is empty", WITHOUT_LAST
    ),
    "middle emptied": Case(
        lambda files: files.cut(files.segment(4), 0), "the file is empty", WITHOUT_SECOND
    ),
    "last zeroed": Case(
        lambda files: files.cut(files.segment(LAST), 0, SEGMENT_BYTES),
        "the head is damaged",
        WITHOUT_LAST,
    ),
    "last zeroed after its head": Case(
        lambda files: files.cut(files.segment(LAST), HEAD_BYTES, SEGMENT_BYTES),
        "the first entry is damaged",
        WITHOUT_LAST,
    ),
    "last cut behind its entries": Case(
        lambda files: files.cut(files.segment(LAST), SEGMENT_BYTES - 8)
    ),
    "bit of a head": Case(lambda files: files.flip(files.segment(4), 40), "the head is damaged"),
    "bit of the size in a head": Case(
        lambda files: files.flip(files.segment(4), 93), "the head is damaged"
    ),
    "bit of the head of the first": Case(
        lambda files: files.flip(files.segment(FIRST), 40), "the head is damaged"
    ),
    "bit of a block": Case(
        lambda files: files.flip(files.segment(4), IN_A_BLOCK),
        r"entry \d+ is damaged",
        (0, 1, 3, 4, 5, 6, 7),
    ),
    "names of two swapped": Case(lambda files: files.swap(files.segment(4), files.segment(5))),
    "names of first and last swapped": Case(
        lambda files: files.swap(files.segment(FIRST), files.segment(LAST))
    ),
    "last renamed": Case(lambda files: files.rename(files.segment(LAST), files.segment(LAST + 1))),
    "first renamed": Case(lambda files: files.rename(files.segment(FIRST), files.segment(1))),
    "name swapped with a spare file": Case(lambda files: files.swap(files.segment(4), files.spare)),
    "copied to a further name": Case(
        lambda files: files.copy(files.segment(4), files.segment(LAST + 1))
    ),
    "copied over another": Case(
        lambda files: files.copy(files.segment(FIRST), files.segment(4)),
        "000004.journal: the file has the content of another segment \\(3\\)",
        WITHOUT_SECOND,
    ),
    "of another journal": Case(
        lambda files: files.copy(
            files.of_another_journal("000000000004.journal"), files.segment(4)
        ),
        "000004.journal: the file has the content of another",
        WITHOUT_SECOND,
    ),
    "a directory": Case(made_a_directory, "cannot be read: .*000004.journal: Is a directory", ()),
    "unreadable": Case(unreadable, "cannot be read: .*000004.journal: Too many levels", ()),
    "extra files": Case(extra_files),
    "being put into use": Case(being_put_into_use),
    "recycled and not renamed": Case(recycled_and_not_renamed),
    "id removed": Case(lambda files: files.remove(files.directory / "id")),
    "id damaged": Case(lambda files: files.cut(files.directory / "id", 3)),
    "register removed": Case(
        lambda files: files.remove(files.register), "journal.segments: the file is missing"
    ),
    "register emptied": Case(
        lambda files: files.cut(files.register, 0), "journal.segments: the file has no valid record"
    ),
    "register cut": Case(lambda files: files.cut(files.register, RECORD_BYTES)),
    "bit of one record of the register": Case(lambda files: files.flip(files.register, 50)),
    "bit of the other record": Case(lambda files: files.flip(files.register, RECORD_BYTES + 50)),
    "register earlier": Case(lambda files: files.copy(files.earlier_register, files.register)),
    "register of another journal": Case(
        lambda files: files.copy(files.of_another_journal("journal.segments"), files.register),
        "journal.segments: the file is not of the journal",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_harmless_or_reported_at_the_start(tmp_path: Path, name: str) -> None:
    files, case = Files(tmp_path), CASES[name]
    case.damage(files)
    files.directory.mkdir(exist_ok=True)
    if case.says is None:
        check_goes_on(files, WRITTEN)
        return
    with pytest.raises(JournalError, match=case.says) as refused:
        read_journal(files.directory)
    if not isinstance(refused.value, DamagedJournal):
        assert "put the file back" in str(refused.value)
        return
    assert "start once with --journal-skip-damage" in str(refused.value)
    check_goes_on(files, [WRITTEN[n] for n in case.kept], skip_damage=True)


def check_goes_on(files: Files, kept: list[str], *, skip_damage: bool = False) -> None:
    """A start finds these blocks, and so does the start after it, although it was killed."""
    assert texts(files.directory, skip_damage=skip_damage) == kept
    with writer(files.directory, skip_damage=skip_damage) as journal:
        assert texts(files.directory, skip_damage=skip_damage) == kept
        append(journal, "one more")
        register = files.register.read_bytes()
    files.register.write_bytes(register)
    if not skip_damage:
        assert texts(files.directory) == [*kept, "one more"]


def test_each_cut_of_the_last_segment_is_reported_or_harmless(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.segment(LAST)
    whole = path.read_bytes()
    outcomes = {"seen": 0, "harmless": 0}
    for size in range(0, SEGMENT_BYTES, 13):
        path.write_bytes(whole[:size])
        try:
            assert texts(files.directory) == WRITTEN
            outcomes["harmless"] += 1
        except DamagedJournal:
            outcomes["seen"] += 1
    assert outcomes["seen"] * 13 > 3000
    assert outcomes["harmless"] > 10


def test_an_older_copy_of_the_last_segment_is_reported_after_a_stop(tmp_path: Path) -> None:
    """After a `kill -9` it cannot be told from the end of the journal."""
    directory = tmp_path / "journal"
    directory.mkdir()
    with writer(directory) as journal:
        append(journal, "one")
        (path,) = directory.glob("*.journal")
        earlier = path.read_bytes()
        append(journal, "two")
    path.write_bytes(earlier)
    with pytest.raises(DamagedJournal, match="entries 3 to 3 were at its end"):
        read_journal(directory)
    assert texts(directory, skip_damage=True) == ["one"]


def test_a_journal_that_was_drained_at_the_stop_may_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    with writer(directory) as journal:
        append_round(journal, append(journal, "one"))
    shutil.rmtree(directory)
    directory.mkdir()
    assert texts(directory) == []
    assert "no record is lost" in caplog.text
    with writer(directory) as journal:
        append(journal, "two")
    assert texts(directory) == ["two"]


@pytest.mark.parametrize("drained", [True, False])
def test_a_journal_of_an_older_version_is_read_after_one_that_was_drained_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drained: bool
) -> None:
    """That version says itself that the other journal is to be removed, and knows no register."""
    directory, older = tmp_path / "journal", tmp_path / "older" / "journal"
    directory.mkdir()
    older.mkdir(parents=True)
    with writer(directory) as journal:
        last = append(journal, "one")
        if drained:
            append_round(journal, last)
    with monkeypatch.context() as patch:
        patch.setattr("brokerhouse.storage.journal_files.VERSION", 3)
        with writer(older) as journal:
            append(journal, "of the older version")
    shutil.rmtree(directory)
    shutil.copytree(older, directory)
    if not drained:
        with pytest.raises(DamagedJournal, match="the file is not of the journal"):
            read_journal(directory)
        return
    assert texts(directory) == ["of the older version"]
    with writer(directory) as journal:
        append(journal, "two")
    assert texts(directory) == ["of the older version", "two"]


def test_the_register_is_written_for_segments_and_not_for_entries(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    with writer(directory) as journal:
        append(journal, "one")
        before = register_path(directory).read_bytes()
        journal.append_block(0, "messages", "a", "token", b"two")
        journal.begin_round(0, 1, 2)
        assert register_path(directory).read_bytes() == before
        append(journal, "three")
        append(journal, "four")
        assert register_path(directory).read_bytes() != before


@contextmanager
def refused_for_the_register(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> Iterator[pytest.MonkeyPatch]:
    """A file system that copies on write has no space for `pwrite`, or says so at `fsync`."""
    real = getattr(os, call)

    def refused(fd: int, *args: object) -> object:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".segments"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        yield patch


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_segment_that_the_register_could_not_record_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files = Files(tmp_path)
    journal = JournalWriter(
        files.directory, SEGMENT_BYTES, read_journal(files.directory), durable=True
    )
    append(journal, "one")
    append(journal, "two")
    with refused_for_the_register(monkeypatch, call), pytest.raises(OSError, match="No space"):
        append(journal, "refused")
    assert texts(files.directory) == [*WRITTEN, "one", "two"]
    append(journal, "three")
    assert texts(files.directory) == [*WRITTEN, "one", "two", "three"]
    journal.close()


@pytest.mark.parametrize("call", ["pwrite", "rename"])
def test_segments_that_could_not_be_recycled_are_recycled_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files = Files(tmp_path)
    with writer(files.directory) as journal:
        append_round(journal, append(journal, "one"))
        before = journal.file_bytes
        with refused_for_the_register(monkeypatch, "pwrite") as patch:
            if call == "rename":
                patch.undo()
                patch.setattr(Path, "rename", no_space)
            with pytest.raises(OSError, match="No space"):
                journal.recycle(journal.last_sequence)
        assert journal.file_bytes == before
        journal.recycle(journal.last_sequence)
        assert journal.file_bytes == SEGMENT_BYTES
        assert len(list(files.directory.glob("*.journal"))) == 1
    assert texts(files.directory) == []


def no_space(path: Path, target: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_durable_register_is_in_its_directory_before_a_segment_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    directory = tmp_path / "journal"
    directory.mkdir()
    journal = JournalWriter(directory, SEGMENT_BYTES, read_journal(directory), durable=True)
    append(journal, "one")
    journal.close()
    segment = next(path for path in flushed if path.endswith("0001.journal"))
    assert flushed.index(str(tmp_path)) < flushed.index(segment)
