"""The checker finds nothing in a correct history, and detects each violation.

Every history here is the correct one, changed in one place."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.history.checker import SHOWN, Kind, check
from tests.faults.history.history import (
    Acknowledged,
    Assigned,
    Committed,
    EndAsked,
    Event,
    Fault,
    History,
    ProducerFailed,
    Read,
    ReaderFailed,
    Record,
    Refused,
    Sent,
    Stuck,
    Unknown,
    WholeGroup,
    WholeLog,
    dump,
    load,
    record_id,
)

GROUP, MEMBER, READER, WATCHER = "group", "member", "reader", "watcher"


def record(partition: int, offset: int, producer: str, number: int, epoch: int = 1) -> Record:
    return Record(partition, offset, record_id(producer, number), epoch)


LOG = (
    record(0, 0, "a", 0),
    record(0, 1, "a", 1),
    record(0, 2, "b", 0),
    record(0, 3, "a", 3, epoch=2),
    record(1, 0, "b", 1),
    record(1, 1, "a", 2),
)
"""a/4 and b/2 are of unknown outcome and not there; a/3 is of unknown outcome and there."""


def good() -> list[Event]:
    events: list[Event] = [
        *(Sent(10 + number, "a", number, "key", 1 if number == 2 else 0) for number in range(5)),
        *(Sent(20 + number, "b", number, None, -1) for number in range(4)),
    ]
    places = {one.id: one for one in LOG}
    for at, id_ in enumerate(("a/0", "a/1", "b/0", "b/1", "a/2")):
        place = places[id_]
        events.append(Acknowledged(30 + at, id_, place.partition, place.offset))
    events += [
        Unknown(40, "a/3", "timed out"),
        Unknown(40, "a/4", "timed out"),
        Refused(40, "b/3", "queue full"),
        Fault(45, "kill broker 1"),
        EndAsked(50, 51, WATCHER, 0, 3),
        Read(52, READER, (LOG[0], LOG[4], LOG[1])),
        Assigned(53, GROUP, MEMBER, (0, 1)),
        Read(54, MEMBER, LOG[:2]),
        Committed(55, 56, GROUP, MEMBER, {0: 2}),
        Assigned(57, GROUP, MEMBER, (0, 1)),
        Read(58, MEMBER, LOG[2:]),
        Committed(59, 60, GROUP, MEMBER, {0: 4, 1: 2}),
        Read(61, READER, (LOG[2], LOG[3], LOG[5])),
        EndAsked(62, 63, WATCHER, 0, 4),
        WholeLog(64, "consumers", LOG),
        WholeLog(65, "SQL", LOG),
        WholeGroup(66, "client", GROUP, {0: 4, 1: 2}),
        WholeGroup(67, "SQL", GROUP, {0: 4, 1: 2}),
    ]
    return events


def kinds(events: Sequence[Event]) -> set[Kind]:
    return {finding.kind for finding in check(events)}


def change(edit: Callable[[Event], Event | None]) -> list[Event]:
    """The good history, with what `edit` makes of each event."""
    return [event for one in good() if (event := edit(one)) is not None]


def everywhere(edit: Callable[[Sequence[Record]], Sequence[Record]]) -> list[Event]:
    """The good history, with the same change in all that anybody reads."""

    def changed(event: Event) -> Event:
        if isinstance(event, Read | WholeLog):
            return replace(event, records=tuple(edit(event.records)))
        return event

    return change(changed)


def in_whole_logs(
    edit: Callable[[Sequence[Record]], Sequence[Record]], *sources: str
) -> list[Event]:
    def changed(event: Event) -> Event:
        if isinstance(event, WholeLog) and event.source in (sources or ("consumers", "SQL")):
            return replace(event, records=tuple(edit(event.records)))
        return event

    return change(changed)


def without(*ids: str) -> Callable[[Sequence[Record]], Sequence[Record]]:
    return lambda records: [one for one in records if one.id not in ids]


def moved(id_: str, offset: int) -> Callable[[Sequence[Record]], Sequence[Record]]:
    return lambda records: [
        one._replace(offset=offset) if one.id == id_ else one for one in records
    ]


def plus(*more: Record) -> Callable[[Sequence[Record]], Sequence[Record]]:
    return lambda records: [*records, *more]


def inserted(position: int, *events: Event) -> list[Event]:
    """`position`: the time before which they are put."""
    history = good()
    index = next(index for index, event in enumerate(history) if event.at_ns >= position)
    return [*history[:index], *events, *history[index:]]


def test_a_good_history_has_no_findings() -> None:
    assert check(good()) == []


def test_an_acknowledged_record_that_nobody_finds_is_lost() -> None:
    assert Kind.LOST in kinds(everywhere(without("a/2")))


def test_a_record_that_sql_alone_does_not_show_is_lost_and_the_sources_disagree() -> None:
    assert kinds(in_whole_logs(without("a/2"), "SQL")) == {Kind.LOST, Kind.DISAGREE}


def test_a_record_of_unknown_outcome_may_be_there_or_not() -> None:
    assert Kind.LOST not in kinds(everywhere(without("a/3")))
    assert kinds(in_whole_logs(plus(record(0, 4, "a", 4, epoch=2)))) == {Kind.UNREAD}


def test_a_record_that_was_read_and_is_gone_has_vanished() -> None:
    assert kinds(in_whole_logs(without("a/3"))) == {Kind.VANISHED}


def test_a_record_that_nobody_sent_is_a_phantom() -> None:
    assert Kind.PHANTOM in kinds(in_whole_logs(plus(record(0, 4, "c", 0))))
    assert Kind.PHANTOM in kinds(in_whole_logs(plus(Record(0, 4, "nonsense"))))


def test_a_refused_record_that_is_there_is_a_phantom() -> None:
    assert Kind.PHANTOM in kinds(in_whole_logs(plus(record(0, 4, "b", 3))))


def test_a_record_at_two_offsets_is_a_duplicate() -> None:
    assert Kind.DUPLICATE in kinds(in_whole_logs(plus(record(0, 4, "a", 3))))


def test_a_row_that_is_there_twice_is_a_duplicate() -> None:
    assert Kind.DUPLICATE in kinds(in_whole_logs(plus(LOG[0]), "SQL"))


def test_a_record_is_misplaced_where_its_acknowledgement_named_another_offset_or_partition() -> (
    None
):
    def elsewhere(event: Event) -> Event:
        if isinstance(event, Acknowledged) and event.id == "a/2":
            return replace(event, offset=7)
        return event

    def otherwhere(event: Event) -> Event:
        return (
            replace(event, partition=0) if isinstance(event, Sent) and event.number == 2 else event
        )

    assert kinds(change(elsewhere)) == {Kind.MISPLACED}
    assert Kind.MISPLACED in kinds(change(otherwhere))


def test_an_acknowledgement_without_an_offset_says_only_that_the_record_is_there() -> None:
    def unplaced(event: Event) -> Event:
        return replace(event, offset=-1) if isinstance(event, Acknowledged) else event

    assert check(change(unplaced)) == []


def test_records_of_a_producer_in_another_order_than_sent_are_reordered() -> None:
    def swapped(records: Sequence[Record]) -> Sequence[Record]:
        ids = {"a/0": "a/1", "a/1": "a/0"}
        return [one._replace(id=ids.get(one.id, one.id)) for one in records]

    assert Kind.REORDERED in kinds(everywhere(swapped))


def test_two_records_at_one_offset_are_a_finding_whoever_sees_them() -> None:
    def other(event: Event) -> Event:
        if isinstance(event, Read) and event.reader == READER:
            return replace(event, records=tuple(moved("b/0", 1)(event.records)))
        return event

    assert Kind.OFFSET_REUSED in kinds(change(other))
    assert Kind.OFFSET_REUSED in kinds(inserted(40, Acknowledged(39, "a/3", 0, 2)))
    assert Kind.OFFSET_REUSED in kinds(in_whole_logs(plus(record(0, 3, "a", 4)), "SQL"))


def test_an_offset_that_nobody_ever_saw_is_a_gap() -> None:
    assert Kind.GAP in kinds(everywhere(moved("a/3", 4)))


def test_a_consumer_that_passes_over_a_record_skips_it() -> None:
    def skipping(event: Event) -> Event:
        if isinstance(event, Read) and event.reader == READER:
            return replace(event, records=tuple(without("a/1")(event.records)))
        return event

    assert kinds(change(skipping)) == {Kind.SKIPPED}


def test_a_consumer_that_reads_a_record_again_went_back() -> None:
    assert kinds(inserted(62, Read(61, READER, (LOG[3],)))) == {Kind.POSITION_WENT_BACK}


def test_a_member_may_read_again_what_it_had_not_committed_once_it_is_assigned_anew() -> None:
    again: list[Event] = [Assigned(60, GROUP, MEMBER, (1,)), Read(60, MEMBER, LOG[4:])]
    assert check(inserted(59, *again)) == []


def test_an_end_below_what_was_acknowledged_read_or_told_before_went_back() -> None:
    assert kinds(inserted(45, EndAsked(43, 44, WATCHER, 1, 1))) == {Kind.END_WENT_BACK}
    assert kinds(inserted(59, EndAsked(57, 58, WATCHER, 0, 3))) == set()
    assert kinds(inserted(64, EndAsked(63, 64, WATCHER, 0, 3))) == {Kind.END_WENT_BACK}


def test_an_end_that_was_asked_for_before_it_grew_may_be_the_old_one() -> None:
    assert check(inserted(64, EndAsked(29, 64, WATCHER, 0, 0))) == []


def test_a_group_that_begins_before_its_acknowledged_commit_went_back() -> None:
    again: list[Event] = [Assigned(60, GROUP, "other", (0,)), Read(61, "other", LOG[3:4])]
    assert kinds(inserted(61, *again)) == {Kind.COMMIT_WENT_BACK}


def test_a_group_that_ends_before_its_acknowledged_commit_went_back() -> None:
    def behind(event: Event) -> Event:
        return replace(event, ends={0: 4, 1: 1}) if isinstance(event, WholeGroup) else event

    assert kinds(change(behind)) == {Kind.COMMIT_WENT_BACK}


def test_a_leader_epoch_that_is_lower_at_a_higher_offset_went_back() -> None:
    def older(records: Sequence[Record]) -> Sequence[Record]:
        return [one._replace(leader_epoch=0) if one.id == "a/3" else one for one in records]

    assert kinds(in_whole_logs(older)) == {Kind.EPOCH_WENT_BACK}


def test_a_record_that_a_group_never_reads_is_unread() -> None:
    def unread(event: Event) -> Event:
        if isinstance(event, Read) and event.reader == MEMBER:
            return replace(event, records=tuple(without("a/2")(event.records)))
        return event

    assert kinds(change(unread)) == {Kind.UNREAD}


def test_sources_that_show_different_logs_or_groups_disagree() -> None:
    def later(event: Event) -> Event:
        if isinstance(event, WholeGroup) and event.source == "SQL":
            return replace(event, ends={0: 4, 1: 3})
        return event

    assert Kind.DISAGREE in kinds(in_whole_logs(plus(record(0, 4, "a", 4)), "SQL"))
    assert kinds(change(later)) == {Kind.DISAGREE}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (ProducerFailed(60, "a", "out of order sequence number"), Kind.CLIENT_FAILED),
        (ReaderFailed(60, READER, "offset out of range"), Kind.CLIENT_FAILED),
        (Stuck(60, "a", "3 records without an answer"), Kind.STUCK),
    ],
)
def test_clients_that_give_up_or_never_end_are_findings(event: Event, kind: Kind) -> None:
    assert kinds(inserted(60, event)) == {kind}


def test_a_history_in_which_nothing_happened_proves_nothing() -> None:
    assert kinds([]) == {Kind.NOTHING_HAPPENED}
    unseen = change(lambda event: None if isinstance(event, WholeLog) else event)
    assert Kind.NOTHING_HAPPENED in kinds(unseen)


def test_of_many_findings_of_a_kind_the_first_are_shown_and_the_others_counted() -> None:
    lost: list[Event] = [Acknowledged(100, f"a/{100 + n}", 0, 100 + n) for n in range(3 * SHOWN)]
    found = check([*in_whole_logs(lambda records: records, "SQL"), *lost])
    shown = [finding for finding in found if finding.kind is Kind.LOST]
    assert len(shown) == SHOWN + 1
    assert "50 more" in shown[-1].what  # not there by two sources


def test_a_history_is_the_same_when_it_comes_back_from_its_file(tmp_path: Path) -> None:
    with closing(History(tmp_path / "written.jsonl")) as history:
        for event in good():
            history.add(event)
    dump([*good(), ProducerFailed(9, "a", "fatal"), Stuck(9, "b", "late")], tmp_path / "dumped")

    assert history.events() == good()
    assert load(history.path) == good()
    assert load(tmp_path / "dumped")[-2:] == [
        ProducerFailed(9, "a", "fatal"),
        Stuck(9, "b", "late"),
    ]
