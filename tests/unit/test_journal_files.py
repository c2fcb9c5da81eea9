"""The files of the journal: what is read back, from whole, cut off and damaged files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokerhouse.storage import journal_spares
from brokerhouse.storage.journal_files import (
    ENTRY_BYTES,
    HEAD_BYTES,
    DamagedJournal,
    JournalContents,
    JournalError,
    JournalWriter,
)
from brokerhouse.storage.journal_reading import read_journal, settle_names
from brokerhouse.storage.journal_register import register_path

SEGMENT_BYTES = 4096


@contextmanager
def writer(directory: Path, contents: JournalContents | None = None) -> Iterator[JournalWriter]:
    found = read_journal(directory) if contents is None else contents
    settle_names(directory, found)
    opened = JournalWriter(directory, SEGMENT_BYTES, found, durable=False)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def killed_writer(directory: Path) -> Iterator[JournalWriter]:
    """The files are as a `kill -9` leaves them: nothing was noted at the end."""
    with writer(directory) as opened:
        yield opened
        register = register_path(directory).read_bytes()
    register_path(directory).write_bytes(register)


def append(journal: JournalWriter, *texts: str, stream: int = 0) -> list[int]:
    return [
        journal.append_block(stream, "messages", "a, b", f"token of {text}", text.encode())
        for text in texts
    ]


def texts(directory: Path, *, skip_damage: bool = False) -> list[str]:
    return [one.data.decode() for one in read_journal(directory, skip_damage=skip_damage).blocks]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def test_an_empty_directory_holds_nothing(tmp_path: Path) -> None:
    found = read_journal(tmp_path)
    assert found.blocks == []
    assert found.last_sequence == 0


def test_appended_blocks_are_read_back_in_order(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, "one", "two")
        append(journal, "three", stream=1)
    found = read_journal(tmp_path)
    assert [(one.sequence, one.stream, one.data) for one in found.blocks] == [
        (2, 0, b"one"),  # entry 1: the known tokens
        (3, 0, b"two"),
        (4, 1, b"three"),
    ]
    assert {(one.table, one.columns, one.token) for one in found.blocks[:1]} == {
        ("messages", "a, b", "token of one")
    }


def test_blocks_continue_in_the_next_segment_even_after_a_restart(tmp_path: Path) -> None:
    long = [f"{n} " + "x" * 1500 for n in range(8)]
    with writer(tmp_path) as journal:
        append(journal, *long[:5])
    with writer(tmp_path) as journal:
        append(journal, *long[5:])
    assert texts(tmp_path) == long
    assert len(segments(tmp_path)) >= 4


def test_a_block_may_be_larger_than_a_segment(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, "before", "x" * 50_000, "after")
    assert texts(tmp_path) == ["before", "x" * 50_000, "after"]


def test_blocks_of_an_ended_round_are_not_needed(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        first, second, _ = append(journal, "one", "two", "three")
        journal.begin_round(0, first, second)
        append(journal, "other", stream=1)
        journal.end_round(0)
    assert texts(tmp_path) == ["three", "other"]


def test_a_round_that_has_begun_is_recorded_in_the_next_segment_too(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        first, second = append(journal, "one", "two")
        journal.begin_round(0, first, second)
    with writer(tmp_path):
        pass
    found = read_journal(tmp_path)
    assert (found.streams[0].round_from, found.streams[0].round_to) == (first, second)
    assert [one.data for one in found.blocks] == [b"one", b"two"]


def test_segments_are_reused_and_their_old_entries_are_not_read(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        for n in range(200):
            data = f"{n} " + "x" * 700
            last = journal.append_block(0, "messages", "a, b", f"token-{n}", data.encode())
            journal.begin_round(0, last, last)
            journal.end_round(0)
            journal.recycle(last + 1)
            assert journal.file_bytes <= 4 * SEGMENT_BYTES
        append(journal, "the last")
    assert texts(tmp_path) == ["the last"]
    assert len(segments(tmp_path)) <= 3


def fill(journal: JournalWriter, blocks: int) -> int:
    """Two of them fill a segment. Returns the number of the last entry."""
    for _ in range(blocks):
        number = journal.last_sequence + 1
        journal.append_block(0, "messages", "a", f"1-1-{number}", b"x" * 1500)
    return journal.last_sequence


def test_emptied_files_are_reused_for_the_next_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_spares, "_MAX", 3)
    with writer(tmp_path) as journal:
        journal.recycle(fill(journal, 20) + 1)
        spare = {path.stat().st_ino for path in tmp_path.glob("spare*")}
        assert len(spare) == 3
        fill(journal, 2)
    with writer(tmp_path) as journal:  # a start finds those that are left
        fill(journal, 4)
    assert spare <= {path.stat().st_ino for path in segments(tmp_path)}


def fill_with_large_blocks(journal: JournalWriter, blocks: int) -> int:
    """Each needs more than two segments and less than three."""
    for n in range(blocks):
        journal.append_block(0, "messages", "a", "token", b"x" * (2 * SEGMENT_BYTES + 10 * n))
    return journal.last_sequence


def spares(directory: Path) -> dict[int, int]:
    """Inode and size of each."""
    return {path.stat().st_ino: path.stat().st_size for path in directory.glob("spare*")}


def test_files_of_large_blocks_are_reused_for_large_blocks(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        journal.recycle(fill_with_large_blocks(journal, 4) + 1)
        kept = spares(tmp_path)
        assert list(kept.values()) == [3 * SEGMENT_BYTES] * 3
        fill_with_large_blocks(journal, 2)
        assert len(spares(tmp_path)) == 1
    with writer(tmp_path) as journal:  # a start finds those that are left
        fill_with_large_blocks(journal, 1)
    assert kept.keys() <= {path.stat().st_ino for path in segments(tmp_path)}


def test_a_segment_takes_the_smallest_file_that_is_large_enough(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        fill(journal, 4)
        fill_with_large_blocks(journal, 1)
        journal.recycle(fill(journal, 4) + 1)
        before = spares(tmp_path)
        assert set(before.values()) == {SEGMENT_BYTES, 3 * SEGMENT_BYTES}
        fill(journal, 2)
        (taken,) = before.keys() - spares(tmp_path).keys()
        assert before[taken] == SEGMENT_BYTES


def test_a_file_that_is_too_small_is_not_taken(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        journal.recycle(fill(journal, 8) + 1)
        assert set(spares(tmp_path).values()) == {SEGMENT_BYTES}
        fill_with_large_blocks(journal, 1)
        assert segments(tmp_path)[-1].stat().st_size == 3 * SEGMENT_BYTES


def test_the_bytes_of_emptied_files_are_limited(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        for _ in range(3):
            journal.recycle(fill_with_large_blocks(journal, 10) + 1)
            journal.recycle(fill(journal, 40) + 1)
            sizes = spares(tmp_path).values()
            assert 9 * SEGMENT_BYTES < sum(sizes) <= 12 * SEGMENT_BYTES


def test_a_nearly_full_disk_keeps_one_emptied_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_spares, "_SHARE", 1 << 60)
    with writer(tmp_path) as journal:
        journal.recycle(fill(journal, 20) + 1)
    assert len(list(tmp_path.glob("spare*"))) == 1


def test_a_segment_with_a_needed_block_stays(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, "needed", stream=1)
        for n in range(20):
            (last,) = append(journal, f"{n} " + "x" * 700)
            journal.begin_round(0, last, last)
            journal.end_round(0)
            journal.recycle(1)
    assert texts(tmp_path) == ["needed"]


WRITTEN = [f"block {n}" for n in range(6)]


@pytest.fixture
def journal_bytes(tmp_path: Path) -> bytes:
    """A small journal of one segment, with a round that has ended and one that has begun."""
    with killed_writer(tmp_path) as journal:
        first, second, third = append(journal, *WRITTEN[:3])
        journal.begin_round(0, first, second)
        journal.end_round(0)
        append(journal, *WRITTEN[3:])
        journal.begin_round(0, third, third)
        append(journal, "the last")
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    return data[: len(data.rstrip(b"\0")) + 8]


EXPECTED = [*WRITTEN[2:], "the last"]


def test_a_tail_that_was_cut_off_anywhere_is_left_out(tmp_path: Path, journal_bytes: bytes) -> None:
    (path,) = segments(tmp_path)
    seen = set()
    for end in range(end_of_tokens(journal_bytes), len(journal_bytes)):
        path.write_bytes(journal_bytes[:end].ljust(SEGMENT_BYTES, b"\0"))
        found = texts(tmp_path)
        seen.add(tuple(found))
        assert is_beginning(found)
    assert {(), (*EXPECTED,), (*EXPECTED[:-1],)} <= seen


def end_of_tokens(data: bytes) -> int:
    """Where the first entry of a segment ends: it is written before the segment is in use."""
    length: int = struct.unpack_from("<I", data, HEAD_BYTES)[0]
    end = HEAD_BYTES + ENTRY_BYTES + length
    return end + -end % 8


def test_a_file_that_is_cut_after_its_last_entry_has_lost_nothing(
    tmp_path: Path, journal_bytes: bytes
) -> None:
    (path,) = segments(tmp_path)
    end = len(journal_bytes.rstrip(b"\0"))
    for size in range(end + -end % 8 + 4, len(journal_bytes) + 100):
        path.write_bytes(journal_bytes.ljust(SEGMENT_BYTES, b"\0")[:size])
        assert texts(tmp_path) == EXPECTED


def test_a_file_that_is_cut_where_an_entry_was_is_damaged(
    tmp_path: Path, journal_bytes: bytes
) -> None:
    """Unlike an entry that was cut off by a crash: then the file is as long as before."""
    (path,) = segments(tmp_path)
    for size in range(0, len(journal_bytes.rstrip(b"\0")), 5):
        path.write_bytes(journal_bytes[:size])
        with pytest.raises(DamagedJournal):
            texts(tmp_path)
        assert is_beginning(texts(tmp_path, skip_damage=True))


def is_beginning(found: list[str]) -> bool:
    """Until the entry is read that says so, blocks 0 and 1 are not known to be in the engine."""
    return found == WRITTEN[: len(found)] or found == EXPECTED[: len(found)]


def test_damage_to_any_byte_is_found(tmp_path: Path, journal_bytes: bytes) -> None:
    """Only of the last entry it cannot be told from a write that was cut off."""
    (path,) = segments(tmp_path)
    outcomes: dict[str, int] = {"damaged": 0, "cut off": 0, "the same": 0}
    last_entry = len(journal_bytes) - 100
    for at in range(len(journal_bytes)):
        data = bytearray(journal_bytes.ljust(SEGMENT_BYTES, b"\0"))
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        try:
            found = texts(tmp_path)
        except JournalError:
            outcomes["damaged"] += 1
            continue
        outcomes["the same" if found == EXPECTED else "cut off"] += 1
        if found != EXPECTED:
            assert found == EXPECTED[:-1]
            assert at > last_entry
    # Padding after the head and after entries changes nothing.
    assert outcomes["the same"] < HEAD_BYTES
    assert outcomes["damaged"] > last_entry - HEAD_BYTES


def test_damaged_entries_can_be_skipped(tmp_path: Path, journal_bytes: bytes) -> None:
    (path,) = segments(tmp_path)
    path.write_bytes(journal_bytes.replace(b"block 4", b"block X").ljust(SEGMENT_BYTES, b"\0"))
    with pytest.raises(DamagedJournal) as error:
        texts(tmp_path)
    message = str(error.value)
    assert str(path) in message
    assert "2 blocks" in message
    assert "--journal-skip-damage" in message
    assert texts(tmp_path, skip_damage=True) == [one for one in EXPECTED if one != "block 4"]


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, *(f"{n} " + "x" * 1500 for n in range(8)))
    segments(tmp_path)[1].unlink()
    with pytest.raises(DamagedJournal, match="missing, and the entries from 3 to 4 were in it"):
        read_journal(tmp_path)
    assert [one[0] for one in texts(tmp_path, skip_damage=True)] == list("0234567")


def test_a_damaged_head_of_a_middle_segment_is_found(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, *(f"{n} " + "x" * 1500 for n in range(6)))
    middle = segments(tmp_path)[1]
    middle.write_bytes(b"\0" * 20 + middle.read_bytes()[20:])
    with pytest.raises(DamagedJournal, match="head is damaged"):
        read_journal(tmp_path)


def test_with_a_damaged_head_every_whole_entry_can_be_kept(
    tmp_path: Path, journal_bytes: bytes
) -> None:
    """Which rounds have ended is known from their entries; the engine's rows are compared."""
    (path,) = segments(tmp_path)
    path.write_bytes((b"X" + journal_bytes[1:]).ljust(SEGMENT_BYTES, b"\0"))
    with pytest.raises(DamagedJournal, match="head is damaged"):
        texts(tmp_path)
    assert texts(tmp_path, skip_damage=True) == EXPECTED


