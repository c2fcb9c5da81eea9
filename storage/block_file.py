"""A file in memory from which the engine reads the rows of an insert.

It is used again for the next insert: to touch a fresh page costs seven times as much as to copy
into one that the process has already (measured: 0.48 s and 0.06 s per GB).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from typing_extensions import Buffer

from brokerhouse.storage._merge_blocks import merge_blocks_into

Join: TypeAlias = Callable[[Sequence[bytes], Callable[[int], Buffer]], int]
"""Writes blocks as one Native block: see `merge_blocks_into` (storage/_merge_blocks.pyi)."""

_MAPPED_MIN_BYTES = 1 << 20


class BlockFile:
    """One block at a time. Its memory is that of the last block. Methods raise `OSError`."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("block")
        self._pages: mmap.mmap | None = None
        self._held_bytes = 0  # so much of the file has memory

    @property
    def path(self) -> str:
        """For this process."""
        return f"/proc/self/fd/{self._fd}"

    def fill(self, blocks: Sequence[bytes], join: Join | None = None) -> None:
        """Hold one Native block with the rows of all of these.

        `join`: if they are not Native blocks themselves. Raises as it or `merge_blocks`.
        """
        if join is not None or len(blocks) > 1:
            self._cut((join or merge_blocks_into)(blocks, self._room))
            return
        (block,) = blocks
        self._cut(len(block))
        written = 0
        while written < len(block):
            written += os.pwrite(self._fd, memoryview(block)[written:], written)
        self._held_bytes = written

    def _cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._held_bytes = min(self._held_bytes, size)

    def _room(self, size: int) -> mmap.mmap:
        if self._pages is None or len(self._pages) < size:
            if self._pages is not None:
                self._pages.close()
            length = max(1 << (size - 1).bit_length(), _MAPPED_MIN_BYTES)
            os.ftruncate(self._fd, length)
            self._pages = mmap.mmap(self._fd, length)
        # A write through the mapping ends the process if there is no memory for its page.
        # To ask again for what the file has costs as much as 3% of an insert.
        if size > self._held_bytes:
            os.posix_fallocate(self._fd, self._held_bytes, size - self._held_bytes)
            self._held_bytes = size
        return self._pages

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        os.close(self._fd)
