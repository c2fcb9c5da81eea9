"""Serves the slots of this broker: opens and closes their logs, groups and transactional ids.

`SlotServer` is the `SlotServing` of broker/cluster/reconcile.py. What must hold:

* A slot is served only between the end of `serve_slots` and the start of `give_up_slots` or
  `abandon_slots`, and only by appenders of the session that owns it.
* Logs are opened, and slots given up, while the catalog is locked: no topic can appear in between
  and be missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from brokerhouse.broker.cluster.session import RenewedSession, SessionOver
from brokerhouse.broker.log.fence import fence
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.slots.sessions import BrokerReport, BrokerSession
from brokerhouse.broker.slots.shard_host import ShardHosts
from brokerhouse.broker.slots.slot_logs import SlotLogs
from brokerhouse.broker.slots.slot_transactions import SlotTransactions
from brokerhouse.broker.topics.watched_topics import WatchedTopics
from brokerhouse.common.clock import DAY_MS, wall_ms
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.protocol.errors import NotLeaderOrFollower
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.slot_map import Slot

log = logging.getLogger(__name__)

_FAILED_LATELY_MS = 600_000
"""For how long `brokerhouse check` shows that a server has failed."""


class SlotServer:
    """Opens and closes the logs of slots, and the groups and transactional ids in them."""

    def __init__(
        self,
        slots: OwnSlots,
        hosts: ShardHosts,
        logs: SlotLogs,
        catalog: WatchedTopics,
        transactions: SlotTransactions,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long slots that are given up may wait for a shard that does not answer.

        Then the session ends, and the other brokers fence it.
        """
        self._slots = slots
        self._hosts = hosts
        self._logs = logs
        self._catalog = catalog
        self._transactions = transactions
        self._patience_s = patience_s

    # SlotServing

    def report(self) -> BrokerReport:
        floors = {host.name: host.floor_ms() for host in self._hosts}
        return BrokerReport(
            day=min(floors.values()) // DAY_MS,
            lanes={host.name: host.resolved for host in self._hosts},
            append_floors=floors,
            away=frozenset(host.name for host in self._hosts if host.engine.away),
            topics_seen=self._catalog.settling.seen,
            failures_ms=self._hosts.failures_ms(wall_ms() - _FAILED_LATELY_MS),
        )

    def reachable_shards(self) -> Collection[str]:
        return [host.name for host in self._hosts.reachable()]

    async def fence_session(self, session: BrokerSession, shard: str) -> None:
        lanes = session.lanes.get(shard)
        if lanes is None:
            return  # it never wrote there
        day = session.append_floors.get(shard, session.day * DAY_MS) // DAY_MS
        engine = self._hosts.of(shard).engine
        await fence(engine, session.session_id, lanes, day, catch_up=engine.expect_foreign_writes)

    async def serve_slots(self, session: RenewedSession, slots: Mapping[int, Slot]) -> None:
        wanted = {
            number: slot for number, slot in slots.items() if number not in self._slots.serving
        }
        await self._write_to_shards_of(wanted.values(), session)
        self._slots.owned.update(wanted)
        await self._load_groups_of(wanted)
        async with self._catalog.latest() as topics:
            await self._transactions.load(wanted)
            partitions = [
                (topic, number)
                for topic, number in self._logs.missing(topics)
                if self._slots.of_partition(topic.topic_id, number) in wanted
            ]
            opened = await self._logs.read(partitions)
            if session.is_over:
                raise EngineError("the session ended while its slots were read")
            self._slots.serving.update(wanted)
            self._logs.add(opened)
        log.info("%d slots are served, with %d partitions", len(wanted), len(opened))

    async def _write_to_shards_of(self, slots: Collection[Slot], session: RenewedSession) -> None:
        for name in {name for slot in slots for name in slot.shards}:
            host = self._hosts.of(name)
            host.engine.expect_foreign_writes()
            await host.write_under(session)

    async def _load_groups_of(self, slots: Mapping[int, Slot]) -> None:
        for name in self._slots.group_shards(slots):
            there = {number for number, slot in slots.items() if slot.shards[0] == name}
            await self._hosts.of(name).groups.load_groups(self._slots.has_group_in(there))

    async def give_up_slots(self, slots: Collection[int]) -> None:
        leaving = set(slots)
        async with self._catalog.held_still():
            self._slots.serving -= leaving
            logs = self._logs.in_slots(leaving)
            _close(logs)
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.gather(
                    self._logs.release(logs),
                    self._transactions.unload(leaving),
                    *(
                        self._hosts.of(name).groups.unload_groups(self._slots.has_group_in(leaving))
                        for name in self._slots.group_shards(leaving)
                    ),
                )
        except TimeoutError:
            raise SessionOver("cannot hand over slots: a shard does not answer") from None
        except NotLeaderOrFollower as error:
            raise SessionOver(str(error)) from error
        self._forget(leaving, logs)

    def abandon_slots(self) -> None:
        leaving = set(self._slots.owned)
        logs = self._logs.in_slots(leaving)
        _close(logs)
        for host in self._hosts:
            host.abandon()
        self._transactions.abandon()
        self._slots.serving.clear()
        self._forget(leaving, logs)

    def _forget(self, slots: Collection[int], logs: Collection[PartitionLog]) -> None:
        for number in slots:
            self._slots.owned.pop(number, None)
        self._logs.remove(logs)


def _close(logs: Iterable[PartitionLog]) -> None:
    for partition in logs:
        partition.closed = NotLeaderOrFollower(f"Another broker leads {partition} now.")
        partition.wake()
