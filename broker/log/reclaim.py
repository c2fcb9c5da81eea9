"""Frees a disk that is full, after topics or records were deleted.

Deletions are noted first and done later: a deletion writes masks, and merges leave out what is
masked. On a full disk there is no space for either. While deleting uses the reserve of the disk
(storage/disk_reserve.py), this module does the same with less space, the cheapest first:

* parts that ClickHouse has set aside and whose rows it has elsewhere are dropped;
* parts of the log without a row that consumers can read are dropped;
* if that is not enough, parts with such rows are written again without them, one statement for each
  day, one day at a time. No part is larger than what the reserve has room for.

Which rows can be read, the catalog and the open logs say. They are asked after the parts were read:
a record that is stored meanwhile is in a new part. A part that is dropped loses its deduplication
tokens with it, which a broker that is alone does not need: its journal knows what was stored.
Damaged parts that ClickHouse has set aside stay: they may hold the only copy of records.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from brokerhouse.broker.log.checkpoints import Key
from brokerhouse.broker.log.open_logs import OpenLogs
from brokerhouse.broker.log.sweep import log_starts_below
from brokerhouse.common.tasks import Outage, Periodic
from brokerhouse.sql.queries import query
from brokerhouse.storage.disk_reserve import DiskReserve
from brokerhouse.storage.engine import Engine, EngineError

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_NO_SUCH_PART = 232
_REMOVE_OLD = "ALTER TABLE messages DROP PARTITION ID '19700101'"
"""There is no such day. ClickHouse removes the parts that were replaced, as it does after every
drop; by itself it does not while a mutation waits for space (26.9)."""


@dataclass(slots=True)
class _Part:
    """A part of the log, and which of its rows nobody can read."""

    day: str
    has_mask: bool
    is_readable: bool = False
    deleted_topics: set[UUID] = field(default_factory=set)
    below_start: set[Key] = field(default_factory=set)

    @property
    def has_dead_rows(self) -> bool:
        return self.has_mask or bool(self.deleted_topics) or bool(self.below_start)


class Reclaim:
    """Looks once a second whether deleting uses the reserve, and goes on until it has freed all.

    It ends earlier when a quarter of the disk is free.
    """

    def __init__(
        self,
        engine: Engine,
        logs: OpenLogs,
        topic_exists: Callable[[UUID], bool],
        reserve: DiskReserve,
    ) -> None:
        """`engine`: without its journal, which may wait for space."""
        self._engine = engine
        self._logs = logs
        self._topic_exists = topic_exists
        self._reserve = reserve
        self._outage = Outage(log, "cannot free disk space", "disk space can be freed again")
        self._seen: tuple[frozenset[str], int] | None = None
        self._is_active = False
        self.periodic = Periodic("reclaim", _EVERY_S, self._look)

    async def _look(self) -> None:
        if not self._reserve.is_held:
            self._is_active = True
        elif self._reserve.is_roomy:
            self._is_active = False
        if not self._is_active:
            self._seen = None
            return
        try:
            await self.round()
        except EngineError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    async def round(self) -> None:
        """Free what can be freed now. Raises `EngineError`."""
        await self._engine.execute(_REMOVE_OLD)
        for (name,) in await self._engine.rows(query("parts_set_aside")):
            await self._engine.execute(
                f"ALTER TABLE messages DROP DETACHED PART '{name}' SETTINGS allow_drop_detached = 1"
            )
        stored = await self._engine.rows(query("parts_of_log"))
        parts = {name: _Part(day, bool(mask)) for name, day, _, mask in stored}
        starts = {(one.topic_id, one.partition): one.log_start_offset for one in self._logs.all()}
        state = frozenset(parts), hash(frozenset(starts.items()))
        if state == self._seen:
            self._is_active = not self._reserve.is_held
            return
        await self._read(parts)
        dropped = [name for name, part in parts.items() if not part.is_readable]
        for name in dropped:
            await self._drop(name)
        if dropped:
            log.info("dropped %d parts that had only deleted records", len(dropped))
        if await self._engine.rows(query("unfinished_changes")) != [[0]]:
            return  # it makes new parts; they are looked at then
        left = [part for part in parts.values() if part.is_readable and part.has_dead_rows]
        if left:
            await self._rewrite(min(part.day for part in left), left)
        elif not dropped:
            self._seen = state

    async def _read(self, parts: Mapping[str, _Part]) -> None:
        found = await self._engine.rows(query("offsets_by_part"))
        for name, topic, topic_text, partition, last, first in found:
            part = parts.get(name)
            if part is None:
                continue
            topic_id = UUID(topic_text)
            opened = self._logs.find(topic_id, partition)
            if not topic:  # a fence, not a record
                part.is_readable = True
            elif not self._topic_exists(topic_id):
                part.deleted_topics.add(topic_id)
            elif opened is None:  # it could not be opened: where it starts is unknown
                part.is_readable = True
            else:
                part.is_readable |= last >= opened.log_start_offset
                if first < opened.log_start_offset:
                    part.below_start.add((topic_id, partition))

    async def _drop(self, name: str) -> None:
        try:
            await self._engine.execute(
                f"ALTER TABLE messages DROP PART '{name}' SETTINGS max_partition_size_to_drop = 0"
            )
        except EngineError as error:
            if error.code != _NO_SUCH_PART:  # merged meanwhile
                raise

    async def _rewrite(self, day: str, left: Collection[_Part]) -> None:
        here = [part for part in left if part.day == day]
        deleted = sorted(set().union(*(part.deleted_topics for part in here)))
        below: defaultdict[Key, int] = defaultdict(int)
        for key in set().union(*(part.below_start for part in here)):
            opened = self._logs.find(*key)
            if opened is not None:
                below[key] = opened.log_start_offset
        statements = [f"topic_id = '{topic_id}'" for topic_id in deleted]
        statements += log_starts_below(below)
        for which in statements:
            await self._engine.execute(
                f"ALTER TABLE messages DELETE IN PARTITION ID '{day}' WHERE {which}"
                " SETTINGS mutations_sync = 0"
            )
        if not statements:
            await self._engine.execute(
                f"ALTER TABLE messages APPLY DELETED MASK IN PARTITION ID '{day}'"
                " SETTINGS mutations_sync = 0"
            )
        log.info("rewriting %d parts of %s without deleted records", len(here), day)
