"""storage/block_file.py: what the engine finds in the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from storage._merge_blocks import merge_blocks
from storage.block_file import BlockFile
from storage.native_types import UnmergeableBlock
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
def test_it_holds_one_block_whatever_it_held_before(file: BlockFile, sizes: Sequence[int]) -> None:
    for held in ([1], [5, 5], [4 * MIB, 4 * MIB], [9 * MIB]):
        file.fill([log_block(b"before" * size) for size in held])
        blocks = [log_block(bytes([number]) * size) for number, size in enumerate(sizes)]
        file.fill(blocks)
        assert Path(file.path).read_bytes() == merge_blocks(blocks)


def test_it_takes_no_more_memory_than_its_block(file: BlockFile) -> None:
    file.fill([log_block(b"x" * MIB)] * 20)
    file.fill([log_block(b"x")] * 2)
    found = os.stat(file.path)
    assert found.st_blocks * 512 <= 2 * os.sysconf("SC_PAGE_SIZE")


def test_blocks_that_cannot_be_merged_are_refused(file: BlockFile) -> None:
    good = log_block(b"x")
    with pytest.raises(UnmergeableBlock):
        file.fill([good, good[:-1]])
    file.fill([good, good])
    assert Path(file.path).read_bytes() == merge_blocks([good, good])
