"""ListOffsets: by timestamp, and the special timestamps of each version."""

from __future__ import annotations

import pytest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import TIME_MS, Target
from tests.support.one_partition import INT64_MAX, LIST, listed
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class TestListOffsets:
    def test_a_timestamp_finds_the_first_offset_at_or_after_it(
        self, wire: Wire, timed: Target
    ) -> None:
        for asked, found, offset in ((0, 0, 0), (1, 10, 1), (10, 10, 1), (11, 20, 2), (21, 30, 4)):
            assert listed(wire, timed, TIME_MS + asked) == (0, TIME_MS + found, offset)
        assert listed(wire, timed, 0) == (0, TIME_MS, 0)
        assert listed(wire, timed, TIME_MS + 31) == (0, -1, -1)
        assert listed(wire, timed, INT64_MAX) == (0, -1, -1)

    def test_special_timestamps_find_the_ends_and_the_largest_timestamp(
        self, wire: Wire, timed: Target
    ) -> None:
        assert listed(wire, timed, -1) == (0, -1, 7)
        assert listed(wire, timed, -2) == (0, -1, 0)
        assert listed(wire, timed, -3) == (0, TIME_MS + 30, 4)
        assert listed(wire, timed, -4) == (0, -1, 0)
        assert listed(wire, timed, -5) == (0, -1, -1)

    @pytest.mark.parametrize(
        ("asked", "epoch"),
        [
            pytest.param(-1, 0, id="end"),
            pytest.param(-2, 0, id="start"),
            pytest.param(-3, 0, id="largest timestamp"),
            pytest.param(-4, 0, id="local start"),
            pytest.param(-5, -1, id="last tiered"),
            pytest.param(-6, -1, id="first to be tiered"),
            pytest.param(TIME_MS + 11, 0, id="a record"),
            pytest.param(TIME_MS + 31, -1, id="no record"),
        ],
    )
    def test_an_offset_is_answered_with_its_leader_epoch(
        self, wire: Wire, timed: Target, asked: int, epoch: int
    ) -> None:
        found = wire.ask(messages.list_offsets(timed, asked), LIST).topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch) == (0, epoch)

    def test_an_empty_partition_has_ends_and_no_timestamps(
        self, wire: Wire, target: Target
    ) -> None:
        assert listed(wire, target, -1) == (0, -1, 0)
        assert listed(wire, target, -2) == (0, -1, 0)
        assert listed(wire, target, -3) == (0, -1, -1)
        assert listed(wire, target, 0) == (0, -1, -1)

    @pytest.mark.parametrize(("asked", "since"), [(-3, 7), (-4, 8), (-5, 9)])
    def test_special_timestamps_need_the_version_that_has_them(
        self, wire: Wire, timed: Target, asked: int, since: int
    ) -> None:
        for version in range(1, 12):
            code = listed(wire, timed, asked, version)[0]
            assert code == (0 if version >= since else errors.UnsupportedVersion.code), version

    @pytest.mark.parametrize("version", range(4, 12))
    def test_a_leader_epoch_of_the_future_is_refused(
        self, wire: Wire, timed: Target, version: int
    ) -> None:
        request = messages.list_offsets(timed, -1)
        for epoch, code in ((-1, 0), (0, 0), (1, errors.UnknownLeaderEpoch.code)):
            request.topics[0].partitions[0].current_leader_epoch = epoch
            assert wire.ask(request, version).topics[0].partitions[0].error_code == code

    @pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1])
    def test_a_partition_that_does_not_exist_is_refused(
        self, wire: Wire, timed: Target, partition: int
    ) -> None:
        answer = wire.ask(messages.list_offsets(timed, -1, partition), LIST)
        assert answer.topics[0].partitions[0].error_code == errors.UnknownTopicOrPartition.code
