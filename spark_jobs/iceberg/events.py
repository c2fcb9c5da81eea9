"""What workers and the coordinator tell each other on the control topic, in Avro.

Each event is an Avro object container file of one record: it brings its schema along, so that
fields can be added with defaults and both sides can be of different versions.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import fastavro

_NAMESPACE = "brokerhouse.iceberg"
_ASSIGNMENT = {
    "type": "record",
    "name": "Assignment",
    "fields": [
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "timestamp", "type": ["null", "long"], "default": None},
    ],
}
_FILE = {
    "type": "record",
    "name": "WrittenFile",
    "fields": [
        {"name": "spec_id", "type": "int"},
        {"name": "data_file", "type": "bytes", "doc": "data_file of Iceberg's manifests, format 2"},
        {"name": "schema_id", "type": "int"},
    ],
}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _text(name: str) -> dict[str, Any]:
    return {"name": name, "type": "string"}


_COMMIT_ID = _text("commit_id")
_VALID_THROUGH = {"name": "valid_through", "type": ["null", "long"], "default": None}
_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Event",
        "namespace": _NAMESPACE,
        "fields": [
            _text("group"),
            {
                "name": "payload",
                "type": [
                    _record("BeginCommit", _COMMIT_ID),
                    _record(
                        "DataFiles",
                        _COMMIT_ID,
                        _text("worker"),
                        _text("table"),
                        {"name": "files", "type": {"type": "array", "items": _FILE}},
                        _text("table_uuid"),
                    ),
                    _record(
                        "DataComplete",
                        _COMMIT_ID,
                        _text("worker"),
                        {"name": "assignments", "type": {"type": "array", "items": _ASSIGNMENT}},
                    ),
                    _record(
                        "TableCommitted",
                        _COMMIT_ID,
                        _text("table"),
                        {"name": "snapshot_id", "type": "long"},
                        _VALID_THROUGH,
                    ),
                    _record("CommitComplete", _COMMIT_ID, _VALID_THROUGH),
                ],
            },
        ],
    }
)


class MalformedEvent(ValueError):
    """A record of the control topic is no event."""


@dataclass(frozen=True, slots=True)
class BeginCommit:
    """To all workers: finish your files, and say which."""

    commit_id: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """`data_file`: in Avro, as Iceberg's manifests have it (tables.py). `schema_id`: of the table's
    schema when it was written, which says what types the partition's values have."""

    spec_id: int
    data_file: bytes
    schema_id: int


@dataclass(frozen=True, slots=True)
class DataFiles:
    """From a worker: files of one table. `table_uuid`: a table that is made again under the same
    name has another one."""

    commit_id: str
    worker: str
    table: str
    files: tuple[WrittenFile, ...]
    table_uuid: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition of a worker. `timestamp`: the highest of its records in this commit, in ms."""

    topic: str
    partition: int
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class DataComplete:
    """From a worker: all of its files are sent. In one transaction with them."""

    commit_id: str
    worker: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class TableCommitted:
    """From the coordinator. `valid_through`: in ms, None if it is not known."""

    commit_id: str
    table: str
    snapshot_id: int
    valid_through: int | None


@dataclass(frozen=True, slots=True)
class CommitComplete:
    """From the coordinator: all tables are committed."""

    commit_id: str
    valid_through: int | None


Event = BeginCommit | DataFiles | DataComplete | TableCommitted | CommitComplete
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (BeginCommit, DataFiles, DataComplete, TableCommitted, CommitComplete)
}
_ITEMS: dict[str, type[Any]] = {"files": WrittenFile, "assignments": Assignment}


def encoded(group: str, event: Event) -> bytes:
    """`group`: the job whose event it is. Several jobs may share a control topic."""
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__slots__}
    for name in _ITEMS.keys() & fields.keys():
        fields[name] = [
            {one: getattr(item, one) for one in item.__slots__} for item in fields[name]
        ]
    payload = (f"{_NAMESPACE}.{type(event).__name__}", fields)
    out = io.BytesIO()
    fastavro.writer(out, _SCHEMA, [{"group": group, "payload": payload}], codec="deflate")
    return out.getvalue()


def decoded(value: bytes) -> tuple[str, Event]:
    """The group and the event. Raises `MalformedEvent`."""
    try:
        record: Any
        [record] = fastavro.reader(io.BytesIO(value), _SCHEMA, return_record_name=True)
        name, fields = record["payload"]
        for items, kind in _ITEMS.items():
            if items in fields:
                fields[items] = tuple(kind(**one) for one in fields[items])
        return record["group"], _KINDS[name.removeprefix(f"{_NAMESPACE}.")](**fields)
    except Exception as error:  # any bytes may come, and the library lists no errors
        raise MalformedEvent(f"no event of the job iceberg: {error}") from error
