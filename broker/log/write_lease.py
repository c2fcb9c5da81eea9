"""The right of an appender to write to an engine, and how long it lasts.

It comes from the broker's session. In a cluster, another broker may take over when the session
ends, and then fences the lanes by their block numbers (broker/log/fence.py). The session of a
single broker never ends (`EndlessSession`), and nobody fences its lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from brokerhouse.broker.log.fence import burn
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_sql import IS_PARTITION, log_parameters
from brokerhouse.storage.engine import Engine


@dataclass(frozen=True, slots=True)
class SentBlock:
    """A block that was sent: its number in its lane, and its first row."""

    lane: int
    number: int
    append_time_ms: int
    partition: PartitionLog
    offset: int


class WritingSession(Protocol):
    """One session of a broker, from its start to its end."""

    @property
    def session_id(self) -> int:
        """Makes insert tokens unique."""

    @property
    def is_fenced(self) -> bool:
        """Whether a successor fences the lanes: then no block number may be left unused."""

    def may_serve(self) -> bool:
        """False once the session is over, and never true again."""

    def days(self, shard: str) -> range:
        """The days since 1970 of which it may write rows there, by its row in the registry."""


_EVERY_DAY = range(1 << 32)


@dataclass(frozen=True, slots=True)
class EndlessSession:
    """The session of a broker that no other broker replaces, as it is alone."""

    session_id: int = field(default_factory=lambda: uuid4().int)
    """New at each start of the process."""
    is_fenced: bool = False

    def may_serve(self) -> bool:
        return True

    def is_housekeeper(self, shard: str) -> bool:
        return True

    def days(self, shard: str) -> range:
        return _EVERY_DAY


AWAY_AFTER_MS = 3000
"""How long clients wait for a shard that does not answer."""


class WriteLease:
    """What one session of a broker may write to one shard.

    Checked before every attempt to insert, and again before anything is acknowledged.
    """

    def __init__(
        self, session: WritingSession, shard: str, away_after_ms: int = AWAY_AFTER_MS
    ) -> None:
        self.is_valid = session.may_serve
        self.is_fenced = session.is_fenced
        self.away_after_ms = away_after_ms if session.is_fenced else None
        """How long clients wait for an engine that does not answer. None: without limit, because no
        other broker can reach it either."""
        self.identity = session.session_id
        self._session = session
        self._shard = shard

    def days(self) -> range:
        """The days since 1970 of which rows may be written."""
        return self._session.days(self._shard)

    async def is_stored(self, engine: Engine, block: SentBlock) -> bool:
        """Whether a block is stored that the engine refused, or whose token is used.

        If not, it never will be with this number. Raises `EngineError`. Where a successor may fence
        the lane, the number is burnt: a burnt block can never be stored, however late it arrives. A
        number that cannot be burnt was used, with the rows or without (`TokenUsed`).
        """
        if self.is_fenced and await burn(
            engine, self.identity, block.lane, block.number, block.append_time_ms
        ):
            return False
        return await _has_first_row(engine, block)


async def _has_first_row(engine: Engine, block: SentBlock) -> bool:
    found = await engine.rows(
        f"SELECT count() FROM messages WHERE {IS_PARTITION} AND offset = {{offset:Int64}}",
        log_parameters(block.partition) | {"offset": block.offset},
    )
    return found != [[0]]
