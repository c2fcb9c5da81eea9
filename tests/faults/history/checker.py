"""Checks a history, and returns what is wrong with it. Pure: no clients, no clock.

What must hold, for a topic from which nothing is deleted:

* An acknowledged record is in the log once, at the acknowledged offset. A record of unknown outcome
  is in the log once or not at all; a record that was refused or never sent is not in the log.
* The records of a producer are in a partition in the order in which it sent them.
* An offset has one record, always the same for all clients, and every offset below the end has one.
* These never go back: the position of a consumer, the end of a partition (once a client has seen a
  higher one), the position of a group (once a commit was acknowledged), the leader epoch.
* A consumer skips no record, a group leaves no record unread, and SQL shows what consumers read.
* After the faults every operation completes, and no client got an error that is final.

`check` returns one `Finding` per violation, at most `SHOWN` of a kind. Run as a module it checks
histories in files."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.faults.history.history import (
    NO_PARTITION,
    Acknowledged,
    Assigned,
    Committed,
    EndAsked,
    Event,
    ProducerFailed,
    Read,
    ReaderFailed,
    Record,
    Refused,
    Sent,
    Stuck,
    WholeGroup,
    WholeLog,
    load,
    producer_and_number,
)

SHOWN = 10


class Kind(StrEnum):
    LOST = "acknowledged and not in the log"
    VANISHED = "read, and not in the log any more"
    PHANTOM = "in the log and never sent, or refused"
    DUPLICATE = "more than once in the log"
    MISPLACED = "acknowledged at one place, found at another"
    REORDERED = "not in the order in which the producer sent"
    OFFSET_REUSED = "one offset, several records"
    GAP = "no record at an offset below the end"
    SKIPPED = "passed over by a consumer"
    POSITION_WENT_BACK = "a consumer read backwards"
    END_WENT_BACK = "the end of a partition was told lower than it was known to be"
    COMMIT_WENT_BACK = "a group stood before an offset whose commit was acknowledged"
    EPOCH_WENT_BACK = "a later record has an earlier leader epoch"
    UNREAD = "never read by a group"
    DISAGREE = "two ways to look at the end do not show the same"
    CLIENT_FAILED = "a client gave up"
    STUCK = "not done long after the last fault"
    NOTHING_HAPPENED = "a history that proves nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.what}"


class Place(NamedTuple):
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass(slots=True)
class Facts:
    """The facts of a history, by subject."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    read: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """By consumer: all records that it read, in order."""
    seen: dict[Place, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By place: its records, each with the first reader; acknowledgements do not count."""
    places: dict[str, dict[Place, str]] = field(default_factory=lambda: defaultdict(dict))
    """The same by record."""
    logs: dict[str, Sequence[Record]] = field(default_factory=dict)
    """By source: the log at the end."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Facts":
        facts = cls()
        for event in events:
            match event:
                case Sent():
                    facts.sent[event.id] = event
                case Acknowledged():
                    facts.acknowledged[event.id] = event
                case Refused():
                    facts.refused[event.id] = event
                case Read():
                    facts.read[event.reader].extend(event.records)
                    facts._see(event.reader, event.records)
                case WholeLog():
                    facts.logs[event.source] = event.records
                    facts._see(event.source, event.records)
                case _:
                    pass
        return facts

    def _see(self, by: str, records: Iterable[Record]) -> None:
        for record in records:
            place = Place(record.partition, record.offset)
            self.seen[place].setdefault(record.id, by)
            self.places[record.id].setdefault(place, by)


Check: TypeAlias = Callable[[Facts, Sequence[Event]], Iterator[Finding]]


def check(events: Sequence[Event]) -> list[Finding]:
    """All violations; empty if there are none. `events` in the order of their times."""
    facts = Facts.of(events)
    by_kind: dict[Kind, list[Finding]] = defaultdict(list)
    for one in CHECKS:
        for finding in one(facts, events):
            by_kind[finding.kind].append(finding)
    return [
        finding
        for findings in by_kind.values()
        for finding in [
            *islice(findings, SHOWN),
            *(
                [Finding(findings[0].kind, f"... and {len(findings) - SHOWN} more")]
                if len(findings) > SHOWN
                else []
            ),
        ]
    ]


def _something_happened(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    if not facts.acknowledged:
        yield Finding(Kind.NOTHING_HAPPENED, "nothing was acknowledged")
    if not facts.logs:
        yield Finding(Kind.NOTHING_HAPPENED, "nobody looked at the log in the end")


def _acknowledged_is_there(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for source, log in facts.logs.items():
        there = {record.id for record in log}
        for id_, acknowledged in facts.acknowledged.items():
            if id_ not in there:
                place = Place(acknowledged.partition, acknowledged.offset)
                yield Finding(
                    Kind.LOST, f"{id_}, acknowledged at {place}, is not there by {source}"
                )


def _read_is_there(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for source, log in facts.logs.items():
        there = {record.id for record in log}
        for id_, places in facts.places.items():
            if id_ not in there and id_ not in facts.acknowledged:
                place, by = next(iter(places.items()))
                yield Finding(
                    Kind.VANISHED, f"{id_}, seen at {place} by {by}, is not there by {source}"
                )


def _only_what_was_sent(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for id_, places in facts.places.items():
        place, by = next(iter(places.items()))
        sent = facts.sent.get(id_)
        if sent is None:
            yield Finding(Kind.PHANTOM, f"{id_} at {place} by {by}: nobody sent it")
        elif id_ in facts.refused:
            yield Finding(
                Kind.PHANTOM, f"{id_} at {place} by {by}: refused, {facts.refused[id_].error}"
            )
        elif sent.partition not in (NO_PARTITION, place.partition):
            yield Finding(
                Kind.MISPLACED, f"{id_} at {place} by {by}: sent to partition {sent.partition}"
            )


def _once(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for id_, places in facts.places.items():
        if len(places) > 1:
            shown = ", ".join(f"{place} by {by}" for place, by in sorted(places.items()))
            yield Finding(Kind.DUPLICATE, f"{id_} at {shown}")
    for source, log in facts.logs.items():
        counted: dict[Record, int] = defaultdict(int)
        for record in log:
            counted[record] += 1
        for record, count in counted.items():
            if count > 1:
                place = Place(record.partition, record.offset)
                yield Finding(Kind.DUPLICATE, f"{record.id} {count} times at {place} by {source}")


def _where_acknowledged(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for id_, acknowledged in facts.acknowledged.items():
        told = Place(acknowledged.partition, acknowledged.offset)
        for place, by in facts.places.get(id_, {}).items():
            if place.partition != told.partition or told.offset not in (-1, place.offset):
                yield Finding(
                    Kind.MISPLACED, f"{id_}, acknowledged at {told}, is at {place} by {by}"
                )


def _in_order(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    highest: dict[tuple[str, int], tuple[int, Place]] = {}
    for place in sorted(facts.seen):
        for id_ in facts.seen[place]:
            if id_ not in facts.sent:
                continue
            producer, number = producer_and_number(id_)
            before = highest.get((producer, place.partition))
            if before is not None and number < before[0]:
                yield Finding(
                    Kind.REORDERED, f"{id_} at {place} comes after {before[0]} at {before[1]}"
                )
            if before is None or number > before[0]:
                highest[producer, place.partition] = number, place


def _one_record_per_offset(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for place, records in facts.seen.items():
        if len(records) > 1:
            shown = ", ".join(f"{id_} by {by}" for id_, by in records.items())
            yield Finding(Kind.OFFSET_REUSED, f"{place}: {shown}")
    acknowledged: dict[Place, str] = {}
    for id_, event in facts.acknowledged.items():
        if event.offset >= 0:
            place = Place(event.partition, event.offset)
            other = acknowledged.setdefault(place, id_)
            if other != id_:
                yield Finding(
                    Kind.OFFSET_REUSED, f"{place}: both {other} and {id_} were acknowledged there"
                )


def _no_gap(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    ends: dict[int, int] = defaultdict(int)
    for partition, offset in facts.seen:
        ends[partition] = max(ends[partition], offset + 1)
    for partition, end in sorted(ends.items()):
        for offset in range(end):
            if (partition, offset) not in facts.seen:
                yield Finding(Kind.GAP, f"nobody saw a record at {Place(partition, offset)}")


def _readers_go_forward(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    """One record after the other; a member of a group begins anew with each assignment."""
    positions: dict[tuple[str, int], int] = {}
    for event in events:
        match event:
            case Assigned():
                for partition in event.partitions:
                    positions.pop((event.member, partition), None)
            case Read():
                for record in event.records:
                    expected = positions.get((event.reader, record.partition))
                    place = Place(record.partition, record.offset)
                    if expected is not None and record.offset < expected:
                        yield Finding(
                            Kind.POSITION_WENT_BACK,
                            f"{event.reader} read {place} when {expected} was next",
                        )
                    if expected is not None and record.offset > expected:
                        yield from _skipped(facts, event.reader, place, expected)
                    positions[event.reader, record.partition] = record.offset + 1
            case _:
                pass


def _skipped(facts: Facts, reader: str, place: Place, expected: int) -> Iterator[Finding]:
    for offset in range(expected, place.offset):
        records = facts.seen.get(Place(place.partition, offset))
        if records:
            yield Finding(
                Kind.SKIPPED,
                f"{reader} went from {expected - 1} to {place}, past {'/'.join(records)}",
            )


def _ends_go_forward(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    """After a client has seen a record or an end, every answer has at least that end."""
    known: dict[int, list[tuple[int, int, str]]] = defaultdict(list)  # (time, end, why), growing

    def learn(partition: int, at_ns: int, end: int, why: str) -> None:
        ends = known[partition]
        if not ends or end > ends[-1][1]:
            ends.append((at_ns, end, why))

    for event in events:
        match event:
            case Acknowledged(offset=offset) if offset >= 0:
                learn(event.partition, event.at_ns, offset + 1, f"{event.id} was acknowledged")
            case Read():
                for record in event.records:
                    why = f"{event.reader} read {record.id}"
                    learn(record.partition, event.at_ns, record.offset + 1, why)
            case EndAsked():
                before = [one for one in known[event.partition] if one[0] < event.from_ns]
                if before and event.end < before[-1][1]:
                    at_ns, end, why = before[-1]
                    yield Finding(
                        Kind.END_WENT_BACK,
                        f"{event.asker} was told {event.end} for partition {event.partition} at "
                        f"{_seconds(event.from_ns)}; it was {end} at {_seconds(at_ns)}: {why}",
                    )
                why = f"{event.asker} was told so"
                learn(event.partition, event.at_ns, event.end, why)
            case _:
                pass


def _commits_go_forward(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    committed: dict[tuple[str, int], int] = {}
    begins: dict[tuple[str, int], tuple[str, int]] = {}
    """By member and partition that it has not read since it got it: the group, the least offset."""
    for event in events:
        match event:
            case Committed():
                for partition, end in event.ends.items():
                    key = event.group, partition
                    committed[key] = max(end, committed.get(key, 0))
            case Assigned():
                for partition in event.partitions:
                    least = committed.get((event.group, partition), 0)
                    begins[event.member, partition] = event.group, least
            case Read():
                for record in event.records:
                    begin = begins.pop((event.reader, record.partition), None)
                    if begin is not None and record.offset < begin[1]:
                        yield Finding(
                            Kind.COMMIT_WENT_BACK,
                            f"{event.reader} began at {Place(record.partition, record.offset)}, "
                            f"{begin[0]} had committed {begin[1]}",
                        )
            case WholeGroup():
                for (group, partition), least in committed.items():
                    end = event.ends.get(partition, 0)
                    if group == event.group and end < least:
                        yield Finding(
                            Kind.COMMIT_WENT_BACK,
                            f"{group} ends at {Place(partition, end)} by {event.source}, "
                            f"it had committed {least}",
                        )
            case _:
                pass


def _epochs_go_forward(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for source, log in facts.logs.items():
        in_order = sorted(record for record in log if record.leader_epoch >= 0)
        for before, record in pairwise(in_order):
            if before.partition == record.partition and record.leader_epoch < before.leader_epoch:
                yield Finding(
                    Kind.EPOCH_WENT_BACK,
                    f"{record} comes after {before} by {source}",
                )


def _groups_read_everything(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    members: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Assigned):
            members[event.group].add(event.member)
    everything = {
        Place(record.partition, record.offset) for log in facts.logs.values() for record in log
    }
    for group, names in members.items():
        read = {
            Place(record.partition, record.offset) for name in names for record in facts.read[name]
        }
        for place in sorted(everything - read):
            yield Finding(
                Kind.UNREAD, f"{'/'.join(facts.seen[place])} at {place} was never read by {group}"
            )


def _sources_agree(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    logs = [(source, _by_place(log)) for source, log in facts.logs.items()]
    groups = [
        (f"{event.group} by {event.source}", event.group, event.ends)
        for event in events
        if isinstance(event, WholeGroup)
    ]
    for (one, log), (other, other_log) in pairwise(logs):
        for place in sorted(log.keys() | other_log.keys()):
            if log.get(place) != other_log.get(place):
                yield Finding(
                    Kind.DISAGREE,
                    f"at {place} is {log.get(place, 'nothing')} by {one}, "
                    f"{other_log.get(place, 'nothing')} by {other}",
                )
    for (one, group, ends), (other, other_group, other_ends) in pairwise(groups):
        if group == other_group and dict(ends) != dict(other_ends):
            yield Finding(
                Kind.DISAGREE, f"{one} stands at {dict(ends)}, {other} at {dict(other_ends)}"
            )


def _by_place(log: Iterable[Record]) -> Mapping[Place, str]:
    places: dict[Place, str] = {}
    for record in log:
        place = Place(record.partition, record.offset)
        places[place] = f"{places[place]}, {record.id}" if place in places else record.id
    return places


def _nobody_gave_up(facts: Facts, events: Sequence[Event]) -> Iterator[Finding]:
    for event in events:
        at = f"at {_seconds(event.at_ns)}"
        match event:
            case ProducerFailed():
                yield Finding(Kind.CLIENT_FAILED, f"{event.producer}: {event.error} {at}")
            case ReaderFailed():
                yield Finding(Kind.CLIENT_FAILED, f"{event.reader}: {event.error} {at}")
            case Stuck():
                yield Finding(Kind.STUCK, f"{event.worker}: {event.what} {at}")
            case _:
                pass


def _seconds(at_ns: int) -> str:
    return f"{at_ns / 1e9:.3f} s"


CHECKS: Sequence[Check] = (
    _something_happened,
    _acknowledged_is_there,
    _read_is_there,
    _only_what_was_sent,
    _once,
    _where_acknowledged,
    _in_order,
    _one_record_per_offset,
    _no_gap,
    _readers_go_forward,
    _ends_go_forward,
    _commits_go_forward,
    _epochs_go_forward,
    _groups_read_everything,
    _sources_agree,
    _nobody_gave_up,
)


def main() -> int:
    """Checks the histories in the files that are named."""
    found = False
    for name in sys.argv[1:]:
        for finding in check(load(Path(name))):
            found = True
            print(f"{name}: {finding}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
