"""The protocol by which a block of records is stored exactly once. Pure: no clock, no storage.

A block is a range of offsets of one partition. Its intention is stored before its rows are inserted
(BEFORE), its completion behind them (AFTER). Both change the same state by compare-and-set, and the
state has an epoch that each feeder raises when it begins: one that believes it still feeds fails at
its next change, which comes before its next insert.

A feeder that finds BEFORE inserts exactly that range again, with the same token (REPLAY). Forming
it again is always possible, because the records are read again from the log by their offsets.
ClickHouse's Kafka Connect sink gives up if a batch lies inside a block whose outcome is unknown.
Here the whole block is repeated, so this needs no special case.

Sources: "ClickHouse Kafka Connect: exactly-once design" (state machine, BEFORE and AFTER), eBay's
"Block Aggregator" (replay of deterministic blocks, counts from a common reference offset).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum


class Phase(Enum):
    """What is known of the last block."""

    BEFORE = "before"  # its rows may be stored, or some of them, or none
    AFTER = "after"  # they are stored


@dataclass(frozen=True, slots=True)
class Offsets:
    """A range of offsets: `first` to `end - 1`. Never empty."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"offsets {self.first} to {self.end - 1} are no range")

    def __str__(self) -> str:
        return f"{self.first} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """What blocks have made of records: rows of the table, and dead letters."""

    rows: int = 0
    dead_letters: int = 0

    def __add__(self, other: BlockCounts) -> BlockCounts:
        return BlockCounts(self.rows + other.rows, self.dead_letters + other.dead_letters)


@dataclass(frozen=True, slots=True)
class Replay:
    """Dead letters at `offsets` that are parsed again: those that are older than `asked_ms`.

    `attempt`: as of a block.
    """

    asked_ms: int
    offsets: Offsets
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed in one partition.

    `offsets` is the last block, None before the first. `next_offset` is where the block after it
    begins. `attempt`: how often tokens of this block turned out to be used up without its rows; it
    is part of the token. `counted` is the last completed block, `total` all completed blocks from
    offset `reference` on. `shard`: where the last block's records are, and its rows; empty in the
    job `feed`, and in what single brokers stored earlier. `replay`: rows of it may be stored.
    `versions_before`: versions that the state had in the registry of a single broker, which became
    a shard; its versions in Keeper come after those.
    """

    epoch: int
    feeder: str
    phase: Phase
    next_offset: int
    reference: int
    offsets: Offsets | None = None
    attempt: int = 0
    counted: BlockCounts = BlockCounts()
    total: BlockCounts = BlockCounts()
    shard: str = ""
    replay: Replay | None = None
    versions_before: int = 0

    def as_text(self) -> str:
        """For the registry."""
        o, again = self.offsets, self.replay
        return json.dumps(
            {
                "epoch": self.epoch,
                "feeder": self.feeder,
                "phase": self.phase.value,
                "next": self.next_offset,
                "reference": self.reference,
                "offsets": None if o is None else [o.first, o.end],
                "attempt": self.attempt,
                "counted": [self.counted.rows, self.counted.dead_letters],
                "total": [self.total.rows, self.total.dead_letters],
                "shard": self.shard,
                "replay": None
                if again is None
                else [again.asked_ms, again.offsets.first, again.offsets.end, again.attempt],
                "versions_before": self.versions_before,
            },
            separators=(",", ":"),
        )


def state_from_text(text: str) -> FeedState:
    stored = json.loads(text)
    again = stored.get("replay")
    return FeedState(
        epoch=stored["epoch"],
        feeder=stored["feeder"],
        phase=Phase(stored["phase"]),
        next_offset=stored["next"],
        reference=stored["reference"],
        offsets=None if stored["offsets"] is None else Offsets(*stored["offsets"]),
        attempt=stored["attempt"],
        counted=BlockCounts(*stored["counted"]),
        total=BlockCounts(*stored["total"]),
        shard=stored.get("shard", ""),
        replay=None if again is None else Replay(again[0], Offsets(again[1], again[2]), again[3]),
        versions_before=stored.get("versions_before", 0),
    )


def moved_to_keeper(text: str, versions: int, shard: str) -> str:
    """A state of a single broker, which had this many versions, for the registry of a cluster."""
    state = state_from_text(text)
    return replace(state, shard=shard, versions_before=state.versions_before + versions).as_text()


