"""Deletes offsets whose retention is over, and then groups without offsets.

Runs every ten minutes for the groups that this broker coordinates, as often as in Kafka
(`offsets.retention.check.interval.ms`). A group without members and offsets is deleted by the next
run. While an open transaction has sent offsets to a group, the group stays, and so do the offsets
that the transaction would replace (Kafka's `OffsetMetadataManager.cleanupExpiredOffsets`).

The shard's housekeeping broker also writes old rows of current offsets again, before the table's
TTL deletes them."""

from __future__ import annotations

import asyncio
import logging

from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Periodic
from brokerhouse.coordinator.group_states import GroupState
from brokerhouse.coordinator.hosted_groups import HostedGroup, HostedGroups
from brokerhouse.coordinator.offsets import CommittedOffsets
from brokerhouse.coordinator.pending_offsets import PendingOffsets
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

_INTERVAL_S = 600.0


class OffsetExpiry:
    """Deletes old offsets of groups, and groups without members and offsets."""

    def __init__(
        self,
        hosted_groups: HostedGroups,
        offsets: CommittedOffsets,
        pending: PendingOffsets,
        retention_ms: int,
    ) -> None:
        self._hosted_groups = hosted_groups
        self._offsets = offsets
        self._pending = pending
        self._clock = hosted_groups.clock
        self._retention_ms = retention_ms
        self.periodic = Periodic("offset-expiry", _INTERVAL_S, self._run)

    async def _run(self) -> None:
        if self._hosted_groups.stopping.is_set():
            return
        try:
            await self.expire()
        except EngineError as error:
            log.error("cannot delete expired offsets; retrying in %d s: %s", _INTERVAL_S, error)

    async def expire(self) -> None:
        """Raises `EngineError`."""
        for hosted in self._hosted_groups:
            await asyncio.sleep(0)  # let other tasks run
            await self._expire_offsets_of(hosted)
        if self._hosted_groups.duties.is_housekeeper():
            await self._offsets.rewrite_old()

    async def _expire_offsets_of(self, hosted: HostedGroup) -> None:
        group = hosted.group
        if (
            hosted.is_unloaded
            or hosted.is_being_deleted
            or group.state not in (GroupState.EMPTY, GroupState.STABLE)
        ):
            return
        subscribed = group.subscribed_topics()
        if subscribed is None:
            return
        found = self._offsets.expired(
            group.group_id,
            self._clock.wall_ms(),
            group.emptied_ms,
            subscribed,
            self._retention_ms,
        )
        unstable = self._pending.unstable(group.group_id)
        expired = [partition for partition in found if partition not in unstable]
        if expired:
            log.info(
                "deleting %d expired offsets of group %s",
                len(expired),
                group.group_id,
                extra=counted(),
            )
            await self._offsets.delete(group.group_id, expired)
        self._end_if_unused(hosted)

    def _end_if_unused(self, hosted: HostedGroup) -> None:
        group = hosted.group
        if (
            group.state is GroupState.EMPTY
            and group.is_unused
            and not hosted.is_being_deleted
            and not self._offsets.is_used(group.group_id)
            and not self._pending.is_used(group.group_id)
        ):
            group.delete(self._clock.now())
            hosted.after_event()
