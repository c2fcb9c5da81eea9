"""Tables of transitions for a slot, and for the fence of a dead session.

A slot under one epoch of this broker's session is in one `SlotPhase`. Every look at the slot map
and every end of a task is a `SlotEvent`; `after_event` answers with the next phase and with the
`SlotAction` to perform. broker/cluster/reconcile.py performs the actions and decides nothing by
itself. Pure: no IO, no clock.

What must hold, and what tests/unit/test_slot_phases.py checks of the tables:

* One task at a time works on a slot.
* An epoch that was given up is never served again: only a higher epoch leads out of GIVEN_UP.
* A slot is released, or claimed again, only after it was given up: nothing of it is in flight.
* If the map gives a slot to another broker before that, the session ends.
* A slot with an owner is claimed only when that owner is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class SlotPhase(Enum):
    """How far this broker is with a slot that it owns."""

    NEW = auto()  # seen for the first time under this epoch
    OPENING = auto()  # a task reads where its logs end
    REFUSED = auto()  # it could not be opened; retried later
    SERVING = auto()
    GIVING_UP = auto()  # a task waits for what is in flight
    GIVEN_UP = auto()  # nothing is in flight; the map still says that the slot is ours
    DONE = auto()  # nothing is left to do under this epoch
    LOST = auto()  # somebody else may serve it: this session is over


class SlotEvent(Enum):
    """What was seen of a slot at a look at the map, or how its task ended."""

    KEEP = auto()  # ours, and it stays with us
    MOVED = auto()  # ours, and the next owner writes to another shard
    RELEASE = auto()  # ours, and the plan gives it to another broker
    RETRY_DUE = auto()  # ours, refused, and due to be retried
    NEW_EPOCH = auto()  # ours under a higher epoch than the one that we serve
    OLD_EPOCH = auto()  # ours under a lower epoch
    NOT_OURS = auto()
    OPENED = auto()
    OPEN_FAILED = auto()
    HAS_GIVEN_UP = auto()


class SlotAction(Enum):
    OPEN = auto()  # start serving it
    GIVE_UP = auto()  # stop serving it
    CLAIM = auto()  # own it under a new epoch
    HAND_OVER = auto()  # release it: nobody owns it then
    END_SESSION = auto()


_Slots = Mapping[SlotPhase, Mapping[SlotEvent, tuple[SlotPhase, SlotAction | None]]]

_OPEN = SlotPhase.OPENING, SlotAction.OPEN
_GIVE_UP = SlotPhase.GIVING_UP, SlotAction.GIVE_UP
_LOST = SlotPhase.LOST, SlotAction.END_SESSION
_TAKEN_AWAY = {
    SlotEvent.NEW_EPOCH: _LOST,
    SlotEvent.OLD_EPOCH: _LOST,
    SlotEvent.NOT_OURS: _LOST,
}

SLOT_TRANSITIONS: _Slots = {
    SlotPhase.NEW: {
        SlotEvent.KEEP: _OPEN,
        SlotEvent.MOVED: _GIVE_UP,
        SlotEvent.RELEASE: _GIVE_UP,
    },
    SlotPhase.OPENING: {
        SlotEvent.KEEP: (SlotPhase.OPENING, None),
        SlotEvent.MOVED: (SlotPhase.OPENING, None),  # given up when the task has ended
        SlotEvent.RELEASE: (SlotPhase.OPENING, None),
        SlotEvent.OPENED: (SlotPhase.SERVING, None),
        SlotEvent.OPEN_FAILED: (SlotPhase.REFUSED, None),
        **_TAKEN_AWAY,
    },
    SlotPhase.REFUSED: {
        SlotEvent.KEEP: (SlotPhase.REFUSED, None),
        SlotEvent.RETRY_DUE: _OPEN,
        SlotEvent.MOVED: _GIVE_UP,  # its groups may have been loaded
        SlotEvent.RELEASE: _GIVE_UP,
        **_TAKEN_AWAY,
    },
    SlotPhase.SERVING: {
        SlotEvent.KEEP: (SlotPhase.SERVING, None),
        SlotEvent.MOVED: _GIVE_UP,
        SlotEvent.RELEASE: _GIVE_UP,
        **_TAKEN_AWAY,
    },
    SlotPhase.GIVING_UP: {
        SlotEvent.KEEP: (SlotPhase.GIVING_UP, None),
        SlotEvent.MOVED: (SlotPhase.GIVING_UP, None),
        SlotEvent.RELEASE: (SlotPhase.GIVING_UP, None),
        SlotEvent.HAS_GIVEN_UP: (SlotPhase.GIVEN_UP, None),
        **_TAKEN_AWAY,
    },
    SlotPhase.GIVEN_UP: {
        SlotEvent.KEEP: (SlotPhase.GIVEN_UP, SlotAction.CLAIM),
        SlotEvent.MOVED: (SlotPhase.GIVEN_UP, SlotAction.CLAIM),  # and write to the new shard
        SlotEvent.RELEASE: (SlotPhase.GIVEN_UP, SlotAction.HAND_OVER),
        SlotEvent.NEW_EPOCH: (SlotPhase.DONE, None),
        SlotEvent.NOT_OURS: (SlotPhase.DONE, None),
        SlotEvent.OLD_EPOCH: _LOST,
    },
    SlotPhase.DONE: {},
    SlotPhase.LOST: {  # its task may end before it is cancelled
        SlotEvent.OPENED: (SlotPhase.LOST, None),
        SlotEvent.OPEN_FAILED: (SlotPhase.LOST, None),
        SlotEvent.HAS_GIVEN_UP: (SlotPhase.LOST, None),
    },
}


class FencePhase(Enum):
    """How far this broker is with fencing one dead session on one shard."""

    NEEDED = auto()
    FENCING = auto()
    REFUSED = auto()
    FENCED = auto()  # none of its inserts can land on that shard any more


class FenceEvent(Enum):
    WANTED = auto()  # this broker is to claim a slot of that session
    RETRY_DUE = auto()  # the same, refused, and due to be retried
    SUCCEEDED = auto()
    FAILED = auto()


class FenceAction(Enum):
    FENCE = auto()
    CLAIM = auto()


_Fences = Mapping[FencePhase, Mapping[FenceEvent, tuple[FencePhase, FenceAction | None]]]

FENCE_TRANSITIONS: _Fences = {
    FencePhase.NEEDED: {
        FenceEvent.WANTED: (FencePhase.FENCING, FenceAction.FENCE),
    },
    FencePhase.FENCING: {
        FenceEvent.WANTED: (FencePhase.FENCING, None),
        FenceEvent.SUCCEEDED: (FencePhase.FENCED, None),
        FenceEvent.FAILED: (FencePhase.REFUSED, None),
    },
    FencePhase.REFUSED: {
        FenceEvent.WANTED: (FencePhase.REFUSED, None),
        FenceEvent.RETRY_DUE: (FencePhase.FENCING, FenceAction.FENCE),
    },
    FencePhase.FENCED: {
        FenceEvent.WANTED: (FencePhase.FENCED, FenceAction.CLAIM),
    },
}


class ImpossibleEvent(Exception):
    """A bug: in this phase the event cannot happen."""


def after_event(phase: SlotPhase, event: SlotEvent) -> tuple[SlotPhase, SlotAction | None]:
    """The next phase of a slot, and what to do. Raises `ImpossibleEvent`."""
    try:
        return SLOT_TRANSITIONS[phase][event]
    except KeyError:
        raise ImpossibleEvent(
            f"the event {event.name} is impossible for a slot in the phase {phase.name}"
        ) from None


def after_fence_event(
    phase: FencePhase, event: FenceEvent
) -> tuple[FencePhase, FenceAction | None]:
    """The next phase of a fence, and what to do. Raises `ImpossibleEvent`."""
    try:
        return FENCE_TRANSITIONS[phase][event]
    except KeyError:
        raise ImpossibleEvent(
            f"the event {event.name} is impossible for a fence in the phase {phase.name}"
        ) from None
