"""Changes of rows, as Debezium's connectors write them with Kafka Connect's JsonConverter.

A value is {"before": ..., "after": ..., "source": ..., "op": ...}, or only the row if the connector
unwraps it; either is in {"schema": ..., "payload": ...} unless schemas are switched off. The key
has the columns of the primary key. A deletion takes its row from there, because `before` has
made-up values in the other columns.

With a schema, values become what they mean: docs/debezium.md has a table. Without one they stay as
they are. What no column can hold (infinity, years before Christ) becomes text, which does not fit.

    length of the key: Int32, little-endian, -1 if it is null | key | value     what is decoded
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brokerhouse.feeds.decoding.calendar import DAY_S, clock, day_of, fraction, time_text

PACKED = (
    "concat(reinterpretAsFixedString(toInt32(ifNull(length(key), -1))), ifNull(key, ''),"
    " assumeNotNull(value))"
)
"""What is decoded, as SQL on rows of the log."""
_LENGTH = struct.Struct("<i")


class DebeziumError(ValueError):
    """A record is no row. The sentence says why."""


def packed(key: bytes | None, value: bytes) -> bytes:
    """What is decoded."""
    return _LENGTH.pack(-1 if key is None else len(key)) + (key or b"") + value


class Debezium:
    """Called with what `packed` returns: one row. Raises `DebeziumError`.

    The fields `_op` and `_deleted` are added if there are columns for them.
    """

    def __init__(self, paths: Sequence[Sequence[str]]) -> None:
        """`paths`: of the columns."""
        self._wanted = {path[0] for path in paths}
        self._keys, self._values = MessageReader("key"), MessageReader("value")
        self.fields: dict[str, Mapping[str, Any]] = {}
        """The schemas of all fields that rows had, as far as they had one."""

    def __call__(self, record: bytes) -> list[Any]:
        length = _LENGTH.unpack_from(record)[0]
        begin = _LENGTH.size + max(length, 0)
        key = None if length < 0 else record[_LENGTH.size : begin]
        message = self._values.read(record[begin:])
        if message.fields:
            self.fields |= message.fields
        return [self._row(key, message)]

    def _row(self, key: bytes | None, message: Message) -> dict[str, Any]:
        payload = message.payload
        if payload is None:
            return self._deleted(key)
        if not isinstance(payload, dict):
            raise DebeziumError("neither a change nor a row")
        if payload.keys() >= _ENVELOPE:
            return self._changed(key, message, payload)
        if str(payload.get("__deleted")).lower() == "true":
            return self._deleted(key)
        return self._with_op(message.row(payload), payload.get("__op"), 0)

    def _changed(
        self, key: bytes | None, message: Message, change: Mapping[str, Any]
    ) -> dict[str, Any]:
        op, after = change["op"], change["after"]
        if op == "d":
            return self._deleted(key)
        if op == "t":
            raise DebeziumError(
                "the table was truncated in PostgreSQL: delete its rows below this _offset here"
            )
        if op not in _WITH_ROW:
            raise DebeziumError(f"a change with the op {op!r}")
        if not isinstance(after, dict):
            raise DebeziumError(f"a change with the op {op!r} and without a row in after")
        return self._with_op(message.row(after), op, 0)

    def _deleted(self, key: bytes | None) -> dict[str, Any]:
        if key is None:
            raise DebeziumError("a row was deleted, and the record has no key that says which one")
        message = self._keys.read(key)
        if not isinstance(message.payload, dict):
            raise DebeziumError("a row was deleted, and the key has no fields that say which one")
        return self._with_op(message.row(message.payload), "d", 1)

    def _with_op(self, row: dict[str, Any], op: str | None, deleted: int) -> dict[str, Any]:
        for name in self._wanted & row.keys():
            if _is_unavailable(row[name]):
                raise DebeziumError(
                    f"{name}: PostgreSQL did not send this large value, which has not changed. Run"
                    " ALTER TABLE ... REPLICA IDENTITY FULL there"
                )
        if "_op" in self._wanted and op is not None:
            row["_op"] = op
        if "_deleted" in self._wanted:
            row["_deleted"] = deleted
        return row


_ENVELOPE = frozenset({"before", "after", "source", "op"})
_WITH_ROW = frozenset({"c", "u", "r"})

# --- a key or a value


class _Digits(str):
    """A number with a fraction, as it was written."""

    __slots__ = ()


def _number(text: str) -> float | _Digits:
    """JSON has another text for the number that Python reads, then it stays text."""
    found = float(text)
    return found if repr(found) == text else _Digits(text)


_JSON = json.JSONDecoder(parse_float=_number)
_BEGIN, _SCHEMA_PLACE, _PAYLOAD = '{"schema":{', len('{"schema":'), ',"payload":'


@dataclass(frozen=True, slots=True)
class Message:
    """`fields`: schemas of the row's fields by name, empty without a schema."""

    payload: Any
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    converted: Sequence[_Converted] = ()

    def row(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a row, as what they mean."""
        row = dict(found)
        for name, convert, schema in self.converted:
            value = row.get(name)
            if value is not None and not _is_unavailable(value):
                row[name] = convert(value, schema)
        return row


class MessageReader:
    """Reads keys or values. Their schema is nearly always that of the record before."""

    def __init__(self, what: str) -> None:
        """`what` is read, for errors."""
        self._what = what
        self._begin = b""
        """What a message with the schema `_known` begins with."""
        self._known = Message(None)

    def read(self, raw: bytes) -> Message:
        """Raises `DebeziumError`."""
        try:
            return self._read(raw)
        except ValueError as error:
            raise DebeziumError(f"the {self._what} is not JSON: {error}") from error

    def _read(self, raw: bytes) -> Message:
        if self._begin and raw.startswith(self._begin) and raw.endswith(b"}"):
            payload = _JSON.decode(raw[len(self._begin) : -1].decode())
            return Message(payload, self._known.fields, self._known.converted)
        text = raw.decode()
        found = _JSON.decode(text)
        if not _has_schema(found):
            return Message(found)
        fields = _row_fields(found["schema"])
        converted = tuple(_conversions(fields))
        message = Message(found["payload"], fields, converted)
        if text.startswith(_BEGIN):
            _, end = _JSON.raw_decode(text, _SCHEMA_PLACE)
            if text.startswith(_PAYLOAD, end):
                self._begin = text[: end + len(_PAYLOAD)].encode()
                self._known = message
        return message


def _has_schema(found: Any) -> bool:
    if not isinstance(found, dict) or found.keys() != {"schema", "payload"}:
        return False
    return found["schema"] is None or isinstance(found["schema"], dict)


def _row_fields(schema: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    """Those of `after`, if it is the schema of a change."""
    if schema is None:
        return {}
    fields = {one["field"]: one for one in schema.get("fields", ())}
    if fields.keys() >= _ENVELOPE:
        return {one["field"]: one for one in fields["after"]["fields"]}
    return fields


# --- values as what they mean

Convert = Callable[[Any, Mapping[str, Any]], Any]
"""Of a value that is not null, and its schema."""


class _Converted(NamedTuple):
    name: str
    convert: Convert
    schema: Mapping[str, Any]


def _conversions(fields: Mapping[str, Mapping[str, Any]]) -> Iterable[_Converted]:
    for name, schema in fields.items():
        convert = _convert(schema)
        if convert is not None:
            yield _Converted(name, convert, schema)


def _convert(schema: Mapping[str, Any]) -> Convert | None:
    """None: values stay as they are."""
    name = schema.get("name", "")
    if name.startswith(_GEOMETRY):
        return None
    return _NAMED.get(name) or _TYPES.get(schema["type"])


_GEOMETRY = "io.debezium.data.geometry."


def _bytes(value: Any, _: Mapping[str, Any]) -> bytes:
    return base64.b64decode(value, validate=True)


def _decimal(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, _Digits) or not isinstance(value, str):
        return value  # the converter writes numbers
    return _digits(value, int(schema["parameters"]["scale"]))


def _variable_decimal(value: Any, _: Mapping[str, Any]) -> str:
    return _digits(value["value"], value["scale"])


def _digits(text: str, scale: int) -> str:
    unscaled = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _bits(value: Any, _: Mapping[str, Any]) -> int:
    return int.from_bytes(base64.b64decode(value, validate=True), "little")


_INFINITE: Mapping[int, str] = {
    2_146_033_979: "infinity",  # a date, from the snapshot, and from the log
    -622_191_234: "infinity",
    -625_821_272: "-infinity",
    -2_147_472_691: "-infinity",
    (1 << 63) - 1: "infinity",
    -(1 << 63): "-infinity",
    9_223_372_036_825_200_000: "infinity",  # a timestamp with milliseconds
    -9_223_372_036_832_400_000: "-infinity",
}
"""What the connector for PostgreSQL writes for infinity. Real ones are beyond what columns have."""


def _date(days: int, _: Mapping[str, Any]) -> str:
    return _INFINITE.get(days) or "".join(_day(days))


def _day(days: int) -> tuple[str, str]:
    """A date as PostgreSQL writes it, and what follows it before Christ."""
    year, month, number = day_of(days)
    shown, era = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown:04}-{month:02}-{number:02}", era


def _timestamp(digits: int) -> Convert:
    """Text without a zone: a column of any zone shows what PostgreSQL shows."""

    def text(value: int, _: Mapping[str, Any]) -> str:
        if value in _INFINITE:
            return _INFINITE[value]
        seconds, rest = divmod(value, 10**digits)
        days, second = divmod(seconds, DAY_S)
        day, era = _day(days)
        return f"{day} {clock(second)}{fraction(rest, digits)}{era}"

    return text


def _time(digits: int) -> Convert:
    """A time of the day; MySQL has negative ones."""

    def text(value: int, _: Mapping[str, Any]) -> str:
        return time_text(value, digits)

    return text


def _without_zone(value: str, _: Mapping[str, Any]) -> str:
    return value.removesuffix("Z")


def _array(values: Any, schema: Mapping[str, Any]) -> Any:
    convert = _convert(schema["items"])
    if convert is None:
        return values
    return [None if one is None else convert(one, schema["items"]) for one in values]


def _map(values: Any, schema: Mapping[str, Any]) -> Any:
    convert = _convert(schema["values"])
    if convert is None or not isinstance(values, dict):
        return values
    return {
        key: None if one is None else convert(one, schema["values"]) for key, one in values.items()
    }


def _struct(value: Any, schema: Mapping[str, Any]) -> Any:
    fields = {one["field"]: one for one in schema["fields"]}
    return Message(None, fields, tuple(_conversions(fields))).row(value)


_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_NAMED: Mapping[str, Convert] = {
    f"{_CONNECT}Decimal": _decimal,
    f"{_CONNECT}Date": _date,
    f"{_CONNECT}Time": _time(3),
    f"{_CONNECT}Timestamp": _timestamp(3),
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "io.debezium.data.Bits": _bits,
    f"{_TIME}Date": _date,
    f"{_TIME}Time": _time(3),
    f"{_TIME}MicroTime": _time(6),
    f"{_TIME}NanoTime": _time(9),
    f"{_TIME}Timestamp": _timestamp(3),
    f"{_TIME}MicroTimestamp": _timestamp(6),
    f"{_TIME}NanoTimestamp": _timestamp(9),
    f"{_TIME}IsoDate": _without_zone,
    f"{_TIME}IsoTime": _without_zone,
    f"{_TIME}IsoTimestamp": _without_zone,
}
_TYPES: Mapping[str, Convert] = {"bytes": _bytes, "array": _array, "map": _map, "struct": _struct}

# --- large values that PostgreSQL does not send

_PLACEHOLDER = "__debezium_unavailable_value"
_UNAVAILABLE = frozenset({_PLACEHOLDER, base64.b64encode(_PLACEHOLDER.encode()).decode()})
_UNAVAILABLE_WHOLES = ([_PLACEHOLDER], [*_PLACEHOLDER.encode()], {_PLACEHOLDER: _PLACEHOLDER})


def _is_unavailable(value: Any) -> bool:
    if isinstance(value, str):
        return value in _UNAVAILABLE
    return value in _UNAVAILABLE_WHOLES if isinstance(value, (list, dict)) else False