@pytest.mark.parametrize("size", [0, SEGMENT_BYTES])
def test_a_segment_that_was_being_put_into_use_holds_nothing(tmp_path: Path, size: int) -> None:
    with writer(tmp_path) as journal:
        append(journal, "one")
    (tmp_path / "000000000002.journal").write_bytes(bytes(size))
    assert texts(tmp_path) == ["one"]
    with writer(tmp_path) as journal:
        append(journal, "two")
    assert texts(tmp_path) == ["one", "two"]


def test_a_reused_file_whose_head_is_still_the_old_one_holds_nothing(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, "one")
    (path,) = segments(tmp_path)
    (tmp_path / "000000000002.journal").write_bytes(path.read_bytes())
    assert texts(tmp_path) == ["one"]


def test_entries_of_an_earlier_journal_in_a_reused_file_are_not_read(tmp_path: Path) -> None:
    """When all segments are gone, the next start begins a journal with the same numbers."""
    with writer(tmp_path) as journal:
        append(journal, "one", "two", "three")
    (path,) = segments(tmp_path)
    path.rename(tmp_path / "spare")
    register_path(tmp_path).unlink()
    with writer(tmp_path) as journal:
        append(journal, "ONE")
    assert texts(tmp_path) == ["ONE"]


def test_an_unknown_format_is_refused_with_a_message(tmp_path: Path, journal_bytes: bytes) -> None:
    (path,) = segments(tmp_path)
    path.write_bytes(journal_bytes[:8] + struct.pack("<I", 7) + journal_bytes[12:])
    with pytest.raises(JournalError, match="version 7 of the journal's format"):
        read_journal(tmp_path)
    with pytest.raises(JournalError, match="version 7"):
        read_journal(tmp_path, skip_damage=True)


