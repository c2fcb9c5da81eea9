"""The process that decodes: `python -m brokerhouse.feeds.decoding.worker`.

Each line of its input is a `DecodeRequest` as JSON; it answers each with a line, a `DecodeAnswer`
as JSON (requests.py). It ends with its input.

The file of rows has what the scanner writes for the columns (values/layout.py).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brokerhouse.feeds.decoding.debezium import Debezium
from brokerhouse.feeds.decoding.debezium_columns import columns_of_fields
from brokerhouse.feeds.decoding.formats import Decode, as_json, decoder
from brokerhouse.feeds.decoding.registry import RegistryUnavailable, SchemaRegistry
from brokerhouse.feeds.decoding.requests import DecodeAnswer, DecodeRequest, records
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.inference import InferredColumn, field_columns
from brokerhouse.feeds.values.layout import RowLayout, column_from_list

MEMORY_BYTES = 2 << 30
"""A value of a few bytes can claim to be an array of 2^60 items."""
_ERROR_CHARACTERS = 300


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


if __name__ == "__main__":
    main()
