"""Types of `_merge_blocks.pyx`, and what each function means."""

from collections.abc import Callable, Sequence

from typing_extensions import Buffer

def merge_blocks(blocks: Sequence[bytes]) -> bytes:
    """One block with the rows of all `blocks`, in order.

    If only one of them has rows, that one is returned as it is. Raises UnmergeableBlock if a block
    is not one whole Native block, has a type whose layout is not known, or has other columns than
    the first one (names and types, in order); ValueError if there are no blocks.
    """

def merge_blocks_into(blocks: Sequence[bytes], room: Callable[[int], Buffer]) -> int:
    """`merge_blocks`, into the writable buffer that `room(size)` returns. Returns the size.

    Raises as `merge_blocks`, and ValueError if the buffer is too small.
    """

def block_rows(block: bytes) -> int:
    """How many rows a block has. Raises UnmergeableBlock unless it could be merged with its like.

    Every column has been followed to its end then, and the last one ends where the bytes do.
    """

def block_columns(block: bytes) -> list[tuple[str, str]]:
    """Name and type of each column. Raises as `block_rows`."""
