"""OffsetForLeaderEpoch: where an epoch ends, and the check of the current epoch."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.messages import Target
from tests.support.one_partition import EPOCHS
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class TestLeaderEpochs:
    def ask(self, wire: Wire, target: Target, epoch: int, current: int = -1) -> tuple[int, ...]:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        asked = topic.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[topic(topic=target.name, partitions=[asked])]
        )
        found = wire.ask(request, EPOCHS).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    def test_the_current_epoch_ends_at_the_high_watermark(self, wire: Wire, timed: Target) -> None:
        assert self.ask(wire, timed, 0) == (0, 0, 7)

    def test_an_unknown_epoch_has_no_end(self, wire: Wire, timed: Target) -> None:
        assert self.ask(wire, timed, 5) == (0, -1, -1)
        assert self.ask(wire, timed, -1) == (0, -1, -1)

    def test_the_epoch_is_known_after_all_records_are_deleted(
        self, wire: Wire, timed: Target
    ) -> None:
        wire.ask(messages.delete_records(timed, -1), 2)
        assert self.ask(wire, timed, 0) == (0, 0, 7)
        assert self.ask(wire, timed, 1) == (0, -1, -1)

    def test_a_current_leader_epoch_of_the_future_is_refused(
        self, wire: Wire, timed: Target
    ) -> None:
        assert self.ask(wire, timed, 0, current=0) == (0, 0, 7)
        code = errors.UnknownLeaderEpoch.code
        assert self.ask(wire, timed, 0, current=1) == (code, -1, -1)
