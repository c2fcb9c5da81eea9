"""The states of a consumer group, and the table that moves it from one to the next.

`coordinator.rebalance.Rebalance` looks every event up in `TRANSITIONS`. It either refuses the
event, or enters the next state and does its actions. An event that is not in the table of a state
can only happen in that state because of a bug.

No request causes `EVERYBODY_JOINED` and `EVERYBODY_GONE` directly. They are raised as soon as the
wait for members is over, for whatever reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from types import MappingProxyType

from brokerhouse.protocol.errors import KafkaError, RebalanceInProgress


class GroupState(StrEnum):
    """Named as Kafka's tools show them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    """What can happen to a group."""

    MEMBER_SUBSCRIBED = auto()
    """A new member joined, or a member joined again with other protocols or metadata."""
    FOLLOWER_REJOINED = auto()
    """A member joined again and nothing about it changed. Its first answer may have been lost."""
    LEADER_REJOINED = auto()
    """The leader joined again and nothing about it changed: it wants to assign partitions again,
    because topics have changed, for example."""
    STATIC_MEMBER_REPLACED = auto()
    """A new process took the place of a static member; the group's protocol need not change."""
    MEMBERS_REMOVED = auto()
    """Members left, fell silent, or did not synchronise in time."""
    EVERYBODY_JOINED = auto()
    """The wait for members is over, and there are members."""
    EVERYBODY_GONE = auto()
    """The wait for members is over, and there are none."""
    FOLLOWER_SYNCED = auto()
    """A member asks for its assignment."""
    LEADER_SYNCED = auto()
    """The leader sends the assignment of every member."""
    HEARTBEAT = auto()
    DELETED = auto()


class GroupAction(Enum):
    """What is done once the next state has been entered. The methods of `Rebalance` do it."""

    BEGIN_FIRST_WAIT = auto()
    """Wait a fixed time for the first members to come (KIP-134)."""
    BEGIN_WAIT = auto()
    """Tell every member to join again, and wait until all have."""
    PARK_JOIN = auto()
    """Store what the member sent, and let its JoinGroup wait for the next generation."""
    TELL_GENERATION = auto()
    """Answer a JoinGroup with the current generation."""
    TELL_REPLACEMENT = auto()
    """Answer a static member's new process with the current generation (KIP-814)."""
    BEGIN_GENERATION = auto()
    """Answer every JoinGroup, and wait for the leader's assignment."""
    PARK_SYNC = auto()
    """Let a SyncGroup wait for the assignment."""
    ASSIGN = auto()
    """Store the assignment that the leader has sent, and answer every SyncGroup with it."""
    TELL_ASSIGNMENT = auto()
    """Answer a SyncGroup with the current assignment."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Enter `state`, then do `actions` in this order."""

    state: GroupState
    actions: tuple[GroupAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request that caused the event is refused; the state stays."""

    error: type[KafkaError]
    reason: str


def _to(state: GroupState, *actions: GroupAction) -> Transition:
    return Transition(state, actions)


_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD

TRANSITIONS: Mapping[GroupState, Mapping[GroupEvent, Transition | Refusal]] = MappingProxyType(
    {
        # No members; offsets may be left.
        _EMPTY: {
            GroupEvent.MEMBER_SUBSCRIBED: _to(_PREPARING, GroupAction.BEGIN_FIRST_WAIT),
            GroupEvent.DELETED: _to(_DEAD),
        },
        # Waits until every member has joined again, or for the rebalance time-out.
        _PREPARING: {
            GroupEvent.MEMBER_SUBSCRIBED: _to(_PREPARING),
            GroupEvent.FOLLOWER_REJOINED: _to(_PREPARING, GroupAction.PARK_JOIN),
            GroupEvent.LEADER_REJOINED: _to(_PREPARING, GroupAction.PARK_JOIN),
            GroupEvent.STATIC_MEMBER_REPLACED: _to(_PREPARING),
            GroupEvent.MEMBERS_REMOVED: _to(_PREPARING),
            GroupEvent.EVERYBODY_JOINED: _to(_COMPLETING, GroupAction.BEGIN_GENERATION),
            GroupEvent.EVERYBODY_GONE: _to(_EMPTY),
            GroupEvent.FOLLOWER_SYNCED: Refusal(
                RebalanceInProgress, "Another rebalance has begun. Join again."
            ),
            GroupEvent.LEADER_SYNCED: Refusal(
                RebalanceInProgress, "Another rebalance has begun. Join again."
            ),
            GroupEvent.HEARTBEAT: Refusal(
                RebalanceInProgress, "A rebalance has begun. Join again."
            ),
            GroupEvent.DELETED: _to(_DEAD),
        },
        # A generation has begun and waits for the leader's assignment.
        _COMPLETING: {
            GroupEvent.MEMBER_SUBSCRIBED: _to(_PREPARING, GroupAction.BEGIN_WAIT),
            GroupEvent.FOLLOWER_REJOINED: _to(_COMPLETING, GroupAction.TELL_GENERATION),
            GroupEvent.LEADER_REJOINED: _to(_COMPLETING, GroupAction.TELL_GENERATION),
            # The leader may already be assigning partitions to the old process.
            GroupEvent.STATIC_MEMBER_REPLACED: _to(_PREPARING, GroupAction.BEGIN_WAIT),
            GroupEvent.MEMBERS_REMOVED: _to(_PREPARING, GroupAction.BEGIN_WAIT),
            GroupEvent.FOLLOWER_SYNCED: _to(_COMPLETING, GroupAction.PARK_SYNC),
            GroupEvent.LEADER_SYNCED: _to(_STABLE, GroupAction.PARK_SYNC, GroupAction.ASSIGN),
            GroupEvent.HEARTBEAT: _to(_COMPLETING),
            GroupEvent.DELETED: _to(_DEAD),
        },
        # Every member has its assignment, or can ask for it.
        _STABLE: {
            GroupEvent.MEMBER_SUBSCRIBED: _to(_PREPARING, GroupAction.BEGIN_WAIT),
            GroupEvent.FOLLOWER_REJOINED: _to(_STABLE, GroupAction.TELL_GENERATION),
            GroupEvent.LEADER_REJOINED: _to(
                _PREPARING, GroupAction.PARK_JOIN, GroupAction.BEGIN_WAIT
            ),
            GroupEvent.STATIC_MEMBER_REPLACED: _to(_STABLE, GroupAction.TELL_REPLACEMENT),
            GroupEvent.MEMBERS_REMOVED: _to(_PREPARING, GroupAction.BEGIN_WAIT),
            GroupEvent.FOLLOWER_SYNCED: _to(
                _STABLE, GroupAction.PARK_SYNC, GroupAction.TELL_ASSIGNMENT
            ),
            GroupEvent.LEADER_SYNCED: _to(
                _STABLE, GroupAction.PARK_SYNC, GroupAction.TELL_ASSIGNMENT
            ),
            GroupEvent.HEARTBEAT: _to(_STABLE),
            GroupEvent.DELETED: _to(_DEAD),
        },
        # Deleted: `Group` refuses every request, before it asks who sends it.
        _DEAD: {},
    }
)
"""From each state, what each event leads to."""
