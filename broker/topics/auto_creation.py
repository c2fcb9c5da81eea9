"""Creates the topics that clients ask for in Metadata, many in one stored change.

Kafka answers such a request at once, with UNKNOWN_TOPIC_OR_PARTITION, and creates the topics in the
background; clients ask again. This broker waits for a while before it answers, so most clients find
their topics in the first answer. Names that arrive while topics are being created are created
together afterwards, each once, however many clients ask for it. The
catalog (catalog.py) does not know who asks, or why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from brokerhouse.broker.topics.catalog import MAX_NEW_PARTITIONS, NewTopic, Outcome, TopicCatalog
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import cancel
from brokerhouse.protocol.errors import KafkaError
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_WAIT_S = 2.0
"""How long a request waits for its topics. Clients wait 30 s and more for an answer."""


class AutoCreation:
    """The topics that are being created because clients asked for them."""

    def __init__(self, topics: TopicCatalog, partitions: int) -> None:
        """`partitions`: how many each topic gets."""
        self._topics = topics
        self._partitions = partitions
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def create(self, names: Iterable[str]) -> None:
        """Create topics with these names, which have been checked.

        Returns when each exists or was refused, or after `_WAIT_S`: look for them in the catalog.
        What is more than Kafka's limit for one change stays unknown until others are created.
        """
        waiting = []
        for name in names:
            attempt = self._pending.get(name)
            if attempt is None:
                if len(self._pending) * self._partitions >= MAX_NEW_PARTITIONS:
                    continue
                attempt = self._pending[name] = asyncio.get_running_loop().create_future()
            waiting.append(attempt)
        if not waiting:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._create_pending(), name="auto-creation")
        await asyncio.wait(waiting, timeout=_WAIT_S)

    async def close(self) -> None:
        """Stop creating topics. Requests that wait are answered."""
        await cancel(self._task)

    async def _create_pending(self) -> None:
        try:
            while self._pending:
                names = list(self._pending)
                await self._create(names)
                self._answer(names)
        finally:
            self._answer(list(self._pending))

    def _answer(self, names: Iterable[str]) -> None:
        for name in names:
            self._pending.pop(name).set_result(None)

    async def _create(self, names: Iterable[str]) -> None:
        new = [NewTopic(name, self._partitions) for name in names]
        outcomes: Mapping[str, Outcome]
        try:
            outcomes = await self._topics.create_all(new)
        except (KafkaError, EngineError) as error:
            outcomes = {one.name: error for one in new}
        for name, outcome in outcomes.items():
            if isinstance(outcome, EngineError):
                count = sum(isinstance(one, EngineError) for one in outcomes.values())
                log.error(
                    "cannot create %d topics, such as %s: %s",
                    count,
                    name,
                    outcome,
                    extra=counted(),
                )
                break
