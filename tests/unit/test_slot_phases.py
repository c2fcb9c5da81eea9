"""The tables that decide about slots and fences: each entry, and every sequence of states."""

from __future__ import annotations

from collections import deque
from itertools import product

import pytest

from brokerhouse.broker.cluster.slot_phases import (
    FENCE_TRANSITIONS,
    SLOT_TRANSITIONS,
    FenceAction,
    FenceEvent,
    FencePhase,
    ImpossibleEvent,
    SlotAction,
    SlotEvent,
    SlotPhase,
    after_event,
    after_fence_event,
)

SEEN = {SlotEvent.KEEP, SlotEvent.MOVED, SlotEvent.RELEASE}
"""What a look at a map that says "ours" can see at any time."""
TAKEN = {SlotEvent.NEW_EPOCH, SlotEvent.OLD_EPOCH, SlotEvent.NOT_OURS}
TASK_ENDS = {SlotEvent.OPENED, SlotEvent.OPEN_FAILED, SlotEvent.HAS_GIVEN_UP}
WORKING = {SlotPhase.OPENING, SlotPhase.GIVING_UP}
"""A task is on its way."""
OVER = {SlotPhase.DONE, SlotPhase.LOST}
LASTING = set(SlotPhase) - OVER - {SlotPhase.NEW}


@pytest.mark.parametrize("phase", SlotPhase, ids=lambda phase: phase.name)
def test_each_phase_of_a_slot_accepts_only_the_events_that_can_happen_in_it(
    phase: SlotPhase,
) -> None:
    possible = set[SlotEvent]()
    if phase not in OVER:
        possible |= SEEN
    if phase in LASTING:
        possible |= TAKEN
    if phase is SlotPhase.REFUSED:
        possible |= {SlotEvent.RETRY_DUE}
    if phase is SlotPhase.OPENING:
        possible |= {SlotEvent.OPENED, SlotEvent.OPEN_FAILED}
    if phase is SlotPhase.GIVING_UP:
        possible |= {SlotEvent.HAS_GIVEN_UP}
    if phase is SlotPhase.LOST:
        possible |= TASK_ENDS

    assert SLOT_TRANSITIONS[phase].keys() == possible
    for event in set(SlotEvent) - possible:
        with pytest.raises(
            ImpossibleEvent,
            match=f"{event.name} is impossible for a slot in the phase {phase.name}",
        ):
            after_event(phase, event)


def every_step() -> list[tuple[SlotPhase, SlotEvent, SlotPhase, SlotAction | None]]:
    return [
        (phase, event, *after_event(phase, event))
        for phase in SlotPhase
        for event in SLOT_TRANSITIONS[phase]
    ]


def test_a_slot_has_one_task_at_a_time_and_its_phase_lasts_until_the_task_ends() -> None:
    for phase, event, after, action in every_step():
        begins = action in (SlotAction.OPEN, SlotAction.GIVE_UP)
        assert begins == (phase not in WORKING and after in WORKING), (phase, event)
        if phase in WORKING and event not in TASK_ENDS:
            assert after in (phase, SlotPhase.LOST), (phase, event)
    assert {after for _, _, after, action in every_step() if action is SlotAction.OPEN} == {
        SlotPhase.OPENING
    }
    assert {after for _, _, after, action in every_step() if action is SlotAction.GIVE_UP} == {
        SlotPhase.GIVING_UP
    }


def test_a_slot_is_claimed_or_handed_over_only_after_it_was_given_up() -> None:
    for phase, event, after, action in every_step():
        if action in (SlotAction.CLAIM, SlotAction.HAND_OVER):
            assert (phase, after) == (SlotPhase.GIVEN_UP, SlotPhase.GIVEN_UP), event


