"""Fetch sessions (KIP-227): what answers contain, and how a session changes and ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import NO_ID, PRODUCE, offsets_of
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class Session:
    """A fetch session as a consumer keeps it."""

    def __init__(self, wire: Wire, version: int) -> None:
        self.wire = wire
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self,
        *wanted: FetchRequest,
        forgotten: tuple[Target, list[int]] | None = None,
        max_wait_ms: int = 0,
    ) -> Any:
        """The next fetch of the session; it names only what is new or changed."""
        request = messages.fetch(Target("", NO_ID), 0, max_wait_ms=max_wait_ms, min_bytes=1)
        request.topics = [topic for each in wanted for topic in each.topics]
        request.session_id, request.session_epoch = self.session_id, self.epoch
        if forgotten is not None:
            target, partitions = forgotten
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(
                    topic=target.name, topic_id=target.topic_id, partitions=partitions
                )
            ]
        answer = self.wire.ask(request, self.version)
        if answer.error_code == 0:
            self.session_id = answer.session_id
            self.epoch += 1
        return answer

    def told(self, answer: Any) -> list[tuple[int, int, int]]:
        """(partition, error, number of batches)."""
        assert answer.error_code == 0
        return [
            (item.partition_index, item.error_code, len(offsets_of(item)))
            for topic in answer.responses
            for item in topic.partitions
        ]


SESSION_VERSIONS = pytest.mark.parametrize("version", [7, 12, 13, 18])


class TestFetchSessions:
    @pytest.fixture
    def target(self, wire: Wire, topic: str) -> Target:
        return messages.create_topic(wire, topic, partitions=3)

    def begin(self, wire: Wire, target: Target, version: int) -> Session:
        session = Session(wire, version)
        answer = session.fetch(*(messages.fetch(target, 0, partition=index) for index in range(3)))
        assert session.session_id > 0
        assert session.told(answer) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
        return session

    def append(self, wire: Wire, target: Target, partition: int) -> None:
        wire.ask(messages.produce(target, messages.small_batch(), partition=partition), PRODUCE)

    @SESSION_VERSIONS
    def test_a_session_answers_only_partitions_with_news(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = self.begin(wire, target, version)
        assert session.told(session.fetch()) == []
        self.append(wire, target, 1)
        assert session.told(session.fetch()) == [(1, 0, 1)]
        moved = messages.fetch(target, 2, partition=1)
        assert session.told(session.fetch(moved)) == []
        assert session.told(session.fetch()) == []

    @SESSION_VERSIONS
    def test_a_session_adds_moves_and_forgets_partitions(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = Session(wire, version)
        session.fetch(messages.fetch(target, 0, partition=0))
        for partition in range(3):
            self.append(wire, target, partition)
        moved, added = messages.fetch(target, 2), messages.fetch(target, 0, partition=2)
        assert session.told(session.fetch(moved, added)) == [(0, 0, 0), (2, 0, 1)]
        assert session.told(session.fetch(forgotten=(target, [0, 2, 99]))) == []
        self.append(wire, target, 0)
        assert session.told(session.fetch()) == []

    def test_an_error_is_repeated_in_every_answer_of_a_session(
        self, wire: Wire, target: Target
    ) -> None:
        session = Session(wire, 12)
        session.fetch(messages.fetch(target, 5))
        assert session.told(session.fetch()) == [(0, 1, 0)]
        assert session.told(session.fetch()) == [(0, 1, 0)]

    def test_a_diverging_epoch_is_repeated_in_every_answer_of_a_session(
        self, wire: Wire, target: Target
    ) -> None:
        session = self.begin(wire, target, 13)
        beyond = messages.fetch(target, 5, last_fetched_epoch=0)
        for wanted in ((beyond,), ()):
            (told,) = session.fetch(*wanted, max_wait_ms=60_000).responses[0].partitions
            assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (0, 0)

    @SESSION_VERSIONS
    def test_a_wrong_session_epoch_or_id_is_refused(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = self.begin(wire, target, version)
        for epoch in (2, 5, 2**31 - 1, -2):
            session.epoch = epoch
            code = session.fetch().error_code
            assert code == errors.InvalidFetchSessionEpoch.code
        session.epoch, session_id = 1, session.session_id
        session.session_id = session_id % (2**31 - 1) + 1
        assert session.fetch().error_code == errors.FetchSessionIdNotFound.code
        session.session_id = session_id
        assert session.told(session.fetch()) == []

    def test_a_session_refuses_to_change_from_names_to_ids(
        self, wire: Wire, target: Target
    ) -> None:
        session = self.begin(wire, target, 12)
        session.version = 13
        assert session.fetch().error_code == errors.FetchSessionTopicIdError.code

    @SESSION_VERSIONS
    def test_a_session_ends_by_its_final_epoch(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        session = self.begin(wire, target, version)
        self.append(wire, target, 0)
        last = messages.fetch(target, 0, session_id=session.session_id, session_epoch=-1)
        answer = wire.ask(last, version)
        assert answer.session_id == 0
        assert session.told(answer) == [(0, 0, 1)]
        assert session.fetch().error_code == errors.FetchSessionIdNotFound.code

    def test_epoch_0_begins_another_session(self, wire: Wire, target: Target) -> None:
        session = self.begin(wire, target, 13)
        before, session.epoch = session.session_id, 0
        answer = session.fetch(messages.fetch(target, 0))
        assert session.told(answer) == [(0, 0, 0)]
        assert session.session_id not in (0, before)

    def test_an_append_ends_a_long_poll_within_a_session(
        self, broker: BrokerProcess, wire: Wire, target: Target
    ) -> None:
        with Wire(broker) as poller:
            session = self.begin(poller, target, 13)
            answers: list[Any] = []
            polling = threading.Thread(
                target=lambda: answers.append(session.fetch(max_wait_ms=30_000))
            )
            polling.start()
            self.append(wire, target, 2)
            polling.join(20)
            assert [session.told(answer) for answer in answers] == [[(2, 0, 1)]]

    def test_a_consumer_is_served_without_a_session_when_there_is_no_room(
        self, restartable: BrokerProcess, topic: str
    ) -> None:
        """The broker has room for two."""
        with Wire(restartable) as wire:
            target = messages.create_topic(wire, topic, partitions=3)
            kept = [self.begin(wire, target, 13) for _ in range(2)]
            refused = Session(wire, 13)
            answer = refused.fetch(messages.fetch(target, 0))
            assert (answer.session_id, refused.told(answer)) == (0, [(0, 0, 0)])
            for session in kept:
                assert session.told(session.fetch()) == []
            wire.ask(messages.fetch(target, 0, session_id=kept[0].session_id, session_epoch=-1), 13)
            self.begin(wire, target, 13)
