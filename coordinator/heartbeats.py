"""The time of each member's last heartbeat to any broker: in memory, written every few seconds."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.messages import GroupRecord
from coordinator.tables import HEARTBEATS
from storage.engine import EngineError
from storage.row_lane import RowLane, TableRows


class Heartbeats:
    """The heartbeats of members of all groups. `rows`: where this broker's own are written."""

    def __init__(self, rows: RowLane, node_id: int) -> None:
        self._rows = rows
        self._node_id = node_id
        self._heard: dict[str, dict[str, int]] = {}
        self._unwritten: dict[tuple[str, str], int] = {}

    def last_ms(self, group_id: str, member_id: str) -> int | None:
        """When the member sent its last heartbeat; None if it sent none since it joined."""
        return self._heard.get(group_id, {}).get(member_id)

    def note(self, group_id: str, member_id: str, now_ms: int) -> None:
        """A member has sent a heartbeat to this broker."""
        self._heard.setdefault(group_id, {})[member_id] = now_ms
        self._unwritten[group_id, member_id] = now_ms

    def read(self, group_id: str, member_id: str, heard_ms: int) -> None:
        """Another broker has stored the heartbeat of a member."""
        heard = self._heard.setdefault(group_id, {})
        heard[member_id] = max(heard_ms, heard.get(member_id, 0))

    def forget_others_than(self, record: GroupRecord) -> None:
        """Forget members that are not in the group any more."""
        heard = self._heard.get(record.group_id)
        if heard is None:
            return
        there = {member.member_id for member in record.members}
        self._forget(record.group_id, heard, [one for one in heard if one not in there])

    def _forget(self, group_id: str, heard: dict[str, int], gone: Iterable[str]) -> None:
        for member_id in gone:
            del heard[member_id]
            self._unwritten.pop((group_id, member_id), None)
        if not heard:
            del self._heard[group_id]

    async def write(self) -> None:
        """Write the heartbeats since the last call, in one block. Raises `EngineError`."""
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        rows = [(*member, heard_ms, self._node_id) for member, heard_ms in unwritten.items()]
        try:
            await self._rows.store(TableRows(HEARTBEATS, rows))
        except EngineError:
            self._unwritten = unwritten | self._unwritten
            raise
