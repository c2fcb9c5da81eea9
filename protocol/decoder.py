"""Decoders of requests: one function per API and version, generated from kafka-python's schemas.

kafka-python generates decoders too, but for a client, which trusts its broker. There, a length that
reaches beyond the frame gives a shorter field, null is accepted where the protocol has none, and a
varint or many tagged fields can cost time that grows with the square of their length. A broker
trusts no client, so these decoders check every length, count and null. Their cost is linear in the
bytes received, and `ELEMENTS_MAX` bounds the number of objects that they make.

The objects are kafka-python's own message classes. A topic id of zero is UUID(int=0), not None.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from kafka.protocol.api_message import ApiMessage

ELEMENTS_MAX = 100_000
"""Array elements in one request, over all of its arrays. Each becomes an object (about 200 bytes
and 1 us, measured), on the thread that serves every client. The largest request that Kafka itself
accepts, CreateTopics with 10,000 assigned partitions, has 20,000."""

STRING_MAX = 0x7FFF
"""Longest text, in bytes. Kafka allows no more, even where the protocol's length field does."""

Decoder = Callable[[bytes, int], tuple[ApiMessage, int]]
"""(frame, position) to (message, position after it). Raises `MalformedMessage`, `struct.error`,
`IndexError`, `UnicodeDecodeError`."""

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}


class MalformedMessage(Exception):
    """The bytes are not a message of this API and version."""


_generated: dict[tuple[type[ApiMessage], int], Decoder] = {}


def decoder(request: type[ApiMessage], version: int) -> Decoder:
    """The function for one version of one request class; generated at its first use (1 ms)."""
    known = _generated.get((request, version))
    if known is None:
        known = _Generator(version, bool(request.flexible_version_q(version))).decoder(request)
        _generated[request, version] = known
    return known


def unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    """(value, position after it). At most 5 bytes, at most 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedMessage("a varint has more than 32 bits")


def skip_tagged_fields(data: bytes, position: int) -> int:
    """The position after a section of tagged fields, all of which are unknown."""
    if data[position] == 0:  # as a rule
        return position + 1
    count, position = unsigned_varint(data, position)
    for _ in range(count):
        _, position = unsigned_varint(data, position)
        size, position = unsigned_varint(data, position)
        position += size
        if position > len(data):
            raise MalformedMessage("a tagged field reaches beyond the frame")
    return position


def _fail(reason: str) -> None:
    raise MalformedMessage(reason)


class _Generator:
    """Writes the source of one decoder.

    In that source, `data` is the frame, `pos` the position in it, `end` its size, and `room` the
    number of elements that are still allowed.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._lines: list[str] = []
        self._names = 0
        self._globals: dict[str, Any] = {
            "unsigned_varint": unsigned_varint,
            "fail": _fail,
            "UUID": uuid.UUID,
            "new": object.__new__,
        }

    def decoder(self, request: type[ApiMessage]) -> Decoder:
        self._emit(0, "def decode(data, pos):")
        self._emit(1, "end = len(data)")
        self._emit(1, f"room = {ELEMENTS_MAX}")
        self._struct(1, "message", request._struct, request[None])
        self._emit(1, "return message, pos")
        source = "\n".join(self._lines)
        exec(compile(source, f"<{request.name} {self._version}>", "exec"), self._globals)
        generated: Decoder = self._globals["decode"]
        return generated

    def _emit(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _unpack(self, layout: str) -> str:
        """The name, in the source, of `unpack_from` for this layout."""
        name = "unpack_" + layout.removeprefix(">").replace("?", "bool")
        self._globals[name] = struct.Struct(layout).unpack_from
        return name

    def _struct(self, depth: int, target: str, struct_field: Any, data_class: Any) -> None:
        name = self._name("class_")
        self._globals[name] = data_class
        self._emit(depth, f"{target} = new({name})")
        self._emit(depth, f"{target}._version = {self._version}")
        self._emit(depth, f"{target}.tags = None")
        self._emit(depth, f"{target}.unknown_tags = None")
        run: list[Any] = []
        for field in struct_field.untagged_fields(self._version):
            if field._type_str in _FIXED:
                run.append(field)
                continue
            self._fixed(depth, target, run)
            run = []
            self._field(depth, f"{target}.{field.name}", field)
        self._fixed(depth, target, run)
        if self._flexible:
            self._tagged(depth, target, struct_field)

    def _fixed(self, depth: int, target: str, run: list[Any]) -> None:
        """Neighbouring fields of fixed size, by one call."""
        if not run:
            return
        layout = ">" + "".join(_FIXED[field._type_str] for field in run)
        targets = ", ".join(f"{target}.{field.name}" for field in run)
        self._emit(depth, f"{targets}, = {self._unpack(layout)}(data, pos)")
        self._emit(depth, f"pos += {struct.calcsize(layout)}")

    def _field(self, depth: int, target: str, field: Any) -> None:
        nullable = field.nullable_for_version_q(self._version)
        if field.is_array():
            self._array(depth, target, field, nullable)
        elif field.is_struct():
            self._nested(depth, target, field, nullable)
        else:
            self._simple(depth, target, field._type_str, field.name, nullable)

    def _simple(self, depth: int, target: str, kind: str, name: str, nullable: bool) -> None:
        if kind in _FIXED:
            layout = ">" + _FIXED[kind]
            self._emit(depth, f"{target}, = {self._unpack(layout)}(data, pos)")
            self._emit(depth, f"pos += {struct.calcsize(layout)}")
        elif kind == "uuid":
            self._emit(depth, "if pos + 16 > end: fail('the frame ends within an id')")
            self._emit(depth, f"{target} = UUID(bytes=data[pos:pos + 16])")
            self._emit(depth, "pos += 16")
        elif kind in ("string", "bytes", "records"):
            size = self._size(depth, ">h" if kind == "string" else ">i")
            self._null_or(depth, target, size, name, nullable)
            if kind == "string" and self._flexible:
                too_long = f"fail('the text {name} is too long')"
                self._emit(depth + 1, f"if {size} > {STRING_MAX}: {too_long}")
            self._emit(depth + 1, f"stop = pos + {size}")
            self._emit(depth + 1, f"if stop > end: fail('{name} reaches beyond the frame')")
            decode = ".decode()" if kind == "string" else ""
            self._emit(depth + 1, f"{target} = data[pos:stop]{decode}")
            self._emit(depth + 1, "pos = stop")
        else:
            raise NotImplementedError(f"no decoder for the type {kind}")

    def _array(self, depth: int, target: str, field: Any, nullable: bool) -> None:
        count = self._size(depth, ">i")
        items, item = self._name("items"), self._name("item")
        self._null_or(depth, target, count, field.name, nullable)
        smallest = self._smallest(field.array_of, nullable=False)
        too_many = f"fail('{field.name} counts more elements than it has bytes')"
        self._emit(depth + 1, f"if {count} * {smallest} > end - pos: {too_many}")
        self._emit(depth + 1, f"room -= {count}")
        self._emit(depth + 1, "if room < 0: fail('it has more elements than a request may have')")
        self._emit(depth + 1, f"{items} = []")
        self._emit(depth + 1, f"for _ in range({count}):")
        if field.is_struct_array():
            self._struct(depth + 2, item, field.array_of, field.array_of.data_class)
        else:
            self._simple(depth + 2, item, field.array_of._type_str, field.name, nullable=False)
        self._emit(depth + 2, f"{items}.append({item})")
        self._emit(depth + 1, f"{target} = {items}")

    def _nested(self, depth: int, target: str, field: Any, nullable: bool) -> None:
        nested = self._name("nested")
        if nullable:  # KIP-893: a byte before it, -1 for null
            self._emit(depth, f"present, = {self._unpack('>b')}(data, pos)")
            self._emit(depth, "pos += 1")
            self._emit(depth, f"if present == -1: {target} = None")
            self._emit(depth, f"elif present != 1: fail('{field.name} is not present or null')")
            self._emit(depth, "else:")
            depth += 1
        self._struct(depth, nested, field, field.data_class)
        self._emit(depth, f"{target} = {nested}")

    def _tagged(self, depth: int, target: str, struct_field: Any) -> None:
        known = [
            field
            for field in struct_field._fields
            if field.for_version_q(self._version) and field.tagged_field_q(self._version)
        ]
        self._emit(depth, "if data[pos] == 0: pos += 1")
        self._emit(depth, "else:")
        tag, limit = self._name("tag"), self._name("limit")
        self._emit(depth + 1, f"{limit}_count, pos = unsigned_varint(data, pos)")
        self._emit(depth + 1, f"for _ in range({limit}_count):")
        self._emit(depth + 2, f"{tag}, pos = unsigned_varint(data, pos)")
        self._emit(depth + 2, f"{limit}, pos = unsigned_varint(data, pos)")
        self._emit(depth + 2, f"{limit} += pos")
        self._emit(depth + 2, f"if {limit} > end: fail('a tagged field reaches beyond the frame')")
        for field in known:
            self._emit(depth + 2, f"if {tag} == {field.tag}:")
            self._field(depth + 3, f"{target}.{field.name}", field)
            wrong = f"fail('{field.name} has another size than its tag says')"
            self._emit(depth + 3, f"if pos != {limit}: {wrong}")
        self._emit(depth + 2, f"pos = {limit}")

    def _size(self, depth: int, layout: str) -> str:
        """Emits code that reads a length; its variable is -1 for null."""
        size = self._name("size")
        if self._flexible:
            self._emit(depth, f"{size} = data[pos]")
            self._emit(depth, "pos += 1")
            self._emit(depth, f"if {size} > 127: {size}, pos = unsigned_varint(data, pos - 1)")
            self._emit(depth, f"{size} -= 1")
        else:
            self._emit(depth, f"{size}, = {self._unpack(layout)}(data, pos)")
            self._emit(depth, f"pos += {struct.calcsize(layout)}")
        return size

    def _null_or(self, depth: int, target: str, size: str, name: str, nullable: bool) -> None:
        """Emits code for a negative length. Code for other lengths follows, one level deeper."""
        self._emit(depth, f"if {size} < 0:")
        self._emit(depth + 1, f"if {size} < -1: fail('{name} has a negative length')")
        null = f"{target} = None" if nullable else f"fail('{name} is null')"
        self._emit(depth + 1, null)
        self._emit(depth, "else:")

    def _smallest(self, field: Any, *, nullable: bool) -> int:
        """The fewest bytes that a field takes."""
        if field.is_struct():
            if nullable:
                return 1
            fields = field.untagged_fields(self._version)
            return int(self._flexible) + sum(
                self._smallest(inner, nullable=inner.nullable_for_version_q(self._version))
                for inner in fields
            )
        if field.is_array() or field._type_str in ("bytes", "records"):
            return 1 if self._flexible else 4
        if field._type_str == "string":
            return 1 if self._flexible else 2
        if field._type_str == "uuid":
            return 16
        return struct.calcsize(">" + _FIXED[field._type_str])
