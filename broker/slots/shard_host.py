"""What a broker runs on one shard: the lanes that write to it, and the groups stored on it.

The appender belongs to one session of the broker: its tokens carry the session's id, and it is
abandoned when that session ends. Everything else outlives sessions. A single broker has one shard,
its embedded engine, and one session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from brokerhouse.broker.from_settings import append_limits, group_coordinator
from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.rollup import CountedMinutes
from brokerhouse.broker.log.row_sources import ShardRows
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.write_lease import WriteLease, WritingSession
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.topics.topic_store import TopicShard
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.slots import Duties, OwnSlots
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.row_lane import RowLane


class ShardEngine(Engine, Protocol):
    """A shard: `storage.shards.Shard`, or the embedded engine of a single broker."""

    name: str
    away: bool
    """Whether it does not answer."""

    @property
    def failures_ms(self) -> Mapping[str, int]:
        """When each server has last failed, in ms since 1970: by URL."""

    def expect_foreign_writes(self) -> None:
        """Other brokers may have written here: catch up before the next read."""


@dataclass(slots=True)
class Writing:
    """The appender of a session. For what it promises see `ShardHost.floor_ms`."""

    session: WritingSession
    appender: Appender


class ShardHost:
    """One shard, as this broker uses it."""

    def __init__(
        self,
        engine: ShardEngine,
        settings: Settings,
        cache: TailCache,
        slots: OwnSlots,
        is_housekeeper: Callable[[str], bool],
        decompressions: Decompressions,
        stored: ShardRows | None = None,
    ) -> None:
        """`is_housekeeper`: whether this broker is the housekeeper of the shard with this name.

        `stored`: how rows are read, if they are not in a table when they are acknowledged.
        """
        self.name = engine.name
        self.engine = engine
        self.stored = stored or ShardRows(engine)
        self.counted = CountedMinutes(engine, wall_ms)
        self._settings = settings
        self._cache = cache
        self._decompressions = decompressions
        self._is_housekeeper = is_housekeeper
        self.rows = RowLane(engine, settings.lanes, uuid4(), self.may_serve)
        duties = Duties(self.may_serve, self.is_housekeeper, slots.serves_all)
        self.groups = group_coordinator(settings, engine, self.rows, duties)
        self.writing: Writing | None = None
        self._floor_ms = 0
        self._beginning = asyncio.Lock()

    def is_housekeeper(self) -> bool:
        """Whether this broker does what one broker has to do for the whole shard."""
        return self._is_housekeeper(self.name)

    @property
    def patient(self) -> Engine:
        """Its engine, for work in the background, which can wait."""
        return self.stored.patient

    @property
    def appender(self) -> Appender | None:
        return None if self.writing is None else self.writing.appender

    def refused_records(self) -> str | None:
        """Why the shard refused records lately; None if it takes them."""
        lanes = () if self.appender is None else self.appender.lanes
        return next((why for lane in lanes if (why := lane.counts.refusal()) is not None), None)

    @property
    def resolved(self) -> tuple[int, ...]:
        """For each lane, how many of its block numbers are known to be used up."""
        appender = self.appender
        return (0,) * self._settings.lanes if appender is None else appender.resolved

    def floor_ms(self) -> int:
        """A promise: from now on no row of this session gets an append_time below this."""
        appender = self.appender
        found = wall_ms() if appender is None else appender.append_floor_ms()
        self._floor_ms = max(self._floor_ms, found)
        return self._floor_ms

    async def write_under(self, session: WritingSession) -> None:
        """Make sure that an appender of this session exists. Raises `EngineError`."""
        async with self._beginning:  # two appenders would use the same tokens
            if self.writing is None or self.writing.session is not session:
                await self.begin(Writing(session, self.appender_of(session)))

    def appender_of(self, session: WritingSession) -> Appender:
        """Of a session that has none yet; `begin` starts it."""
        return Appender(
            self.engine,
            self._cache,
            self._settings.lanes,
            append_limits(self._settings),
            WriteLease(session, self.name),
            self._decompressions,
        )

    async def begin(self, writing: Writing) -> None:
        """Accept records. Raises `EngineError`."""
        counted = await self.counted.ends()
        self._floor_ms = max(self._floor_ms, counted.until_ms)
        await writing.appender.no_row_before(self._floor_ms)
        if not writing.session.may_serve():
            raise EngineError("the session of this broker ended before its first record")
        writing.appender.start()
        self.writing = writing

    def abandon(self) -> None:
        """The session is over: send none of its blocks any more."""
        if self.writing is not None:
            self.writing.appender.abandon()
            self.writing = None
        self.groups.abandon()

    async def no_row_before(self, time_ms: int) -> None:
        """This broker's part of the promise that the roll-up needs."""
        if self.appender is not None:
            await self.appender.no_row_before(max(self._floor_ms, time_ms))
        # Only now: a block in flight has an earlier time, and a fence has to know it.
        self._floor_ms = max(self._floor_ms, time_ms)

    async def settled(self) -> None:
        """Wait for the blocks that are being stored now."""
        if self.appender is not None:
            await self.appender.settled()

    @property
    def for_topics(self) -> TopicShard:
        """As the catalog of topics uses it."""
        forget_topic = self.groups.forget_topic
        return TopicShard(self.engine, self.settled, forget_topic, lambda: self.engine.away)

    async def close(self) -> None:
        """Store what is queued, then stop."""
        async with AsyncExitStack() as parts:  # closed in reverse order; a failure stops none
            if self.appender is not None:
                parts.push_async_callback(self.appender.close)
            parts.push_async_callback(self.rows.close)
            parts.push_async_callback(self.groups.close)

    def may_serve(self) -> bool:
        return self.writing is not None and self.writing.session.may_serve()


class ShardHosts:
    """All shards, by name."""

    def __init__(self, hosts: Iterable[ShardHost]) -> None:
        self._hosts = {host.name: host for host in hosts}

    def __iter__(self) -> Iterator[ShardHost]:
        return iter(self._hosts.values())

    def of(self, shard: str) -> ShardHost:
        """Raises `EngineError` for a shard that only a newer configuration has."""
        host = self._hosts.get(shard)
        if host is None:
            raise EngineError(f"shard {shard} is not in this broker's configuration: add it")
        return host

    def reachable(self) -> list[ShardHost]:
        """The hosts whose shard answers."""
        return [host for host in self if not host.engine.away]

    @property
    def for_topics(self) -> list[TopicShard]:
        """As the catalog of topics uses them."""
        return [host.for_topics for host in self]

    def refused_records(self) -> str | None:
        """Which shard refused records lately, and why, in one sentence."""
        for host in self:
            refused = host.refused_records()
            if refused is not None:
                return f"records are refused by shard {host.name}: {refused}"
        return None

    def failures_ms(self, since_ms: int) -> dict[str, int]:
        """When servers have last failed, if that was not before `since_ms`: by URL."""
        return {
            url: at_ms
            for host in self
            for url, at_ms in host.engine.failures_ms.items()
            if at_ms >= since_ms
        }

    def broken_sessions(self) -> set[int]:
        """Sessions with a lane that ended because of a bug: a new session is needed."""
        writing = (host.writing for host in self)
        return {
            one.session.session_id for one in writing if one is not None and one.appender.has_ended
        }
