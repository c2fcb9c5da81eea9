"""Removes the rows of deleted topics, once no broker can write to them any more.

A deleted topic stays in the store until its rows are removed, so what a kill interrupted is found
again at the next start: the rows are removed once more, which does no harm, and then the topic is
forgotten. In a cluster one broker does it for all, after every broker has read that the topic is
deleted and has stored the blocks that it had in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.topic_store import TopicShard, TopicStore
from brokerhouse.broker.topics.watched_topics import WatchedTopics
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, Periodic, event_within
from brokerhouse.storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_AT_ONCE = 250
"""So many topics are in one statement."""


async def remove_rows(engine: Engine, topics: Sequence[Topic]) -> None:
    """Start deleting the records of topics. Raises `EngineError`.

    The engine keeps the deletion over restarts. Waiting for it would keep a reader from others, for
    as long as disk space is low.
    """
    await engine.execute(
        "DELETE FROM messages WHERE topic IN {topics:Array(String)}"
        " AND topic_id IN {topic_ids:Array(UUID)} SETTINGS lightweight_deletes_sync = 0",
        {
            "topics": [topic.name for topic in topics],
            "topic_ids": [str(topic.topic_id) for topic in topics],
        },
    )


class TopicCleanup(Periodic):
    """The task that does it: at the start, after each deletion, and again while any is left."""

    def __init__(
        self,
        store: TopicStore,
        topics: WatchedTopics,
        shards: Collection[TopicShard],
        is_mine: Callable[[], bool] = lambda: True,
        others_have_read: Callable[[int], bool] = lambda version: True,
    ) -> None:
        """`is_mine`: whether this broker has to do it now.

        `others_have_read`: whether every other broker has read this version of the topics.
        """
        super().__init__("deleted-topics", 0.0, self._round_when_due, at_once=True)
        self._store = store
        self._topics = topics
        self._shards = shards
        self._is_mine = is_mine
        self._others_have_read = others_have_read
        self._announced: dict[UUID, int] = {}
        self._outage = Outage(
            log,
            f"cannot remove the rows of deleted topics, retrying every {_EVERY_S:.0f} s",
            "the rows of deleted topics can be removed again",
        )

    async def _round_when_due(self) -> None:
        has_deleted = self._topics.settling.has_deleted
        has_deleted.clear()
        await self.round()
        await event_within(has_deleted, _EVERY_S)

    async def round(self) -> None:
        """Remove the rows of every topic that no broker writes to any more."""
        if not self._topics.gone or not self._is_mine():
            return
        try:
            unwritten = await self._unwritten()
            for at in range(0, len(unwritten), _AT_ONCE):
                await self._remove(unwritten[at : at + _AT_ONCE])
        except EngineError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    async def _unwritten(self) -> list[Topic]:
        async with self._topics.held_still():  # nobody deletes a topic in between
            deleted = await self._store.deleted()
            known = self._announced
            self._announced = {
                one.topic_id: known[one.topic_id] for one in deleted if one.topic_id in known
            }
            new = [one.topic_id for one in deleted if one.topic_id not in known]
            if new:
                self._announced |= dict.fromkeys(new, await self._store.announce_deleted())
        return [one for one in deleted if self._have_read(self._announced[one.topic_id])]

    def _have_read(self, version: int) -> bool:
        return self._topics.settling.seen >= version and self._others_have_read(version)

    async def _remove(self, topics: Sequence[Topic]) -> None:
        for shard in self._shards:
            await remove_rows(shard.engine, topics)
        await self._store.forget(topics)
        self._topics.gone.difference_update(str(topic.topic_id) for topic in topics)
        for topic in topics:
            log.info("the rows of deleted topic %s are being deleted", topic.name, extra=counted())
