"""Reads varints and bytes, for the other references."""

from __future__ import annotations


def wrap(value: int, bits: int) -> int:
    """`value` modulo 2^bits, as a signed number."""
    half: int = 2 ** (bits - 1)
    return (value + half) % (2 * half) - half


class ByteReader:
    """Reads from the front of some bytes. Raises `error` for what is cut or too long."""

    def __init__(self, data: bytes, error: type[Exception]) -> None:
        self._data = data
        self._position = 0
        self._error = error

    @property
    def position(self) -> int:
        return self._position

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def read(self, size: int) -> bytes:
        if size > self.left:
            raise self._error(f"cut: {size} bytes are claimed where {self.left} are left")
        self._position += size
        return self._data[self._position - size : self._position]

    def varuint(self, bits: int = 64) -> int:
        """A varint of at most `bits` bits. Clients disagree about longer ones."""
        value = 0
        for shift in range(0, bits, 7):
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            if value >= 2**bits:
                break
            if byte < 0x80:
                return value
        raise self._error(f"a number is longer than {bits} bits")

    def zigzag(self, bits: int) -> int:
        """A zigzag varint of at most `bits` bits."""
        value = self.varuint(bits)
        return (value >> 1) ^ -(value & 1)
