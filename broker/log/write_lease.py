"""The right of an appender to write to an engine, and how long it lasts.

A broker that is alone has `EndlessLease`. In a cluster the right comes from the broker's session:
`SessionWriteLease`. Another broker may take over when the session ends, and then fences the lanes
by their block numbers (broker/log/fence.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from broker.log.fence import burn
from broker.log.partition import PartitionLog
from broker.log.partition_sql import IS_PARTITION, log_parameters
from storage.engine import Engine


@dataclass(frozen=True, slots=True)
class SentBlock:
    """A block that was sent: its number in its lane, and its first row."""

    lane: int
    number: int
    append_time_ms: int
    partition: PartitionLog
    offset: int


class WriteLease(Protocol):
    """Checked before every attempt to insert, and again before anything is acknowledged."""

    @property
    def identity(self) -> int | UUID:
        """Makes insert tokens unique: a session, or one start of a process."""

    @property
    def is_fenced(self) -> bool:
        """Whether a successor fences the lanes: then no block number may be left unused."""

    @property
    def away_after_ms(self) -> int | None:
        """How long clients wait for an engine that does not answer; None: without limit."""

    def is_valid(self) -> bool:
        """False once the lease is over, and never true again."""

    def days(self) -> range:
        """The days since 1970 of which rows may be written."""

    async def is_stored(self, engine: Engine, block: SentBlock) -> bool:
        """Whether a block is stored that the engine refused, or whose token is used.

        If not, it never will be with this number. Raises `EngineError`.
        """


_EVERY_DAY = range(1 << 32)


@dataclass(frozen=True, slots=True)
class EndlessLease:
    """`WriteLease` of a broker that is alone. `identity` is new at each start of the process."""

    identity: UUID
    is_fenced: bool = False
    away_after_ms: int | None = None

    def is_valid(self) -> bool:
        return True

    def days(self) -> range:
        return _EVERY_DAY

    async def is_stored(self, engine: Engine, block: SentBlock) -> bool:
        """Looks for its first row: nobody else writes to this engine."""
        return await _has_first_row(engine, block)


class WritingSession(Protocol):
    """One session of a broker, from its start to its end."""

    @property
    def session_id(self) -> int: ...

    def may_serve(self) -> bool:
        """False once the session is over, and never true again."""

    def days(self, shard: str) -> range:
        """The days since 1970 of which it may write rows there, by its row in the registry."""


AWAY_AFTER_MS = 3000
"""How long clients wait for a shard that does not answer."""


class SessionWriteLease:
    """`WriteLease` of one session of a broker on one shard."""

    is_fenced = True

    def __init__(
        self, session: WritingSession, shard: str, away_after_ms: int | None = AWAY_AFTER_MS
    ) -> None:
        self.identity = session.session_id
        self.away_after_ms = away_after_ms
        self._session = session
        self._shard = shard

    def is_valid(self) -> bool:
        return self._session.may_serve()

    def days(self) -> range:
        return self._session.days(self._shard)

    async def is_stored(self, engine: Engine, block: SentBlock) -> bool:
        """Burns its number: a burnt block can never be stored, however late it arrives.

        A number that cannot be burnt was used, with the rows or without (`TokenUsed`).
        """
        is_burnt = await burn(engine, self.identity, block.lane, block.number, block.append_time_ms)
        return not is_burnt and await _has_first_row(engine, block)


async def _has_first_row(engine: Engine, block: SentBlock) -> bool:
    found = await engine.rows(
        f"SELECT count() FROM messages WHERE {IS_PARTITION} AND offset = {{offset:Int64}}",
        log_parameters(block.partition) | {"offset": block.offset},
    )
    return found != [[0]]
