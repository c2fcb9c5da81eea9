"""Runs the feeds of typed tables: each in a task of its own.

Definitions are read every second (`brokerhouse tables` writes them). A feed takes the partitions of
its topics that are led here in turn; a block begins when records wait for `interval_ms`, and it
ends at the last stable offset. This process is a member of each feed's group, which shows how far
the feed is (groups.py). host.py says where feeds find what they need.

docs/tables.md is for users, feeds/ has the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import uuid4

from brokerhouse.broker.feeds.groups import FeedMember, delete_group
from brokerhouse.broker.feeds.host import FeedHost, FeedPartition, FeedSessions, source_of
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Backoff, Outage, Periodic, cancel
from brokerhouse.coordinator.messages import OffsetCommit
from brokerhouse.feeds.blocks import BlockCounts
from brokerhouse.feeds.definition import AT_OFFSET, FeedDefinition, FeedStatus
from brokerhouse.feeds.feeder import PartitionFeeder
from brokerhouse.feeds.progress import FeedProgress, Fenced, first_offset
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0


class _RunningFeed:
    """One feed, until it is closed."""

    def __init__(self, host: FeedHost, feeder: str, feed: FeedDefinition) -> None:
        self.feed = feed
        self._host = host
        self._feeder = feeder
        self._sessions = FeedSessions(host, feed)
        self._feeders: dict[FeedPartition, PartitionFeeder] = {}
        self._replayed: set[FeedPartition] = set()
        self._member = FeedMember(host.groups, feed.group_id, self._fed_here, self._positions)
        self._failure = ""
        """Why it does not feed at the moment."""
        self.task = asyncio.create_task(self._run(), name=f"feed-{feed.name}")
        self._member.loop.start()

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """They end only because of a bug."""
        return [self.task, *self._member.loop.background]

    async def close(self) -> None:
        """Stop. The group still has this process, for a feed that begins again at once."""
        await self._member.loop.close()
        await cancel(self.task)
        await self._sessions.close()

    async def leave_group(self) -> None:
        """After `close`: this process does not feed it any more."""
        await self._member.leave()

    async def _run(self) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        is_prepared = False
        while True:
            try:
                begun_s = time.monotonic()
                partitions = self._partitions()
                if partitions and not is_prepared:
                    await self._sessions.prepare()
                    is_prepared = True
                await self._feed(partitions)
                backoff.reset()
                self._goes_on()
                await asyncio.sleep(
                    max(0.0, begun_s + self.feed.interval_ms / 1000 - time.monotonic())
                )
            except EngineError as error:
                is_prepared = False
                self._has_failed(error)
                await asyncio.sleep(backoff.advance())

    def _has_failed(self, error: EngineError) -> None:
        """A line for each reason, not for each attempt."""
        if str(error) != self._failure:
            log.warning(
                "feed %s failed, and is retried: %s",
                self.feed.name,
                error,
                extra=counted(self.feed.name),
            )
        self._failure = str(error)

    def _goes_on(self) -> None:
        if self._failure:
            log.info("feed %s goes on", self.feed.name, extra=counted(self.feed.name))
        self._failure = ""

    def _partitions(self) -> Sequence[FeedPartition]:
        found = self._host.partitions.of_topics(self.feed.topics)
        for gone in self._feeders.keys() - set(found):
            del self._feeders[gone]
        return sorted(found, key=lambda one: (one.topic.name, one.partition))

    async def _feed(self, partitions: Sequence[FeedPartition]) -> None:
        """A step in each. Raises the last `EngineError`: a shard that is away holds up no other."""
        failure: EngineError | None = None
        for partition in partitions:
            try:
                await self._feed_partition(partition)
            except EngineError as error:
                self._feeders.pop(partition, None)
                failure = error
        if failure is not None:
            raise failure

    async def _feed_partition(self, partition: FeedPartition) -> None:
        try:
            feeder = self._feeders.get(partition) or await self._open(partition)
            if feeder is None:
                return
            self._feeders[partition] = feeder
            if self.feed.replay_asked_ms and partition not in self._replayed:
                await self._replay(partition, feeder)
            dead_letters = await feeder.step(partition.last_stable_offset)
        except Fenced as error:
            log.info("%s", error)
            self._feeders.pop(partition, None)
            return
        if dead_letters:
            log.warning(
                "feed %s: %d records of %s are dead letters",
                self.feed.name,
                dead_letters,
                partition,
                extra=counted(self.feed.name),
            )
            if self.feed.stop_on_error:
                await self._host.definitions.pause(self.feed)

    async def _replay(self, partition: FeedPartition, feeder: PartitionFeeder) -> None:
        counted = await feeder.replay()
        self._replayed.add(partition)
        if counted != BlockCounts():
            log.info(
                "feed %s: dead letters of %s were parsed again: %d rows, %d are still dead",
                self.feed.name,
                partition,
                counted.rows,
                counted.dead_letters,
            )

    async def _open(self, partition: FeedPartition) -> PartitionFeeder | None:
        """None if the feed cannot begin in this partition yet."""
        source = source_of(partition)
        progress = FeedProgress(
            self._host.registry, self._host.rows(partition), self.feed, source, self._feeder
        )
        first = 0 if await progress.exists() else await self._first_offset(partition)
        if first is None:
            return None
        await progress.open(first)
        return PartitionFeeder(self.feed, source, progress, self._sessions.shards_of(partition))

    async def _first_offset(self, partition: FeedPartition) -> int | None:
        """None if the router that made the feed has not begun in this partition yet."""
        if router := self.feed.options.router:
            return await first_offset(self._host.registry, router, source_of(partition))
        if self.feed.start == "earliest":
            return partition.log_start_offset
        if self.feed.start == "latest":
            return partition.last_stable_offset
        if self.feed.start.startswith(AT_OFFSET):
            offset = int(self.feed.start.removeprefix(AT_OFFSET))
            return min(max(offset, partition.log_start_offset), partition.last_stable_offset)
        found = await self._host.first_since(partition, int(self.feed.start))
        return partition.last_stable_offset if found is None else found

    def _fed_here(self) -> Mapping[str, list[int]]:
        """For the group. Also what cannot be fed at the moment: nobody else does."""
        found: dict[str, list[int]] = {}
        for one in self._host.partitions.of_topics(self.feed.topics):
            found.setdefault(one.topic.name, []).append(one.partition)
        return {topic: sorted(numbers) for topic, numbers in sorted(found.items())}

    def _positions(self) -> Sequence[OffsetCommit]:
        return [
            OffsetCommit(
                one.topic.name, one.topic_id, one.partition, feeder.next_offset, -1, "", None
            )
            for one, feeder in self._feeders.items()
        ]


class TableFeeds(Periodic):
    """Starts and stops feeds as their definitions say."""

    def __init__(self, host: FeedHost) -> None:
        """The host is closed here."""
        super().__init__("feeds", _LOOK_EVERY_S, self._look, at_once=True)
        self._host = host
        self._feeder = str(uuid4())
        self._running: dict[str, _RunningFeed] = {}
        self._known: dict[str, FeedDefinition] = {}
        self._told: set[str] = set()
        self._outage = Outage(log, "feeds cannot be read", "feeds can be read again")

    async def close(self) -> None:
        await super().close()
        for one in self._running.values():
            await one.close()
            await one.leave_group()
        self._running.clear()
        await self._host.close()

    async def _look(self) -> None:
        for running in self._running.values():
            for task in running.tasks:
                if task.done():
                    task.result()  # a bug: it is to be seen
        try:
            found, wrong = await self._host.definitions.newest()
        except EngineError as error:
            self._outage.failed(error)
            return
        self._outage.worked()
        for sentence in set(wrong) - self._told:
            log.warning("%s", sentence)
        self._told = set(wrong)
        wanted = {feed.feed_id: feed for feed in found if feed.status is FeedStatus.RUNNING}
        for feed_id, running in list(self._running.items()):
            if wanted.get(feed_id) != running.feed:
                await self._running.pop(feed_id).close()
                if feed_id not in wanted:
                    await running.leave_group()
        for feed_id, feed in wanted.items():
            if feed_id not in self._running:
                self._running[feed_id] = _RunningFeed(self._host, self._feeder, feed)
        await self._forget_dropped(found)

    async def _forget_dropped(self, found: Sequence[FeedDefinition]) -> None:
        """Delete the groups of feeds that are not there any more."""
        known, self._known = self._known, {feed.feed_id: feed for feed in found}
        names = {feed.name for feed in found}
        for feed_id, feed in known.items():
            if feed_id not in self._known and feed.name not in names:
                await delete_group(self._host.groups, feed.group_id)