class Case(Enum):
    """How a batch of records lies to the last block."""

    NEW = "new"
    SAME = "same"
    OVERLAPPING = "overlapping"
    CONTAINED = "contained"
    BEFORE_PREVIOUS = "before the previous"


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What to do with a batch: first `replay`, then `insert`. The rest of it is stored already.

    `skipped`: offsets between the last block and the batch that nobody has given; None if it
    follows.
    """

    case: Case
    replay: Offsets | None = None
    insert: Offsets | None = None
    skipped: Offsets | None = None


def plan(state: FeedState, batch: Offsets) -> BlockPlan:
    """What to do with a batch, in any state. Nothing of it is stored twice, and nothing left out.

    A feeder that reads the log itself asks for what follows the last block, which is NEW. Where
    somebody else decides on batches (Spark, after a restart), any case can come.
    """
    last = state.offsets
    replay = last if state.phase is Phase.BEFORE else None
    known_end = last.end if replay is not None and last is not None else state.next_offset
    first = max(batch.first, known_end)
    insert = Offsets(first, batch.end) if first < batch.end else None
    skipped = Offsets(known_end, batch.first) if batch.first > known_end else None
    return BlockPlan(_case(last, known_end, batch), replay, insert, skipped)


def _case(last: Offsets | None, known_end: int, batch: Offsets) -> Case:
    if batch.first >= known_end:
        return Case.NEW
    if last is None or batch.first < last.first:
        return Case.BEFORE_PREVIOUS
    if batch == last:
        return Case.SAME
    return Case.OVERLAPPING if batch.end > last.end else Case.CONTAINED


def first_state(feeder: str, offset: int) -> FeedState:
    """Of a feed that begins at `offset`."""
    return FeedState(1, feeder, Phase.AFTER, offset, offset)


def taken_over(state: FeedState, feeder: str) -> FeedState:
    """Another feeder, or the same after a restart, goes on: earlier ones are fenced."""
    return replace(state, epoch=state.epoch + 1, feeder=feeder)


def begun(state: FeedState, offsets: Offsets, shard: str = "") -> FeedState:
    """The intention to insert a block there. The block before it must be complete."""
    _check_complete(state)
    if offsets.first < state.next_offset:
        raise ValueError(f"offsets below {state.next_offset} are stored")
    return replace(
        state, phase=Phase.BEFORE, offsets=offsets, attempt=0, counted=BlockCounts(), shard=shard
    )


def replay_begun(state: FeedState, replay: Replay) -> FeedState:
    """The intention to insert what fits of these dead letters."""
    _check_complete(state)
    return replace(state, replay=replay)


def _check_complete(state: FeedState) -> None:
    if state.phase is not Phase.AFTER:
        raise ValueError(f"the block of {state.offsets} is not complete")
    if state.replay is not None:
        raise ValueError(f"the replay of {state.replay.offsets} is not complete")


def replay_tried_again(state: FeedState) -> FeedState:
    """As `tried_again`."""
    if state.replay is None:
        raise ValueError("no replay has begun")
    return replace(state, replay=replace(state.replay, attempt=state.replay.attempt + 1))


def replay_completed(state: FeedState) -> FeedState:
    """All of its rows are stored, and its dead letters say so."""
    if state.replay is None:
        raise ValueError("no replay has begun")
    return replace(state, replay=None)


def tried_again(state: FeedState) -> FeedState:
    """The tokens of this attempt are used up, and none of its rows is stored."""
    return replace(state, attempt=state.attempt + 1)


def completed(state: FeedState, counted: BlockCounts) -> FeedState:
    """All rows of the block are stored."""
    if state.phase is not Phase.BEFORE or state.offsets is None:
        raise ValueError("no block has begun")
    return replace(
        state,
        phase=Phase.AFTER,
        next_offset=state.offsets.end,
        counted=counted,
        total=state.total + counted,
    )


def token(feed_id: str, topic_id: str, partition: int, offsets: Offsets, attempt: int) -> str:
    """By which ClickHouse knows a block. `feed_id` is never used again for another feed."""
    base = f"{feed_id}/{topic_id}/{partition}/{offsets.first}-{offsets.end - 1}"
    return base if attempt == 0 else f"{base}/{attempt}"


def replay_name(feed_id: str, topic_id: str, partition: int, asked_ms: int) -> str:
    """What every token of a replay begins with."""
    return f"{feed_id}/{topic_id}/{partition}/replay-{asked_ms}"


def replay_token(feed_id: str, topic_id: str, partition: int, replay: Replay, attempt: int) -> str:
    """By which ClickHouse knows the rows that a replay made of some offsets."""
    first, end = replay.offsets.first, replay.offsets.end
    base = f"{replay_name(feed_id, topic_id, partition, replay.asked_ms)}/{first}-{end - 1}"
    return base if attempt == 0 else f"{base}/{attempt}"
