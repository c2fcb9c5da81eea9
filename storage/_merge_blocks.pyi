"""Types of `_merge_blocks.pyx`. `merge_blocks.py` says what each function means."""

from collections.abc import Callable, Sequence

from typing_extensions import Buffer

def merge_blocks(blocks: Sequence[bytes]) -> bytes: ...
def merge_blocks_into(blocks: Sequence[bytes], room: Callable[[int], Buffer]) -> int:
    """`merge_blocks`, into the writable buffer that `room(size)` returns. Returns the size.

    Raises as `merge_blocks`, and ValueError if the buffer is too small.
    """

def block_rows(block: bytes) -> int: ...
