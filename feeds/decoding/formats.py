"""Values that the scanner cannot read as rows that JSON can carry."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import msgpack

from brokerhouse.feeds.decoding import avro_values
from brokerhouse.feeds.decoding.calendar import moment_text
from brokerhouse.feeds.decoding.debezium import Debezium
from brokerhouse.feeds.decoding.protobuf import ProtobufSchema
from brokerhouse.feeds.decoding.registry import Schema, SchemaRegistry

Rows = list[Any]
Decode = Callable[[bytes], Rows]

_HEADER_BYTES = 5
_EXPONENT_MAX = 1000
avro_values.register()


class NotDecoded(ValueError):
    """A value is no rows. The sentence says why."""


def message_pack(value: bytes, paths: Sequence[Sequence[str]]) -> Rows:
    """One map, an array of maps, or an array with a value for each of the columns.

    The last is what ClickHouse's format MsgPack has. `paths`: of the columns, in their order.
    Raises `NotDecoded`, and what msgpack raises for bytes that are not MessagePack.
    """
    decoded = msgpack.unpackb(
        value,
        timestamp=0,  # with its nanoseconds, and of any year
        strict_map_key=False,
        unicode_errors="surrogateescape",
        ext_hook=_no_extension,
    )
    if isinstance(decoded, dict):
        return [decoded]
    if not isinstance(decoded, list):
        raise NotDecoded("neither a map nor an array")
    if all(isinstance(one, dict) for one in decoded):
        return decoded
    if len(decoded) != len(paths):
        raise NotDecoded(f"an array of {len(decoded)} values for {len(paths)} columns")
    row: dict[str, Any] = {}
    for path, one in zip(paths, decoded, strict=True):
        place = row
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = one
    return [row]


def _no_extension(code: int, _data: bytes) -> Any:
    raise NotDecoded(f"an extension of type {code}")


class _Registered(ABC):
    """The wire format of schema registries: a zero, the schema's id in 4 bytes, the data.

    https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
    """

    kind: str

    def __init__(self, registry: SchemaRegistry | None) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    def __call__(self, value: bytes) -> Rows:
        """Raises `NotDecoded`, `RegistryUnavailable`, and what the format's library raises for
        bytes that do not belong to the schema."""
        if len(value) < _HEADER_BYTES or value[0] != 0:
            raise NotDecoded("it does not begin with a zero and the id of a schema")
        return self._rows(self._schema(int.from_bytes(value[1:_HEADER_BYTES], "big")), value)

    @abstractmethod
    def _rows(self, schema: Any, value: bytes) -> Rows:
        """`schema`: what `_parsed` returned. `value`: the header as well."""

    @abstractmethod
    def _parsed(self, found: Schema) -> Any:
        """Raises anything for a schema that is not understood."""

    def _schema(self, schema_id: int) -> Any:
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._read(schema_id)
        schema = self._schemas[schema_id]
        if isinstance(schema, NotDecoded):
            raise schema
        return schema

    def _read(self, schema_id: int) -> Any:
        """A parsed schema, or why there is none: the registry is asked once."""
        if self._registry is None:
            return NotDecoded("the broker has no schema registry: set schema_registry")
        found = self._registry.schema(schema_id)
        if found is None:
            return NotDecoded(f"the schema registry has no schema {schema_id}")
        if found.kind != self.kind:
            return NotDecoded(f"schema {schema_id} is of type {found.kind}, not {self.kind}")
        try:
            return self._parsed(found)
        except Exception as error:  # the libraries do not list what they raise
            return NotDecoded(f"schema {schema_id} is not understood: {error}")


class Avro(_Registered):
    """A record, or an array of records."""

    kind = "AVRO"

    def _rows(self, schema: Any, value: bytes) -> Rows:
        stream = io.BytesIO(value)
        stream.seek(_HEADER_BYTES)
        decoded = fastavro.schemaless_reader(
            stream, schema, None, handle_unicode_errors="surrogateescape"
        )
        if stream.tell() != len(value):
            raise NotDecoded(f"{len(value) - stream.tell()} bytes more than its schema has")
        rows = decoded if isinstance(decoded, list) else [decoded]
        if not all(isinstance(row, dict) for row in rows):
            raise NotDecoded("its schema is neither a record nor an array of records")
        return rows

    def _parsed(self, found: Schema) -> Any:
        named: dict[str, Any] = {}
        for text in found.references.values():
            fastavro.parse_schema(json.loads(text), named)
        return fastavro.parse_schema(json.loads(found.text), named)


class Protobuf(_Registered):
    """One message."""

    kind = "PROTOBUF"

    def _rows(self, schema: Any, value: bytes) -> Rows:
        return [schema.row(value[_HEADER_BYTES:])]

    def _parsed(self, found: Schema) -> Any:
        return ProtobufSchema(found.text, found.references)


def as_json(value: object) -> object:
    """What JSON has no word for. Text that is not UTF-8 keeps its bytes as surrogates."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, msgpack.Timestamp):
        return _timestamp_text(value)
    if isinstance(value, Decimal):
        return decimal_text(value)
    raise NotDecoded(f"a value of type {type(value).__name__}")


def _timestamp_text(value: msgpack.Timestamp) -> str:
    """With 3, 6 or 9 digits, as many as it has."""
    nanos = value.seconds * 10**9 + value.nanoseconds
    digits = next(one for one in (3, 6, 9) if nanos % 10 ** (9 - one) == 0)
    return moment_text(nanos // 10 ** (9 - digits), digits, "Z")


def decimal_text(value: Decimal) -> str:
    """Without an exponent, unless it would be a text of zeros."""
    exponent = value.as_tuple().exponent
    is_plain = isinstance(exponent, int) and abs(exponent) < _EXPONENT_MAX
    return f"{value:f}" if is_plain else str(value)


def decoder(kind: str, paths: Sequence[Sequence[str]], registry: SchemaRegistry | None) -> Decode:
    """How a value of the format `kind` becomes rows."""
    known: Mapping[str, Decode] = {
        "msgpack": lambda value: message_pack(value, paths),
        "avro": Avro(registry),
        "protobuf": Protobuf(registry),
        "debezium": Debezium(paths),
    }
    return known[kind]
