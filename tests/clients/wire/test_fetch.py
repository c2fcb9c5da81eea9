"""Fetch: what is found at an offset, limits, isolation levels, cold reads."""

from __future__ import annotations

from uuid import UUID

import pytest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import NOWHERE, Target
from tests.support.one_partition import (
    FETCH,
    INT64_MAX,
    NO_ID,
    PRODUCE,
    batches,
    offsets_of,
    read,
    rows_of,
    write,
)
from tests.support.record_batches import Record, batch_of
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

BY_NAME_OR_ID = pytest.mark.parametrize("version", [12, 13], ids=["by name", "by id"])


class TestFetch:
    @BY_NAME_OR_ID
    def test_a_batch_is_found_by_any_of_its_offsets(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        for count in (1, 3, 2):
            write(wire, target, batch_of(*[Record()] * count).data)
        for offset, first in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 4)):
            assert offsets_of(read(wire, target, offset, version))[0] == first
        end = read(wire, target, 6, version)
        assert (end.error_code, bytes(end.records or b""), end.high_watermark) == (0, b"", 6)

    @BY_NAME_OR_ID
    def test_unknown_offsets_partitions_epochs_and_topics_are_refused(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        write(wire, target, messages.small_batch())
        for offset in (3, -1, -2, INT64_MAX, -(2**63)):
            assert read(wire, target, offset, version).error_code == errors.OffsetOutOfRange.code
        for partition in (1, -1, 2**31 - 1):
            code = read(wire, target, 0, version, partition=partition).error_code
            assert code == errors.UnknownTopicOrPartition.code
        for epoch, expected in ((0, 0), (1, errors.UnknownLeaderEpoch.code)):
            assert read(wire, target, 0, version, leader_epoch=epoch).error_code == expected
        unknown = {12: errors.UnknownTopicOrPartition.code, 13: errors.UnknownTopicId.code}
        for topic_id in (UUID(int=7), NO_ID):
            nowhere = Target(NOWHERE, topic_id)
            assert read(wire, nowhere, 0, version).error_code == unknown[version]

    @BY_NAME_OR_ID
    @pytest.mark.parametrize(
        ("offset", "last_epoch", "code", "diverging"),
        [
            pytest.param(5, -1, 0, None, id="it says nothing"),
            pytest.param(5, -7, 0, None, id="a number that no epoch has"),
            pytest.param(5, 0, 0, None, id="it is in the log"),
            pytest.param(7, 0, 0, None, id="it is at the end"),
            pytest.param(8, 0, 0, (0, 7), id="beyond the end"),
            pytest.param(8, -1, errors.OffsetOutOfRange.code, None, id="beyond it without epoch"),
            pytest.param(5, 1, errors.OffsetOutOfRange.code, None, id="an epoch in future"),
            pytest.param(4, 0, errors.OffsetOutOfRange.code, None, id="below the start"),
        ],
    )
    def test_the_epoch_that_was_fetched_last_is_checked(
        self,
        wire: Wire,
        timed: Target,
        version: int,
        offset: int,
        last_epoch: int,
        code: int,
        diverging: tuple[int, int] | None,
    ) -> None:
        wire.ask(messages.delete_records(timed, 5), 2)
        found = read(wire, timed, offset, version, last_fetched_epoch=last_epoch)
        assert found.error_code == code
        if diverging is None:
            assert found.diverging_epoch is None
            assert bool(found.records) == (code == 0 and offset < 7)
        else:
            told = found.diverging_epoch
            assert (told.epoch, told.end_offset) == diverging
            assert not found.records
            assert (found.high_watermark, found.log_start_offset) == (7, 5)

    def test_limits_are_kept_and_one_batch_always_comes(self, wire: Wire, target: Target) -> None:
        size = 0
        for _ in range(10):
            data = batch_of(Record(value=bytes(1000))).data
            size = len(data)
            write(wire, target, data)

        def count(**limits: int) -> int:
            return len(offsets_of(read(wire, target, 0, **limits)))

        assert count() == 10
        for limit, expected in ((0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2)):
            assert count(partition_max_bytes=limit) == expected
            assert count(max_bytes=limit) == expected
        assert count(max_bytes=-1) == count(partition_max_bytes=-1) == 1
        assert count(max_bytes=5 * size, partition_max_bytes=3 * size) == 3

    def test_the_first_partition_with_records_gets_one_batch_whatever_the_limit(
        self, wire: Wire, topic: str
    ) -> None:
        target = messages.create_topic(wire, topic, partitions=3)
        for partition in (1, 2):
            request = messages.produce(target, messages.small_batch(), partition=partition)
            wire.ask(request, PRODUCE)
        request = messages.fetch(target, 0, partition=0, max_bytes=1)
        for partition in (1, 2):
            more = messages.fetch(target, 0, partition=partition)
            request.topics[0].partitions += more.topics[0].partitions
        found = wire.ask(request, FETCH).responses[0].partitions
        assert [len(offsets_of(item)) for item in found] == [0, 1, 0]

    @pytest.mark.parametrize("version", [4, 7, 17])
    def test_aborted_transactions_are_listed_for_read_committed_alone(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        write(wire, target, messages.small_batch())
        uncommitted = read(wire, target, 0, version, isolation_level=0)
        committed = read(wire, target, 0, version, isolation_level=1)
        assert uncommitted.aborted_transactions is None
        assert committed.aborted_transactions == []
        assert uncommitted.last_stable_offset == committed.last_stable_offset == 2

    def test_fetches_after_a_restart_bring_the_same_records(
        self, restartable: BrokerProcess, topic: str
    ) -> None:
        broker = restartable
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            for number in range(200):
                write(wire, target, batch_of(Record(number, b"%d" % number, bytes(500))).data)
            warm = rows_of(read(wire, target, 0).records)
        broker.restart()
        with Wire(broker) as wire:
            cold = rows_of(read(wire, target, 0).records)
            assert cold == warm
            assert len(cold) == 200
            assert rows_of(read(wire, target, 150).records)[-1].offset == 199
            position = rounds = 0
            while position < 200:
                found = read(wire, target, position, partition_max_bytes=1, max_bytes=1)
                position = batches(found.records)[-1].base_offset
                position += batches(found.records)[-1].last_offset_delta + 1
                rounds += 1
            assert position == 200
