"""Records of Kafka as rows, and the tables that they name."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from brokerhouse.feeds.decoding.formats import decoder
from brokerhouse.feeds.decoding.registry import RegistryUnavailable, SchemaRegistry
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.paths import path_from_text
from brokerhouse.feeds.routing import Route, RouteBy
from brokerhouse.spark_jobs.iceberg.rows import Row
from brokerhouse.spark_jobs.iceberg.scalars import written_fraction, written_whole

_ERROR_CHARACTERS = 500
_DECODER = msgspec.json.Decoder(float_hook=written_fraction)
_TABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


_path = lru_cache(path_from_text)


class NoRows(ValueError):
    """A value is no rows. One sentence says why."""


class KafkaRecord(Protocol):
    """What is read of a record: confluent_kafka's Message has it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


class ValueReader:
    """Values of one format. `columns`: of the table, for formats whose values have no names."""

    def __init__(self, kind: Format, registry: str) -> None:
        self.needs_columns = kind in (Format.CSV, Format.RAW, Format.MSGPACK)
        self._kind = kind
        self._registry = SchemaRegistry(registry) if registry else None
        self._decode: Callable[[bytes], list[Any]] | None = None
        if kind in (Format.AVRO, Format.PROTOBUF):
            self._decode = decoder(kind.value, (), self._registry)

    def rows(self, value: bytes, columns: Sequence[str]) -> list[Row]:
        """Raises `NoRows`, and `RegistryUnavailable`."""
        try:
            found = self._read(value, columns)
        except RegistryUnavailable:
            raise
        except Exception as error:  # any bytes come here, and the libraries list no errors
            raise NoRows(str(error)[:_ERROR_CHARACTERS] or type(error).__name__) from error
        for row in found:
            if not isinstance(row, dict):
                raise NoRows("neither an object nor an array of objects")
        return found

    def _read(self, value: bytes, columns: Sequence[str]) -> list[Any]:
        if self._kind is Format.JSON:
            parsed = _parsed(value)
            return parsed if isinstance(parsed, list) else [parsed]
        if self._decode is not None:
            return self._decode(value)
        if self._kind is Format.MSGPACK:
            return decoder(self._kind.value, [(name,) for name in columns], None)(value)
        if self._kind is Format.RAW:
            [name] = columns
            return [{name: value}]
        lines = list(csv.reader(value.decode().splitlines(keepends=True), strict=True))
        for line in lines:
            if len(line) != len(columns):
                raise NoRows(f"{len(line)} values for {len(columns)} columns")
        return [
            {
                name: None if text == "\\N" else text
                for name, text in zip(columns, line, strict=True)
            }
            for line in lines
        ]


def _parsed(value: bytes) -> Any:
    """As json.loads, in less time, and with all digits of numbers."""
    try:
        return _DECODER.decode(value)
    except msgspec.DecodeError:
        # It knows NaN, other encodings, surrogates by themselves, and integers of any length.
        return json.loads(value, parse_float=written_fraction, parse_int=written_whole)


def metadata_of(record: KafkaRecord) -> Row:
    """What columns of these names get."""
    kind, milliseconds = record.timestamp()
    return {
        "_topic": record.topic(),
        "_partition": record.partition(),
        "_offset": record.offset(),
        "_timestamp": milliseconds if kind else None,
        "_key": record.key(),
        "_headers": {name: value or b"" for name, value in record.headers() or ()},
    }


def checked_name(value: str) -> str:
    """What a record names, if a table may be called so: it is a part of paths. Raises `NoRows`."""
    if not _TABLE_NAME.fullmatch(value):
        raise NoRows(
            f"no table can be called {value[:100]!a}: write up to 128 letters, digits, _, -"
        )
    return value


def named_table(record: KafkaRecord, row: Row, route: Route) -> str | None:
    """What a record or its row names; None if it names nothing."""
    if route.by is RouteBy.HEADER:
        found = [value for name, value in record.headers() or () if name == route.name]
        return found[-1].decode("utf-8", "replace") if found and found[-1] else None
    if route.by is RouteBy.KEY:
        prefix, separator, _ = (record.key() or b"").partition(route.name.encode())
        return prefix.decode("utf-8", "replace") if separator and prefix else None
    value: Any = row
    for step in _path(route.name):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None
