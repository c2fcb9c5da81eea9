"""The process that decodes: `python -m coordinator.feeds.decoding.worker`.

Each line of its input is a `DecodeRequest` as JSON; it answers each with a line, whose `failed` is
empty or says why nothing could be decoded now. It ends with its input.

The file of values is ClickHouse's RowBinary of (mark FixedString(16), offset Int64, value String).
The file of lines is JSONCompactEachRow of (mark, offset, rows, error): `error` is empty, or it says
why a value is no rows.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.feeds.decoding.formats import Decode, as_json, decoder
from coordinator.feeds.decoding.registry import RegistryUnavailable, SchemaRegistry

MARK_BYTES = 16
MEMORY_BYTES = 2 << 30
"""A value of a few bytes can claim to be an array of 2^60 items."""
_OFFSET_BYTES = 8
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """`values` and `lines` are paths; values with another `mark` are left out. `paths`: of the
    columns, in their order. `registry`: its URL, or empty."""

    values: str
    lines: str
    mark: str
    kind: str
    paths: list[list[str]]
    registry: str

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    worker = Worker()
    for line in sys.stdin.buffer:
        failed = worker.work(DecodeRequest(**json.loads(line)))
        sys.stdout.buffer.write(json.dumps({"failed": failed}).encode() + b"\n")
        sys.stdout.buffer.flush()


class Worker:
    def __init__(self) -> None:
        self._registries: dict[str, SchemaRegistry] = {}
        self._encode = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=as_json
        ).encode

    def work(self, request: DecodeRequest) -> str:
        """Write the lines. What kept it from doing so, or nothing."""
        try:
            decode = decoder(request.kind, request.paths, self._registry(request.registry))
            values = _read(Path(request.values))
            with Path(request.lines).open("wb") as lines:
                for offset, value in records(values, request.mark.encode()):
                    lines.write(self._line(request.mark, offset, value, decode))
        except (OSError, RegistryUnavailable) as error:
            return str(error)
        return ""

    def _registry(self, url: str) -> SchemaRegistry | None:
        if url and url not in self._registries:
            self._registries[url] = SchemaRegistry(url)
        return self._registries.get(url)

    def _line(self, mark: str, offset: int, value: bytes, decode: Decode) -> bytes:
        rows, error = self.decoded(value, decode)
        # An error may have text of the record in it, with any characters.
        reason = self._encode(error).encode("utf-8", "replace")
        return b'["%b",%d,%b,%b]\n' % (mark.encode(), offset, rows, reason)

    def decoded(self, value: bytes, decode: Decode) -> tuple[bytes, str]:
        """A JSON array of rows, and an empty error; or no rows, and why.

        Raises `RegistryUnavailable`.
        """
        try:
            return self._rows(decode(value)).encode("utf-8", "surrogateescape"), ""
        except RegistryUnavailable:
            raise
        except Exception as error:  # any bytes come here, and the libraries list no errors
            return b"[]", str(error)[:_ERROR_CHARACTERS] or type(error).__name__

    def _rows(self, rows: list[Any]) -> str:
        text = self._encode(rows)
        if "NaN" in text or "Infinity" in text:
            return self._encode(_finite(rows))
        return text


def _finite(value: Any) -> Any:
    """The same with text in place of the floating-point numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value


def _read(path: Path) -> bytes:
    """ClickHouse makes no file for no rows."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def records(data: bytes, mark: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets and values of the rows with this mark."""
    place = 0
    while place < len(data):
        row_mark = data[place : place + MARK_BYTES]
        place += MARK_BYTES
        offset = int.from_bytes(data[place : place + _OFFSET_BYTES], "little", signed=True)
        place += _OFFSET_BYTES
        length = shift = 0
        while True:
            byte = data[place]
            place += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if row_mark == mark:
            yield offset, data[place : place + length]
        place += length


if __name__ == "__main__":
    main()
