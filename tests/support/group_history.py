"""What the members of a group reported, and what must hold of it.

* A partition belongs to one member at a time.
* A record that is acknowledged to its producer is processed, at least once.
* A record whose commit was acknowledged to a consumer is delivered to nobody afterwards.
* A member gets records of its own partitions only.

The checks read the whole history in the order of the events' times. A member takes the time before
it gives a partition up and after it gets one. Each check returns what is wrong, as text.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Partition = tuple[str, int]

GONE = ("leaving", "killed", "failed")
"""Events after which a member owns nothing."""
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Event:
    """`partitions` with assigned, revoked and lost; `offsets` with processed; `ends`, which are
    the offsets of the next records, with committed. `generation` where the client tells it."""

    kind: str
    member: str
    at_ns: int
    partitions: frozenset[Partition] = frozenset()
    offsets: Mapping[Partition, Sequence[int]] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    generation: int | None = None
    error: str = ""

    def __str__(self) -> str:
        places = [f"{topic}/{number}" for topic, number in sorted(self.partitions)]
        records = [f"{number} at {list(some)}" for (_, number), some in self.offsets.items()]
        ends = [f"{number} to {end}" for (_, number), end in self.ends.items()]
        facts = ", ".join([*places, *records, *ends])
        return f"{self.at_ns / 1e9:.3f} {self.member} {self.kind} {facts} {self.error}"


def event_from_json(line: Mapping[str, Any]) -> Event:
    facts = {(topic, partition): fact for topic, partition, fact in line.get("offsets", ())}
    return Event(
        kind=line["event"],
        member=line["member"],
        at_ns=line["at"],
        partitions=frozenset((topic, number) for topic, number in line.get("partitions", ())),
        offsets=facts if line["event"] == "processed" else {},
        ends=facts if line["event"] == "committed" else {},
        generation=line.get("generation"),
        error=f"{line['name']}: {line['error']}" if "name" in line else line.get("error", ""),
    )


class History:
    """All events so far. Threads add them, and a test waits for conditions on them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self.held: dict[str, set[Partition]] = {}
        """The partitions of each member, by its own last event."""
        self.processed: dict[Partition, set[int]] = {}
        self.committed: dict[Partition, int] = {}
        self.failures: list[Event] = []

    def add(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            held = self.held.setdefault(event.member, set())
            if event.kind == "assigned":
                held |= event.partitions
            elif event.kind in ("revoked", "lost"):
                held -= event.partitions
            elif event.kind in GONE:
                held.clear()
            for partition, offsets in event.offsets.items():
                self.processed.setdefault(partition, set()).update(offsets)
            for partition, end in event.ends.items():
                # What was read from the broker may be older than a commit that was reported since.
                known = self.committed.get(partition, 0) if event.kind == "stored" else 0
                self.committed[partition] = max(end, known)
            if event.kind == "failed":
                self.failures.append(event)
            self._changed.notify_all()

    def events(self, *kinds: str, member: str | None = None, since_ns: int = 0) -> list[Event]:
        """Events in the order of their times; of all kinds if none is given."""
        with self._changed:
            found = [
                event
                for event in self._events
                if (not kinds or event.kind in kinds)
                and (member is None or event.member == member)
                and event.at_ns >= since_ns
            ]
        return sorted(found, key=lambda event: event.at_ns)

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait until `condition` is true; it is checked after each event."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not condition():
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"after {limit_s:.0f} s not {what}\n{self.tail()}"
                self._changed.wait(left_s)

    def tail(self) -> str:
        """What every member owns, the last events that changed that, and the last ones of all."""
        held = [f"{member} owns {sorted(owned)}" for member, owned in self.held.items() if owned]
        changes = self.events("assigned", "revoked", "lost", *GONE)[-2 * SHOWN :]
        return "\n".join([*held, *map(str, [*changes, *self.events()[-SHOWN:]])])


def owned_twice(events: Iterable[Event]) -> list[str]:
    return [
        f"{event.member} was assigned {partition} while {owner} had it"
        for event, owners in _with_owners(events)
        if event.kind == "assigned"
        for partition in sorted(event.partitions)
        for owner in sorted(owners.get(partition, set()) - {event.member})
    ][:SHOWN]


def processed_by_strangers(events: Iterable[Event]) -> list[str]:
    return [
        f"{event.member} got {partition} at {offsets[0]}, which it does not own"
        for event, owners in _with_owners(events)
        for partition, offsets in event.offsets.items()
        if event.member not in owners.get(partition, set())
    ][:SHOWN]


def processed_after_commit(events: Iterable[Event]) -> list[str]:
    committed: dict[Partition, tuple[int, str]] = {}
    found = []
    for event in sorted(events, key=lambda event: event.at_ns):
        for partition, offsets in event.offsets.items():
            end, committer = committed.get(partition, (0, ""))
            if min(offsets) < end:
                found.append(
                    f"{event.member} got {partition} at {min(offsets)} after {committer} "
                    f"had committed {end}"
                )
        for partition, end in event.ends.items():
            if end > committed.get(partition, (0, ""))[0]:
                committed[partition] = (end, event.member)
    return found[:SHOWN]


def never_processed(events: Iterable[Event], produced: Mapping[Partition, int]) -> list[str]:
    """`produced`: how many records each partition has."""
    processed: dict[Partition, set[int]] = {partition: set() for partition in produced}
    for event in events:
        for partition, offsets in event.offsets.items():
            processed[partition].update(offsets)
    return [
        f"{partition} at {offset} was never processed"
        for partition, count in produced.items()
        for offset in range(count)
        if offset not in processed[partition]
    ][:SHOWN]


def violations(events: Sequence[Event], produced: Mapping[Partition, int]) -> list[str]:
    return [
        *owned_twice(events),
        *processed_by_strangers(events),
        *processed_after_commit(events),
        *never_processed(events, produced),
    ]


def _with_owners(events: Iterable[Event]) -> Iterator[tuple[Event, dict[Partition, set[str]]]]:
    """Each event with the owners of all partitions just before it."""
    owners: dict[Partition, set[str]] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        yield event, owners
        for partition in event.partitions:
            if event.kind == "assigned":
                owners.setdefault(partition, set()).add(event.member)
            else:
                owners.get(partition, set()).discard(event.member)
        if event.kind in GONE:
            for members in owners.values():
                members.discard(event.member)
