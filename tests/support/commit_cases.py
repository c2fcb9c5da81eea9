"""Who may commit offsets of a group, as Kafka decides it: every cell, with the answer that it gets.

Read from `ClassicGroup.validateOffsetCommit`, `OffsetMetadataManager.validateOffsetCommit` and
`OffsetMetadataManager.validateTransactionalOffsetCommit`, not from the broker's own table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from brokerhouse.protocol import errors
from brokerhouse.protocol.errors import KafkaError

ABSENT, DEAD = "absent", "Dead"

_ANSWERS: Mapping[str, type[KafkaError] | None] = MappingProxyType(
    {
        "ok": None,
        "no-group": errors.GroupIdNotFound,
        "unknown": errors.UnknownMemberId,
        "fenced": errors.FencedInstanceId,
        "illegal": errors.IllegalGeneration,
        "rebalance": errors.RebalanceInProgress,
        "gone": errors.CoordinatorNotAvailable,
    }
)

# "-": cannot be. A group without members has none that could send, or fence.
_EXPECTED = """
OffsetCommit      absent    Empty    PreparingRebalance  CompletingRebalance  Stable   Dead
nobody   none     ok        ok       unknown             unknown              unknown  gone
nobody   current  -         unknown  unknown             unknown              unknown  gone
nobody   other    no-group  unknown  unknown             unknown              unknown  gone
stranger none     ok        ok       unknown             unknown              unknown  gone
stranger current  -         unknown  unknown             unknown              unknown  gone
stranger other    no-group  unknown  unknown             unknown              unknown  gone
fenced   none     -         -        fenced              fenced               fenced   -
fenced   current  -         -        fenced              fenced               fenced   -
fenced   other    -         -        fenced              fenced               fenced   -
member   none     -         -        illegal             illegal              illegal  -
member   current  -         -        ok                  rebalance            ok       -
member   other    -         -        illegal             illegal              illegal  -

TxnOffsetCommit   absent    Empty    PreparingRebalance  CompletingRebalance  Stable   Dead
nobody   none     ok        ok       ok                  ok                   ok       gone
nobody   current  -         unknown  unknown             unknown              unknown  gone
nobody   other    no-group  unknown  unknown             unknown              unknown  gone
stranger none     ok        ok       unknown             unknown              unknown  gone
stranger current  -         unknown  unknown             unknown              unknown  gone
stranger other    no-group  unknown  unknown             unknown              unknown  gone
fenced   none     -         -        fenced              fenced               fenced   -
fenced   current  -         -        fenced              fenced               fenced   -
fenced   other    -         -        fenced              fenced               fenced   -
member   none     -         -        illegal             illegal              illegal  -
member   current  -         -        ok                  ok                   ok       -
member   other    -         -        illegal             illegal              illegal  -
"""


@dataclass(frozen=True, slots=True)
class CommitCase:
    """One cell. `error` None: the commit is accepted."""

    request: str
    """OffsetCommit or TxnOffsetCommit."""
    sender: str
    generation: str
    state: str
    error: type[KafkaError] | None

    def __str__(self) -> str:
        return f"{self.request}-{self.state}-{self.sender}-{self.generation}"


def _cases() -> list[CommitCase]:
    cases = []
    for block in _EXPECTED.strip().split("\n\n"):
        head, *rows = (line.split() for line in block.splitlines())
        request, *states = head
        for sender, generation, *answers in rows:
            cases += [
                CommitCase(request, sender, generation, state, _ANSWERS[answer])
                for state, answer in zip(states, answers, strict=True)
                if answer != "-"
            ]
    return cases


CASES: Sequence[CommitCase] = _cases()

STATIC, OTHER_STATIC, STRANGER = "static", "nobody's", "stranger"


def identities(sender: str, dynamic_id: str, static_id: str) -> Sequence[tuple[str, str | None]]:
    """Member ids and instance ids that such a sender may name. The group has a dynamic member and
    one with the instance id `STATIC`, or their ids are those of members that have left."""
    ways: Mapping[str, Sequence[tuple[str, str | None]]] = {
        "nobody": [("", None)],
        "member": [(dynamic_id, None), (static_id, STATIC), (static_id, None)],
        "fenced": [(STRANGER, STATIC), (dynamic_id, STATIC), ("", STATIC)],
        "stranger": [(STRANGER, None), (dynamic_id, OTHER_STATIC), ("", OTHER_STATIC)],
    }
    return ways[sender]
