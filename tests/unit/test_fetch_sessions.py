"""Fetch sessions (KIP-227): Kafka's rules for ids and epochs, and what a session stores."""

from __future__ import annotations

import random
from collections.abc import Iterable
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest

from brokerhouse.broker import fetch_sessions as module
from brokerhouse.broker.fetch_sessions import FINAL_EPOCH, FetchSession, FetchSessions, Wanted
from brokerhouse.protocol.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

BY_NAME, BY_ID = 12, 13
MAX_EPOCH = 2**31 - 1
Partitions = Iterable[tuple[str | UUID, int]]


def request(
    session_id: int = 0,
    epoch: int = FINAL_EPOCH,
    wanted: Partitions = (),
    forgotten: Partitions = (),
    *,
    offset: int = 0,
    max_bytes: int = 1000,
    last_epoch: int = -1,
) -> FetchRequest:
    topics = [
        FetchRequest.FetchTopic(
            **_named(topic),
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=partition,
                    fetch_offset=offset,
                    partition_max_bytes=max_bytes,
                    current_leader_epoch=-1,
                    last_fetched_epoch=last_epoch,
                )
            ],
        )
        for topic, partition in wanted
    ]
    gone = [
        FetchRequest.ForgottenTopic(**_named(topic), partitions=[partition])
        for topic, partition in forgotten
    ]
    return FetchRequest(
        session_id=session_id, session_epoch=epoch, topics=topics, forgotten_topics_data=gone
    )


def _named(topic: str | UUID) -> dict[str, str | UUID]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}


def keys(wanted: Iterable[Wanted]) -> list[tuple[str | UUID, int]]:
    return [want.key for want in wanted]


def started(
    sessions: FetchSessions, *wanted: tuple[str | UUID, int], version: int = BY_NAME
) -> FetchSession:
    session, _, _ = sessions.open(request(0, 0, wanted), version)
    assert session is not None
    return session


