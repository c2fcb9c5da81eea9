"""storage/block_file.py: what the engine finds in the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from mmap import mmap
from pathlib import Path

import pytest

from brokerhouse.storage import block_file
from brokerhouse.storage._merge_blocks import merge_blocks, merge_blocks_into
from brokerhouse.storage.block_file import BlockFile
from brokerhouse.storage.native_types import UnmergeableBlock
from tests.support.record_batches import Record, batch_of
from tests.support.record_codecs import COMPILED, append

MIB = 1 << 20


@pytest.fixture
def file() -> Iterator[BlockFile]:
    file = BlockFile()
    yield file
    file.close()


def log_block(value: bytes) -> bytes:
    builder = COMPILED.BlockBuilder(0)
    append(COMPILED, builder, batch_of(Record(value=value)), 0, "topic")
    block: bytes = builder.finish()
    return block


@pytest.mark.parametrize(
    "sizes",
    [[10], [10, 20], [3 * MIB], [MIB, 2 * MIB, 3 * MIB], [MIB] * 9],
    ids=str,
)
def test_a_block_file_holds_one_block_whatever_it_held_before(
    file: BlockFile, sizes: Sequence[int]
) -> None:
    for held in ([1], [5, 5], [4 * MIB, 4 * MIB], [9 * MIB]):
        file.fill([log_block(b"?" * size) for size in held])
        blocks = [log_block(bytes([number]) * size) for number, size in enumerate(sizes)]
        file.fill(blocks)
        assert Path(file.path).read_bytes() == merge_blocks(blocks)


def test_a_block_file_uses_no_more_memory_than_its_block(file: BlockFile) -> None:
    file.fill([log_block(b"x" * MIB)] * 20)
    file.fill([log_block(b"x")] * 2)
    found = os.stat(file.path)
    assert found.st_blocks * 512 <= 2 * os.sysconf("SC_PAGE_SIZE")


def test_every_page_of_a_block_file_is_allocated_before_it_is_written(
    file: BlockFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a page for which there is no memory would end the process."""
    looked: list[int] = []

    def merge_and_look(blocks: Sequence[bytes], room: Callable[[int], mmap]) -> int:
        def room_with_memory(size: int) -> mmap:
            pages = room(size)
            assert os.stat(file.path).st_blocks * 512 >= size
            looked.append(size)
            return pages

        return merge_blocks_into(blocks, room_with_memory)

    monkeypatch.setattr(block_file, "merge_blocks_into", merge_and_look)
    for held in (MIB, 3 * MIB, 2 * MIB, 9, 5 * MIB, 5 * MIB):
        file.fill([log_block(b"x" * held)])
        for size in (MIB, 4 * MIB, 2 * MIB, 10):
            file.fill([log_block(b"y" * size)] * 2)
    with pytest.raises(UnmergeableBlock):
        file.fill([log_block(b"z" * MIB), b"\xff" * 20])
    file.fill([log_block(b"z" * 7 * MIB)] * 2)
    assert len(looked) >= 25


def test_blocks_that_cannot_be_merged_are_refused(file: BlockFile) -> None:
    good = log_block(b"x")
    with pytest.raises(UnmergeableBlock):
        file.fill([good, good[:-1]])
    file.fill([good, good])
    assert Path(file.path).read_bytes() == merge_blocks([good, good])
