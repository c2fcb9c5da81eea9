"""The process that decodes: `python -m coordinator.feeds.decoding.worker`.

Each line of its input is a `DecodeRequest` as JSON; it answers each with a line, a `DecodeAnswer`
as JSON. It ends with its input.

The file of values is ClickHouse's RowBinary of (mark FixedString(16), offset Int64, value String),
where a value of Debezium has the key before it (debezium.py).
The file of rows has what the scanner writes for the columns (values/layout.py).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coordinator.feeds.decoding.debezium import Debezium
from coordinator.feeds.decoding.debezium_columns import columns_of_fields
from coordinator.feeds.decoding.formats import Decode, as_json, decoder
from coordinator.feeds.decoding.registry import RegistryUnavailable, SchemaRegistry
from coordinator.feeds.definition import Format
from coordinator.feeds.inference import InferredColumn, field_columns
from coordinator.feeds.values.layout import RowLayout, column_from_list

MARK_BYTES = 16
MEMORY_BYTES = 2 << 30
"""A value of a few bytes can claim to be an array of 2^60 items."""
_OFFSET_BYTES = 8
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """`values` and `rows` are paths; values with another `mark` are left out. `columns`: of the
    table, each as `Column.as_list`. `registry`: its URL, or empty. `collects_unknown`: the answer
    has columns for fields that have none."""

    values: str
    rows: str
    mark: str
    kind: str
    columns: list[list[Any]]
    registry: str
    collects_unknown: bool = False

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class DecodeAnswer:
    """`failed`: empty, or why nothing could be decoded now. `unknown`: name and type of columns for
    the fields that have none."""

    failed: str = ""
    unknown: list[list[str]] = field(default_factory=list)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    worker = Worker()
    for line in sys.stdin.buffer:
        answer = worker.work(DecodeRequest(**json.loads(line)))
        sys.stdout.buffer.write(json.dumps(asdict(answer)).encode() + b"\n")
        sys.stdout.buffer.flush()


class Worker:
    def __init__(self) -> None:
        self._registries: dict[str, SchemaRegistry] = {}
        self._encode = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=as_json
        ).encode

    def work(self, request: DecodeRequest) -> DecodeAnswer:
        """Write the rows."""
        try:
            columns = [column_from_list(one) for one in request.columns]
            layout = RowLayout(
                columns, Format(request.kind), collects_unknown=request.collects_unknown
            )
            paths = [column.path for column in layout.values]
            decode = decoder(request.kind, paths, self._registry(request.registry))
            return self._write(request, layout, decode)
        except (OSError, RegistryUnavailable) as error:
            return DecodeAnswer(str(error))

    def _write(self, request: DecodeRequest, layout: RowLayout, decode: Decode) -> DecodeAnswer:
        scanner = layout.scanner()
        unknown: set[str] = set()
        examples: list[Any] = []
        with Path(request.rows).open("wb") as rows:
            for offset, value in records(_read(Path(request.values)), request.mark.encode()):
                text, error = self.decoded(value, decode)
                if error:
                    rows.write(scanner.bad_record(offset, error))
                    continue
                rows.write(scanner.scan_record(offset, text))
                if found := scanner.take_unknown():
                    unknown.update(name.decode("utf-8", "replace") for name in found)
                    examples += json.loads(text.decode("utf-8", "replace"))
        new = _columns(decode, examples, unknown) if unknown else []
        return DecodeAnswer(unknown=[[one.name, one.type] for one in new])

    def _registry(self, url: str) -> SchemaRegistry | None:
        if url and url not in self._registries:
            self._registries[url] = SchemaRegistry(url)
        return self._registries.get(url)

    def decoded(self, value: bytes, decode: Decode) -> tuple[bytes, str]:
        """A JSON array of rows, and an empty error; or no rows, and why.

        Raises `RegistryUnavailable`.
        """
        try:
            return self._encode(decode(value)).encode("utf-8", "surrogateescape"), ""
        except RegistryUnavailable:
            raise
        except Exception as error:  # any bytes come here, and the libraries list no errors
            return b"[]", str(error)[:_ERROR_CHARACTERS] or type(error).__name__


def _columns(
    decode: Decode, examples: Sequence[Any], unknown: Collection[str]
) -> Sequence[InferredColumn]:
    """By their schema, or else by their values."""
    fields = decode.fields if isinstance(decode, Debezium) else {}
    known = [one for one in columns_of_fields(fields) if one.name in unknown]
    return [*known, *field_columns(examples, set(unknown) - fields.keys())]


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