def test_a_slot_that_is_taken_away_before_it_was_given_up_ends_the_session() -> None:
    for phase, event in product(LASTING - {SlotPhase.GIVEN_UP}, TAKEN):
        assert after_event(phase, event) == (SlotPhase.LOST, SlotAction.END_SESSION)
    given_up = SlotPhase.GIVEN_UP
    assert after_event(given_up, SlotEvent.NOT_OURS) == (SlotPhase.DONE, None)
    assert after_event(given_up, SlotEvent.NEW_EPOCH) == (SlotPhase.DONE, None)
    assert after_event(given_up, SlotEvent.OLD_EPOCH) == (SlotPhase.LOST, SlotAction.END_SESSION)


def test_an_epoch_that_was_given_up_is_never_opened_again() -> None:
    reached = reachable_from(SlotPhase.GIVING_UP)

    assert reached == {SlotPhase.GIVING_UP, SlotPhase.GIVEN_UP, SlotPhase.DONE, SlotPhase.LOST}
    for phase in reached:
        for event in SLOT_TRANSITIONS[phase]:
            assert after_event(phase, event)[1] is not SlotAction.OPEN


def reachable_from(first: SlotPhase) -> set[SlotPhase]:
    found, ahead = {first}, deque([first])
    while ahead:
        phase = ahead.popleft()
        after = {after_event(phase, event)[0] for event in SLOT_TRANSITIONS[phase]}
        ahead.extend(after - found)
        found |= after
    return found


def test_every_phase_is_reached_and_serving_only_by_a_task_that_opened_the_slot() -> None:
    assert reachable_from(SlotPhase.NEW) == set(SlotPhase)
    into_serving = {
        (phase, event)
        for phase, event, after, _ in every_step()
        if after is SlotPhase.SERVING and phase is not SlotPhase.SERVING
    }
    assert into_serving == {(SlotPhase.OPENING, SlotEvent.OPENED)}


def test_from_every_phase_a_slot_that_has_to_go_is_given_up_or_lost() -> None:
    """No phase is a trap: with RELEASE, and tasks that end, it comes to GIVEN_UP."""
    for phase in LASTING | {SlotPhase.NEW}:
        way = [phase]
        while way[-1] is not SlotPhase.GIVEN_UP:
            ends = SLOT_TRANSITIONS[way[-1]].keys() & TASK_ENDS
            event = min(ends, key=lambda one: one.name) if ends else SlotEvent.RELEASE
            way.append(after_event(way[-1], event)[0])
            assert len(way) < 6, way


def test_a_session_is_fenced_by_one_task_before_a_slot_of_it_is_claimed() -> None:
    assert FENCE_TRANSITIONS.keys() == set(FencePhase)
    for phase in FencePhase:
        for event in FENCE_TRANSITIONS[phase]:
            after, action = after_fence_event(phase, event)
            assert (action is FenceAction.CLAIM) == (phase is FencePhase.FENCED)
            assert (action is FenceAction.FENCE) == (
                phase is not FencePhase.FENCING and after is FencePhase.FENCING
            )
            if after is FencePhase.FENCED and phase is not FencePhase.FENCED:
                assert (phase, event) == (FencePhase.FENCING, FenceEvent.SUCCEEDED)


@pytest.mark.parametrize("phase", FencePhase, ids=lambda phase: phase.name)
def test_each_phase_of_a_fence_accepts_only_the_events_that_can_happen_in_it(
    phase: FencePhase,
) -> None:
    possible = {FenceEvent.WANTED}
    if phase is FencePhase.FENCING:
        possible |= {FenceEvent.SUCCEEDED, FenceEvent.FAILED}
    if phase is FencePhase.REFUSED:
        possible |= {FenceEvent.RETRY_DUE}

    assert FENCE_TRANSITIONS[phase].keys() == possible
    for event in set(FenceEvent) - possible:
        with pytest.raises(
            ImpossibleEvent,
            match=f"{event.name} is impossible for a fence in the phase {phase.name}",
        ):
            after_fence_event(phase, event)