class FakeTime:
    """In place of the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    made = FakeTime()
    monkeypatch.setattr(module, "time", made)
    return made


A, B, C = ("a", 0), ("b", 0), ("b", 1)


# --- Beginning ---


def test_a_full_fetch_with_epoch_0_begins_a_session() -> None:
    sessions = FetchSessions(10)
    session, wanted, news_only = sessions.open(request(0, 0, [A, B]), BY_NAME)
    assert session is not None
    assert session.session_id > 0
    assert session.epoch == 1
    assert keys(wanted) == [A, B]
    assert not news_only


def test_the_final_epoch_fetches_without_a_session() -> None:
    session, wanted, news_only = FetchSessions(10).open(request(0, FINAL_EPOCH, [A]), BY_NAME)
    assert (session, keys(wanted), news_only) == (None, [A], False)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_before_version_7_there_are_no_sessions(version: int) -> None:
    session, wanted, news_only = FetchSessions(10).open(request(5, 7, [A]), version)
    assert (session, keys(wanted), news_only) == (None, [A], False)


def test_a_full_fetch_without_partitions_begins_no_session() -> None:
    session, wanted, _ = FetchSessions(10).open(request(0, 0), BY_NAME)
    assert (session, wanted) == (None, [])


def test_ids_are_positive_and_of_one_session_only() -> None:
    sessions = FetchSessions(1000)
    ids = [started(sessions, A).session_id for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(0 < session_id < 2**31 for session_id in ids)


# --- Going on ---


def test_the_next_request_names_only_what_changed() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A, B)
    again, wanted, news_only = sessions.open(request(session.session_id, 1, [C]), BY_NAME)
    assert again is session
    assert news_only
    assert keys(wanted) == [A, B, C]
    _, wanted, _ = sessions.open(request(session.session_id, 2), BY_NAME)
    assert keys(wanted) == [A, B, C]


def test_a_partition_that_is_named_again_gets_its_new_offset_and_keeps_its_place() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A, B)
    changed = request(session.session_id, 1, [A], offset=77, max_bytes=5)
    _, wanted, _ = sessions.open(changed, BY_NAME)
    assert [(want.key, want.fetch_offset, want.max_bytes) for want in wanted] == [
        (A, 77, 5),
        (B, 0, 1000),
    ]


def test_a_forgotten_partition_leaves_its_session() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A, B, C)
    never_known = ("never known", 3)
    gone = request(session.session_id, 1, [], [A, C, never_known])
    assert keys(sessions.open(gone, BY_NAME)[1]) == [B]


def test_every_request_has_the_epoch_after_the_last() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A)
    for epoch in range(1, 20):
        sessions.open(request(session.session_id, epoch), BY_NAME)
    for wrong in (1, 18, 19, 21, MAX_EPOCH, -2):
        with pytest.raises(InvalidFetchSessionEpoch, match=f"expects epoch 20, not {wrong}"):
            sessions.open(request(session.session_id, wrong), BY_NAME)
    sessions.open(request(session.session_id, 20), BY_NAME)


def test_a_refused_epoch_changes_nothing() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A, B)
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.open(request(session.session_id, 5, [C], [A], offset=9), BY_NAME)
    assert keys(sessions.open(request(session.session_id, 1), BY_NAME)[1]) == [A, B]


def test_after_the_largest_epoch_comes_1() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A)
    session.epoch = MAX_EPOCH
    sessions.open(request(session.session_id, MAX_EPOCH), BY_NAME)
    assert session.epoch == 1
    sessions.open(request(session.session_id, 1), BY_NAME)


@pytest.mark.parametrize("session_id", [0, 1, -1, MAX_EPOCH])
def test_an_unknown_session_is_not_found(session_id: int) -> None:
    with pytest.raises(FetchSessionIdNotFound, match=f"fetch session {session_id} does not exist"):
        FetchSessions(10).open(request(session_id, 1, [A]), BY_NAME)


# --- Ending ---


@pytest.mark.parametrize("epoch", [0, FINAL_EPOCH])
def test_a_session_ends_with_a_full_fetch(epoch: int) -> None:
    sessions = FetchSessions(10)
    old = started(sessions, A)
    new, wanted, _ = sessions.open(request(old.session_id, epoch, [B]), BY_NAME)
    assert keys(wanted) == [B]
    assert (new is None) == (epoch == FINAL_EPOCH)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(request(old.session_id, 1), BY_NAME)


def test_a_client_that_leaves_ends_its_session_without_wanting_anything() -> None:
    sessions = FetchSessions(1)
    old = started(sessions, A)
    assert sessions.open(request(old.session_id, FINAL_EPOCH), BY_NAME) == (None, [], False)
    started(sessions, A)  # there is room again


# --- Names and ids ---


def test_a_session_of_topic_ids_keeps_to_them() -> None:
    sessions = FetchSessions(10)
    topic = UUID(int=5)
    session = started(sessions, (topic, 0), version=BY_ID)
    _, wanted, _ = sessions.open(request(session.session_id, 1, [(topic, 1)]), BY_ID)
    assert keys(wanted) == [(topic, 0), (topic, 1)]
    _, wanted, _ = sessions.open(request(session.session_id, 2, [], [(topic, 0)]), BY_ID)
    assert keys(wanted) == [(topic, 1)]


@pytest.mark.parametrize(("first", "then"), [(BY_NAME, BY_ID), (BY_ID, BY_NAME)])
def test_a_session_of_topic_names_refuses_topic_ids_and_the_reverse(first: int, then: int) -> None:
    sessions = FetchSessions(10)
    partition: tuple[str | UUID, int] = (UUID(int=5), 0) if first == BY_ID else A
    session = started(sessions, partition, version=first)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.open(request(session.session_id, 1), then)
    assert session.epoch == 1


def test_a_session_keeps_the_last_fetched_epoch_until_it_is_told_another() -> None:
    sessions = FetchSessions(10)
    session, *_ = sessions.open(request(0, 0, [A], last_epoch=3), BY_NAME)
    assert session is not None
    (want,) = sessions.open(request(session.session_id, 1), BY_NAME)[1]
    assert want.last_fetched_epoch == 3
    sessions.open(request(session.session_id, 2, [A], last_epoch=4), BY_NAME)
    assert want.last_fetched_epoch == 4
    sessions.open(request(session.session_id, 3, [A], last_epoch=-9), BY_NAME)
    assert want.last_fetched_epoch == -1


# --- News ---


def test_a_partition_has_news_if_its_high_watermark_or_log_start_changed() -> None:
    session = started(FetchSessions(10), A)
    (want,) = session.partitions.values()
    assert session.is_news(want, 0, 0)
    want.told_high_watermark, want.told_log_start = 5, 2
    assert not session.is_news(want, 5, 2)
    assert session.is_news(want, 6, 2)
    assert session.is_news(want, 5, 3)


def test_an_answered_partition_goes_to_the_end_of_its_session() -> None:
    sessions = FetchSessions(10)
    session = started(sessions, A, B, C)
    session.answered(session.partitions[A])
    _, wanted, _ = sessions.open(request(session.session_id, 1), BY_NAME)
    assert keys(wanted) == [B, C, A]
    session.answered(Wanted(("forgotten", 0), 0, 0, -1))  # meanwhile
    assert keys(sessions.open(request(session.session_id, 2), BY_NAME)[1]) == [B, C, A]


# --- The limit ---


def test_a_fetch_is_served_without_a_session_when_all_slots_are_in_use(clock: FakeTime) -> None:
    sessions = FetchSessions(2)
    known = [started(sessions, A), started(sessions, A)]
    session, wanted, news_only = sessions.open(request(0, 0, [B]), BY_NAME)
    assert (session, keys(wanted), news_only) == (None, [B], False)
    for one in known:
        sessions.open(request(one.session_id, 1), BY_NAME)


def test_the_session_that_was_used_longest_ago_gives_way_after_two_minutes(clock: FakeTime) -> None:
    sessions = FetchSessions(2)
    first, second = started(sessions, A), started(sessions, A)
    clock.now += 119
    assert sessions.open(request(0, 0, [B]), BY_NAME)[0] is None
    sessions.open(request(first.session_id, 1), BY_NAME)
    clock.now += 2
    third = started(sessions, B)
    sessions.open(request(first.session_id, 2), BY_NAME)
    sessions.open(request(third.session_id, 1), BY_NAME)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.open(request(second.session_id, 1), BY_NAME)


def test_fetches_are_served_without_sessions_when_there_are_no_slots() -> None:
    assert FetchSessions(0).open(request(0, 0, [A]), BY_NAME)[0] is None


@pytest.mark.parametrize("seed", range(5))
def test_a_session_follows_the_changes_that_a_consumer_sends(seed: int) -> None:
    rnd = random.Random(seed)
    sessions = FetchSessions(10)
    everything: list[tuple[str | UUID, int]] = [(f"t{n % 5}", n // 5) for n in range(20)]
    mine: dict[tuple[str | UUID, int], int] = dict.fromkeys(rnd.sample(everything, 5), 0)
    session = started(sessions, *mine)
    for epoch in range(1, 100):
        offset = rnd.randrange(1000)
        added = rnd.sample(everything, rnd.randrange(4))
        gone = rnd.sample([key for key in mine if key not in added], min(len(mine) // 3, 2))
        mine.update(dict.fromkeys(added, offset))
        for key in gone:
            mine.pop(key, None)
        _, wanted, _ = sessions.open(
            request(session.session_id, epoch, added, gone, offset=offset), BY_NAME
        )
        assert {want.key: want.fetch_offset for want in wanted} == mine


def test_the_partitions_of_all_sessions_together_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 5)
    sessions = FetchSessions(10)

    def begin(*partitions: int) -> FetchSession | None:
        wanted = [("t", partition) for partition in partitions]
        return sessions.open(request(epoch=0, wanted=wanted), BY_NAME)[0]

    three, two = begin(0, 1, 2, 0), begin(3, 4)
    assert three is not None
    assert two is not None
    assert begin(5) is None

    def go_on(session: FetchSession, *wanted: int, forgotten: int | None = None) -> None:
        sessions.open(
            request(
                session.session_id,
                session.epoch,
                [("t", partition) for partition in wanted],
                [] if forgotten is None else [("t", forgotten)],
            ),
            BY_NAME,
        )

    go_on(two, 5, forgotten=4)
    with pytest.raises(FetchSessionIdNotFound):
        go_on(two, 6)
    assert begin(7, 8) is not None, "the session that wanted too much has made room"
    assert begin(9) is None
    sessions.open(request(three.session_id, FINAL_EPOCH), BY_NAME)
    assert begin(10, 11, 12) is not None
