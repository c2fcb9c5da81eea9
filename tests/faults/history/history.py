"""What clients did to a topic and what they saw, as a list of events that survives the run.

An event is written when its client knows it, so the order of the list is the order in time. An
event that takes time has its beginning and its end (`from_ns`, `at_ns`). Where the end may never
come there are two events (`Sent`, and then `Acknowledged`, `Refused` or `Unknown`). A history is
stored as JSON lines, one event each, so that a failed run can be examined and checked again.

A record is known by its id, `PRODUCER/NUMBER`, which is its value in the log. A producer that is
replaced gets a new name, and numbers grow within a name.

Transactions will be further kinds of event (begun, committed, aborted) and the name of one in
`Sent`; what became of a record is decided in one place, `checker.Facts`.
"""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

NO_PARTITION = -1


class Record(NamedTuple):
    """One record where somebody saw it. `leader_epoch`: -1 where it was not told."""

    partition: int
    offset: int
    id: str
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Sent:
    """`partition`: NO_PARTITION where the client chooses one."""

    at_ns: int
    producer: str
    number: int
    key: str | None
    partition: int

    @property
    def id(self) -> str:
        return record_id(self.producer, self.number)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """`offset`: -1 where the client was not told."""

    at_ns: int
    id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The record is certainly not in the log, and will not be."""

    at_ns: int
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The record may be in the log or not; a record that has no outcome is the same."""

    at_ns: int
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class ProducerFailed:
    """The client says that this producer can never send again."""

    at_ns: int
    producer: str
    error: str


@dataclass(frozen=True, slots=True)
class Read:
    """What one poll of a consumer returned, in its order."""

    at_ns: int
    reader: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class ReaderFailed:
    """A consumer got an error from which it does not recover by itself."""

    at_ns: int
    reader: str
    error: str


@dataclass(frozen=True, slots=True)
class EndAsked:
    """A question for the end of a partition (its high watermark), and the answer."""

    from_ns: int
    at_ns: int
    asker: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """A member of a group got these partitions and asks only now from where to read them."""

    at_ns: int
    group: str
    member: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was acknowledged: partition -> offset of the next record."""

    from_ns: int
    at_ns: int
    group: str
    member: str
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class WholeLog:
    """Every record in the log at the end, by one `source`, partition by partition."""

    at_ns: int
    source: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """The committed offsets of a group at the end, by one `source`."""

    at_ns: int
    source: str
    group: str
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Something that must happen after the faults did not happen within its time limit."""

    at_ns: int
    worker: str
    what: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the cluster; for people, the checker ignores it."""

    at_ns: int
    what: str


Event: TypeAlias = (
    Sent
    | Acknowledged
    | Refused
    | Unknown
    | ProducerFailed
    | Read
    | ReaderFailed
    | EndAsked
    | Assigned
    | Committed
    | WholeLog
    | WholeGroup
    | Stuck
    | Fault
)
KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in Event.__args__}


def record_id(producer: str, number: int) -> str:
    return f"{producer}/{number}"


def producer_and_number(id_: str) -> tuple[str, int]:
    """Of ids that no producer of ours made, ValueError."""
    producer, _, number = id_.rpartition("/")
    return producer, int(number)


def to_json(event: Event) -> str:
    line: dict[str, Any] = {"event": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        # JSON has no numbers as names.
        line[field.name] = list(value.items()) if isinstance(value, Mapping) else value
    return json.dumps(line, separators=(",", ":"))


def from_json(line: str) -> Event:
    values: dict[str, Any] = json.loads(line)
    kind = KINDS[values.pop("event")]
    if "records" in values:
        values["records"] = tuple(Record(*record) for record in values["records"])
    if "ends" in values:
        values["ends"] = {partition: end for partition, end in values["ends"]}  # noqa: C416
    if "partitions" in values:
        values["partitions"] = tuple(values["partitions"])
    return kind(**values)


class History:
    """Collects events from many threads in memory, and writes each to a file at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._file = path.open("w")
        self.acknowledged = 0
        """How many records so far."""

    def close(self) -> None:
        self._file.close()

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            self._file.write(to_json(event) + "\n")
            self.acknowledged += isinstance(event, Acknowledged)

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)


def load(path: Path) -> list[Event]:
    with path.open() as lines:
        return [from_json(line) for line in lines]


def dump(events: Iterable[Event], path: Path) -> None:
    with path.open("w") as lines:
        lines.writelines(to_json(event) + "\n" for event in events)


def now_ns() -> int:
    return time.monotonic_ns()
