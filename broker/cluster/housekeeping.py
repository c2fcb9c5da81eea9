"""Housekeeping of a cluster: work that one broker does for all.

The owner of a shard's first slot is the shard's housekeeping broker. It writes topics into
`topic_versions` where another broker could not, counts the log into `partition_minutes`
(broker/log/rollup.py), and deletes rows below the start of their log (broker/log/sweep.py). Where a
log starts is decided by the owner of its slot. The owner of slot 0 removes the rows of deleted
topics (broker/topics/topic_cleanup.py), once every broker has read that they are deleted.

Two brokers may do this at the same time for a moment, while slots change hands: it does no harm to
do any of these tasks twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol
from uuid import UUID

from brokerhouse.broker.cluster.topic_registry import portions
from brokerhouse.broker.log.producer_states import ProducerStateSweep
from brokerhouse.broker.log.rollup import NotYet, PartRows, Rollup
from brokerhouse.broker.log.sweep import Sweep
from brokerhouse.broker.log.transaction_tables import TransactionSweep
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.broker.slots.shard_host import ShardHost, ShardHosts
from brokerhouse.broker.topics.topic_store import store_versions
from brokerhouse.broker.topics.watched_topics import WatchedTopics
from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import Periodic
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import LOOK_ANYWAY_S
from brokerhouse.storage.slot_map import SlotMap

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_PROMISES_LATE_MS = 5_000
"""Brokers promise with each renewal of their session which append_times they use no more."""
_ABSENT_FOR_S = 60.0
"""A topic that the registry does not have is deleted on a shard after this long."""


class Known(Protocol):
    """What this broker has read from the registry: `SlotOwner` (broker/cluster/slot_owner.py)."""

    @property
    def session_id(self) -> int: ...

    @property
    def slot_map(self) -> SlotMap | None: ...

    @property
    def sessions(self) -> Mapping[int, BrokerSession]: ...


class _AppendTimes:
    """`AppendTimes` of a shard: every broker that writes there must promise."""

    def __init__(self, host: ShardHost, owner: Known) -> None:
        self._host = host
        self._owner = owner

    async def no_row_before(self, time_ms: int) -> None:
        await self._host.no_row_before(time_ms)
        sessions, shard = self._owner.sessions, self._host.name
        for session in sessions.values():
            if session.session_id == self._owner.session_id:
                continue
            if not session.is_over and session.append_floors.get(shard, 0) < time_ms:
                raise NotYet(f"broker {session.node_id} may still write into those minutes")
        slot_map = self._owner.slot_map
        for slot in () if slot_map is None else slot_map.slots:
            owner = sessions.get(slot.owner)
            if slot.writes_to == shard and slot.owner and (owner is None or owner.is_over):
                raise NotYet("no broker owns the slots of a dead broker yet")


class Housekeeping:
    """The rounds of one broker; most of them find nothing to do."""

    def __init__(
        self,
        owner: Known,
        catalog: WatchedTopics,
        hosts: ShardHosts,
        sweep_every_ms: int,
        producer_id_expiration_ms: int,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._owner = owner
        self._catalog = catalog
        self._hosts = hosts
        self._rollups = {
            host.name: Rollup(
                host.engine,
                _AppendTimes(host, owner),
                clock_ms,
                PartRows(host.engine, partial(self._blocks, host.name)),
                late_ms=_PROMISES_LATE_MS,
                counted=host.counted,
            )
            for host in hosts
        }
        self._sweeps = {
            host.name: (
                Sweep(host.engine, clock_ms),
                TransactionSweep(host.engine, clock_ms),
                ProducerStateSweep(host.engine, producer_id_expiration_ms, clock_ms),
            )
            for host in hosts
        }
        self._sweep_every_s = sweep_every_ms / 1000
        self._swept_s = dict.fromkeys(self._sweeps, time.monotonic())
        self._mirrored: dict[str, tuple[int, float]] = {}
        self._absent_since_s: dict[UUID, float] = {}
        self.periodic = Periodic("housekeeping", _EVERY_S, self.round)

    async def round(self) -> None:
        """Do the tasks that are due and that belong to this broker."""
        for host in self._hosts.reachable():
            if host.is_housekeeper():
                await self._try(f"shard {host.name}", partial(self._mirror_and_count, host))
                await self._try(f"old records on shard {host.name}", partial(self._sweep, host))

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotYet as error:
            log.info("housekeeping of %s is postponed: %s", what, error)
        except EngineError as error:
            log.warning("housekeeping of %s failed; retrying in %.0f s: %s", what, _EVERY_S, error)

    async def _mirror_and_count(self, host: ShardHost) -> None:
        # In this order: minutes of a topic that the shard does not know are deleted.
        if not self._is_mirrored(host):
            await self._mirror_topics(host)
        rollup = self._rollups[host.name]
        await (rollup.count_new() if rollup.is_complete() else rollup.count())

    def _blocks(self, shard: str) -> list[tuple[int, tuple[int, ...]]]:
        """How many blocks each session has stored there, by what the brokers report."""
        sessions = self._owner.sessions.values()
        return sorted((one.session_id, one.lanes.get(shard, ())) for one in sessions)

    async def _sweep(self, host: ShardHost) -> None:
        if time.monotonic() - self._swept_s[host.name] >= self._sweep_every_s:
            self._swept_s[host.name] = time.monotonic()
            for sweep in self._sweeps[host.name]:
                await self._try(f"old rows on shard {host.name}", sweep.round)

    def _is_mirrored(self, host: ShardHost) -> bool:
        version, at_s = self._mirrored.get(host.name, (-1, 0.0))
        return version == self._catalog.version and time.monotonic() - at_s < LOOK_ANYWAY_S

    async def _mirror_topics(self, host: ShardHost) -> None:
        version = self._catalog.version
        # The shard is read first: a new topic is written to the registry before it is written here.
        rows = await host.engine.rows(
            "SELECT topic_id, version FROM topic_versions FINAL WHERE state = 'live'"
        )
        there = {UUID(str(topic_id)): last_version for topic_id, last_version in rows}
        await self._catalog.refresh()
        topics = self._catalog.all()
        lacking = [one for one in topics if there.pop(one.topic_id, -1) < one.version]
        for some in portions(lacking):
            await store_versions(host.engine, some, "live")
        now_s = time.monotonic()
        self._absent_since_s = {
            topic_id: self._absent_since_s.get(topic_id, now_s) for topic_id in there
        }
        for topic_id, last_version in there.items():
            if now_s - self._absent_since_s[topic_id] < _ABSENT_FOR_S:
                continue  # the server that answered for the registry may be behind
            await host.engine.execute(
                query("delete_absent_topic"),
                {"topic_id": str(topic_id), "version": last_version},
            )
        if not there:
            self._mirrored[host.name] = version, now_s


def is_topic_housekeeper(known: Known) -> bool:
    """Whether this broker removes the rows of deleted topics: the owner of the first slot."""
    slot_map, me = known.slot_map, known.session_id
    return slot_map is not None and me != 0 and slot_map.slots[0].owner == me


def all_have_read(known: Known, version: int) -> bool:
    """Whether every broker has read this version of the topics, and acted on deletions."""
    return all(
        session.topics_seen >= version for session in known.sessions.values() if not session.is_over
    )
