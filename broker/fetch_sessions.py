"""Fetch sessions (KIP-227): the broker remembers what a consumer fetches between its requests.

With a session, a consumer names only the partitions that changed, and the broker answers only with
partitions that have records, an error or a new offset. Sessions are kept in memory. A consumer
whose session was lost starts again with a full fetch.

The number of sessions is limited. At the limit, a session that was not used for two minutes is
removed to make room for the new one. If there is none, the new consumer is served without a
session. So is a consumer with so many partitions that all sessions together would exceed
`PARTITIONS_MAX`.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

from kafka.protocol.consumer import FetchRequest

from brokerhouse.protocol.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)

FINAL_EPOCH = -1
_SESSIONS_SINCE = 7
_TOPIC_IDS_SINCE = 13
_EVICTABLE_AFTER_S = 120.0
_MAX_ID = 2**31 - 1
PARTITIONS_MAX = 500_000
"""Limit of the partitions that all sessions together remember (about 250 bytes each). Without it a
client could add partitions, whether they exist or not, with every request."""

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class Wanted:
    """What a consumer fetches from one partition, and the last answer that it got."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start: int = -1


@dataclass(slots=True)
class FetchSession:
    """What one consumer fetches. `epoch` is the one that its next request must have."""

    session_id: int
    epoch: int
    uses_topic_ids: bool
    partitions: OrderedDict[PartitionKey, Wanted] = field(default_factory=OrderedDict)
    last_used: float = 0.0

    def is_news(self, wanted: Wanted, high_watermark: int, log_start: int) -> bool:
        """Whether an answer without records and without an error has a new offset."""
        return (wanted.told_high_watermark, wanted.told_log_start) != (high_watermark, log_start)

    def answered(self, wanted: Wanted) -> None:
        """Move the partition to the end, so that every partition gets its turn."""
        if wanted.key in self.partitions:
            self.partitions.move_to_end(wanted.key)


class FetchSessions:
    """All fetch sessions of the broker."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def open(
        self, request: FetchRequest, version: int
    ) -> tuple[FetchSession | None, list[Wanted], bool]:
        """The session, all partitions to fetch, and whether to answer with news only.

        Raises `FetchSessionIdNotFound`, `InvalidFetchSessionEpoch`, `FetchSessionTopicIdError`.
        """
        by_id = version >= _TOPIC_IDS_SINCE
        if version < _SESSIONS_SINCE:
            return None, _wanted(request, by_id), False
        if request.session_epoch in (0, FINAL_EPOCH):
            self._end(request.session_id)
            wanted = _wanted(request, by_id)
            if request.session_epoch == FINAL_EPOCH or not wanted:
                return None, wanted, False
            return self._create(wanted, by_id), wanted, False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"The fetch session {request.session_id} does not exist.")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"The fetch session {session.session_id} expects epoch {session.epoch}, "
                f"not {request.session_epoch}."
            )
        if session.uses_topic_ids != by_id:
            raise FetchSessionTopicIdError("A fetch session uses either topic names or topic ids.")
        self._update(session, request, by_id)
        return session, list(session.partitions.values()), True

    def _create(self, wanted: list[Wanted], by_id: bool) -> FetchSession | None:
        now = time.monotonic()
        if len(self._sessions) >= self._max_sessions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used < _EVICTABLE_AFTER_S:
                return None
            self._end(oldest.session_id)
        partitions = OrderedDict((want.key, want) for want in wanted)
        if self._partitions + len(partitions) > PARTITIONS_MAX:
            return None
        session_id = random.randint(1, _MAX_ID)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_ID)
        session = FetchSession(session_id, 1, by_id, partitions, last_used=now)
        self._sessions[session_id] = session
        self._partitions += len(partitions)
        return session

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def _update(self, session: FetchSession, request: FetchRequest, by_id: bool) -> None:
        before = len(session.partitions)
        for want in _wanted(request, by_id):
            known = session.partitions.get(want.key)
            if known is None:
                session.partitions[want.key] = want
            else:
                known.fetch_offset = want.fetch_offset
                known.max_bytes = want.max_bytes
                known.current_leader_epoch = want.current_leader_epoch
                known.last_fetched_epoch = want.last_fetched_epoch
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                session.partitions.pop((_topic_key(topic, by_id), partition), None)
        self._partitions += len(session.partitions) - before
        if self._partitions > PARTITIONS_MAX:
            self._end(session.session_id)
            raise FetchSessionIdNotFound("The fetch sessions have no room for more partitions.")
        session.epoch = session.epoch % _MAX_ID + 1
        session.last_used = time.monotonic()
        self._sessions.move_to_end(session.session_id)


def _wanted(request: FetchRequest, by_id: bool) -> list[Wanted]:
    return [
        Wanted(
            (_topic_key(topic, by_id), partition.partition),
            partition.fetch_offset,
            partition.partition_max_bytes,
            max(partition.current_leader_epoch, -1),
            max(partition.last_fetched_epoch, -1),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _topic_key(
    topic: FetchRequest.FetchTopic | FetchRequest.ForgottenTopic, by_id: bool
) -> TopicKey:
    return UUID(str(topic.topic_id)) if by_id else topic.topic
