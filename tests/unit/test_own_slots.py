"""Which groups a broker answers for, by the slots that it owns and serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.coordinator.group_coordinator import GroupCoordinator
from brokerhouse.coordinator.slots import OwnSlots, kafka_partition
from brokerhouse.protocol.errors import (
    CoordinatorLoadInProgress,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from brokerhouse.storage.slot_map import EMBEDDED, Slot

GROUP = "group"


class Session:
    """Valid until a test ends it."""

    def __init__(self) -> None:
        self.is_valid = True

    def may_serve(self) -> bool:
        return self.is_valid


class Coordinator:
    """Counts how often what other brokers stored is read."""

    def __init__(self) -> None:
        self.readings = 0

    async def read_anew(self) -> None:
        self.readings += 1


def groups_of(slots: OwnSlots, *coordinators: object) -> SlotGroups:
    named = dict(zip((EMBEDDED, "two"), coordinators, strict=False))
    return SlotGroups(slots, cast(dict[str, GroupCoordinator], named))


def test_a_single_broker_coordinates_every_group_at_leader_epoch_0() -> None:
    slots, coordinator = OwnSlots.alone(), cast(GroupCoordinator, SimpleNamespace())
    groups = groups_of(slots, coordinator)
    assert slots.serves_all()
    for group_id in ("", GROUP, "é", *(f"service-{n}" for n in range(200))):
        partition = kafka_partition(group_id)
        assert groups.coordinator_of(group_id) is coordinator
        assert groups.partition_of(group_id) == partition
        assert groups.coordinator_at(partition) == (coordinator, 0)
        assert slots.may_coordinate(group_id)
        assert slots.epoch_of(group_id) == 0


@pytest.mark.parametrize(("number", "exists"), [(-1, False), (0, True), (49, True), (50, False)])
def test_the_partitions_of_a_single_broker_are_as_many_as_in_kafka(
    number: int, exists: bool
) -> None:
    groups = groups_of(OwnSlots.alone())
    if exists:
        groups.check_partition(number)
    else:
        with pytest.raises(UnknownTopicOrPartition):
            groups.check_partition(number)


def test_a_group_is_answered_for_only_while_its_slot_is_owned_and_served_under_a_session() -> None:
    session, coordinator = Session(), cast(GroupCoordinator, SimpleNamespace())
    slots = OwnSlots(1, session.may_serve)
    groups = groups_of(slots, coordinator)
    with pytest.raises(NotCoordinator):
        groups.coordinator_of(GROUP)
    slots.owned[0] = Slot(7, 3, (EMBEDDED,))
    assert slots.may_coordinate(GROUP)
    assert not slots.serves_all()
    with pytest.raises(CoordinatorLoadInProgress):
        groups.coordinator_of(GROUP)
    slots.serving.add(0)
    assert slots.serves_all()
    assert groups.coordinator_at(0) == (coordinator, 3)
    session.is_valid = False
    assert not slots.may_coordinate(GROUP)
    with pytest.raises(NotCoordinator):
        groups.coordinator_of(GROUP)


async def test_what_other_brokers_stored_is_read_only_for_groups_of_others() -> None:
    one, two = Coordinator(), Coordinator()
    slots = OwnSlots(2, lambda: True, len)
    slots.owned[1] = Slot(7, 1, (EMBEDDED,))
    slots.serving.add(1)
    groups = groups_of(slots, one, two)
    await groups.read_anew(["a", "b"])
    assert (one.readings, two.readings) == (0, 0)
    await groups.read_anew(["a", ""])
    assert (one.readings, two.readings) == (1, 1)