def test_a_journal_in_the_format_without_packed_blocks_is_read_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("brokerhouse.storage.journal_files.VERSION", 2)
        with writer(tmp_path) as journal:
            append(journal, "old")
    register_path(tmp_path).unlink()  # it had none
    with writer(tmp_path) as journal:
        append(journal, "new")
    versions = [struct.unpack_from("<I", one.read_bytes(), 8)[0] for one in segments(tmp_path)]
    assert versions == [2, 4]
    assert texts(tmp_path) == ["old", "new"]


def test_a_full_disk_at_a_new_segment_leaves_the_journal_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with writer(tmp_path) as journal:
        append(journal, "one")
        with monkeypatch.context() as patch:
            patch.setattr("os.posix_fallocate", full)
            with pytest.raises(OSError, match="No space left"):
                append(journal, "x" * SEGMENT_BYTES)
            append(journal, "two")
        append(journal, "x" * SEGMENT_BYTES)
    assert texts(tmp_path) == ["one", "two", "x" * SEGMENT_BYTES]


# --- tokens


def test_tokens_are_known_when_the_segments_of_their_blocks_were_reused(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        journal.note_direct("messages", "direct-1")
        for n in range(50):
            last = journal.append_block(0, "messages", "a", f"17-3-{n}", b"x" * 700)
            journal.begin_round(0, last, last)
            journal.end_round(0)
            journal.recycle(last + 1)
    assert segments(tmp_path)[0].stem > "000000000002"
    for _ in range(2):
        tokens = read_journal(tmp_path).tokens
        assert all(tokens.journaled.has("messages", f"17-3-{n}") for n in range(50))
        assert tokens.direct.has("messages", "direct-1")
        assert not tokens.journaled.has("messages", "direct-1")
        assert not tokens.direct.has("messages", "17-3-1")
        with writer(tmp_path) as journal:
            append(journal, "another")


def test_a_start_that_appends_nothing_keeps_the_segment_that_knows_the_tokens(
    tmp_path: Path,
) -> None:
    with writer(tmp_path) as journal:
        (last,) = append(journal, "one")
        journal.begin_round(0, last, last)
        journal.end_round(0)
    for _ in range(2):
        with writer(tmp_path) as journal:
            journal.recycle(last + 100)
    assert read_journal(tmp_path).tokens.journaled.has("messages", "token of one")


def test_a_crash_while_a_segment_is_begun_forgets_no_token(tmp_path: Path) -> None:
    with writer(tmp_path) as journal:
        append(journal, "one")
        register = register_path(tmp_path).read_bytes()
        append(journal, "x" * SEGMENT_BYTES)
    register_path(tmp_path).write_bytes(register)
    path = segments(tmp_path)[1]
    path.write_bytes(path.read_bytes()[:HEAD_BYTES].ljust(SEGMENT_BYTES, b"\0"))
    with writer(tmp_path) as journal:
        journal.recycle(1000)
        append(journal, "two")
        journal.recycle(1000)
    tokens = read_journal(tmp_path).tokens.journaled
    assert tokens.has("messages", "token of one")
    assert tokens.has("messages", "token of two")
