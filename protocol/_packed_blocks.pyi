"""Types of `_packed_blocks.pyx`, and what each function means."""

from collections.abc import Callable, Sequence

from typing_extensions import Buffer

def join_packed(blocks: Sequence[bytes]) -> bytes:
    """One Native block with the rows of all packed blocks, in order.

    Raises `BadPackedBlock`, and ValueError if there are no blocks.
    """

def join_packed_into(blocks: Sequence[bytes], room: Callable[[int], Buffer]) -> int:
    """`join_packed`, into the writable buffer that `room(size)` returns. Returns the size.

    Raises as `join_packed`, and ValueError if the buffer is too small.
    """
