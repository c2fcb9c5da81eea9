"""Protobuf in the wire format of schema registries.

A zero, the schema's id in 4 bytes, which message of the schema it is, the message. Which one: the
number of indexes and the indexes themselves as zigzag varints, from the file's list of messages
down into nested ones; a single zero is the first message of the file.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import DecodeError, Message

_OWN_NAME = "schema of the record.proto"
_COMPILE_S = 30
_INDEXES_MAX = 32
_VARINT_BYTES = 10
_SHOWN_CHARACTERS = 100
_WRITTEN = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
"""Messages that have a text of their own: ISO 8601, and seconds as in `1.5s`."""
_FREE = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class ProtobufError(ValueError):
    """Bytes or a schema that are not understood. The sentence says why."""


class _UnwrittenValue(ValueError):
    """A value has no text. `path`: its field, from the outermost one in."""

    def __init__(self, path: Sequence[str], why: str) -> None:
        super().__init__(f"{'.'.join(path)}: {why}")
        self.path, self.why = path, why


class ProtobufSchema:
    """The messages of a schema."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """`references`: the texts of what it imports, by the names in its imports.

        Raises `ProtobufError`.
        """
        files = _compiled(text, references)
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        self._file = next(file for file in files.file if file.name == _OWN_NAME)
        self._classes: dict[tuple[int, ...], type[Message]] = {}

    def row(self, data: bytes) -> dict[str, Any]:
        """`data`: behind the schema's id. Names are those of the schema; a message, and a field
        declared `optional`, that is not there is None.

        Raises `ProtobufError`, and what protobuf raises for bytes that are no such message.
        """
        indexes, place = _indexes(data)
        message = self._class(indexes)()
        message.ParseFromString(data[place:])
        return _fields(message)

    def _class(self, indexes: tuple[int, ...]) -> type[Message]:
        if indexes not in self._classes:
            named: list[str] = [self._file.package] if self._file.package else []
            kinds: Sequence[Any] = self._file.message_type
            for index in indexes:
                if index >= len(kinds):
                    raise ProtobufError(f"its schema has no message {list(indexes)}")
                named.append(kinds[index].name)
                kinds = kinds[index].nested_type
            found = self._pool.FindMessageTypeByName(".".join(named))
            self._classes[indexes] = message_factory.GetMessageClass(found)
        return self._classes[indexes]


def _compiled(text: str, references: Mapping[str, str]) -> descriptor_pb2.FileDescriptorSet:
    given = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory(prefix="brokerhouse-protobuf-") as directory:
        sources = Path(directory, "sources")
        sources.mkdir()
        for name, source in [*references.items(), (_OWN_NAME, text)]:
            if ".." in PurePosixPath(name).parts or name.startswith("/"):
                raise ProtobufError(f"{name!r} cannot be imported")
            if (serialized := _serialized(source)) is not None:
                serialized.name = name
                given.file.append(serialized)
                continue
            path = sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        compiled, set_in = Path(directory, "compiled"), Path(directory, "given")
        set_in.write_bytes(given.SerializeToString())
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"--proto_path={sources}",
                *([f"--descriptor_set_in={set_in}"] if given.file else []),
                "--include_imports",
                f"--descriptor_set_out={compiled}",
                _OWN_NAME,
            ],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode != 0:
            raise ProtobufError(done.stderr.strip())
        return descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())


def _serialized(source: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A compiled file in base64, as Confluent's client for Python registers it; or None.

    Confluent's registry turns it into text, Apicurio's keeps it as it is.
    """
    try:
        data = base64.b64decode(source, validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(data) if data else None
    except (binascii.Error, DecodeError):
        return None


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Which message it is, and where it begins."""
    count, place = _zigzag(data, 0)
    if count == 0:
        return (0,), place
    if not 0 < count <= _INDEXES_MAX:
        raise ProtobufError(f"{count} indexes of a message")
    indexes = []
    for _ in range(count):
        index, place = _zigzag(data, place)
        if index < 0:
            raise ProtobufError(f"the index {index} of a message")
        indexes.append(index)
    return tuple(indexes), place


def _zigzag(data: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, and the place behind it."""
    number = 0
    for nth, byte in enumerate(data[place : place + _VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place + nth + 1
    raise ProtobufError("it ends before it says which message it is")


def _fields(message: Message) -> dict[str, Any]:
    """Raises `_UnwrittenValue`."""
    return {field.name: _named_field(message, field) for field in message.DESCRIPTOR.fields}


def _named_field(message: Message, field: Any) -> Any:
    try:
        return _field(message, field)
    except _UnwrittenValue as error:
        raise _UnwrittenValue((field.name, *error.path), error.why) from error


def _field(message: Message, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        one = kind.fields_by_name["value"]
        return {key: _value(value[key], one) for key in value}
    # `label` is gone from new versions of protobuf, and `is_repeated` is not in old ones.
    if _is_repeated(field):
        return [_value(each, field) for each in value]
    return _value(value, field)


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _value(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name in _WRITTEN:
        return _as_written(value.ToJsonString, value, name)
    if name in _WRAPPERS:
        return value.value
    if name in _FREE:
        return _as_written(partial(MessageToDict, value), value, name)
    return _fields(value)


def _as_written(write: Callable[[], Any], value: Message, name: str) -> Any:
    """Protobuf's own JSON, which has neither years beyond 9999 nor NaN."""
    try:
        return write()
    except (ValueError, SerializeToJsonError) as error:
        shown = str(value).strip().replace("\n", ", ")[:_SHOWN_CHARACTERS]
        raise _UnwrittenValue((), f"{shown} does not fit {name}") from error
