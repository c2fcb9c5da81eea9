"""Fetch sessions (KIP-227): what a consumer wants, remembered between its requests.

A session lets a consumer name only what changed, and lets the broker answer only with partitions
that have something new. Sessions live in memory; a consumer whose session is gone starts over
with a full fetch. Their number is bounded: when all slots are taken, one that nobody used for two
minutes gives way, and if there is none, the newcomer is served without a session. So is one whose
partitions are more than all sessions together may remember."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

from kafka.protocol.consumer import FetchRequest

from protocol.errors import (
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
"""Partitions that all sessions together remember (about 250 bytes each). Without a limit a client
could add new ones, whether they exist or not, with every request."""

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class Wanted:
    """What a consumer wants of one partition, and what it was last told of it."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    told_high_watermark: int = -1
    told_log_start: int = -1


@dataclass(slots=True)
class FetchSession:
    """`epoch` is the one that the next request must carry."""

    session_id: int
    epoch: int
    uses_topic_ids: bool
    partitions: OrderedDict[PartitionKey, Wanted] = field(default_factory=OrderedDict)
    last_used: float = 0.0

    def is_news(self, wanted: Wanted, high_watermark: int, log_start: int) -> bool:
        """Whether an answer without records or error still tells something."""
        return (wanted.told_high_watermark, wanted.told_log_start) != (high_watermark, log_start)

    def answered(self, wanted: Wanted) -> None:
        """Partitions that were answered go to the end, so that all get their turn."""
        if wanted.key in self.partitions:
            self.partitions.move_to_end(wanted.key)


class FetchSessions:
    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def open(
        self, request: FetchRequest, version: int
    ) -> tuple[FetchSession | None, list[Wanted], bool]:
        """The session, all that is wanted, and whether to answer with news only.

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
            raise FetchSessionIdNotFound(f"there is no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session.session_id} expects epoch {session.epoch}, "
                f"not {request.session_epoch}"
            )
        if session.uses_topic_ids != by_id:
            raise FetchSessionTopicIdError("a session keeps to topic names or to topic ids")
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
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                session.partitions.pop((_topic_key(topic, by_id), partition), None)
        self._partitions += len(session.partitions) - before
        if self._partitions > PARTITIONS_MAX:
            self._end(session.session_id)
            raise FetchSessionIdNotFound("there is no room for the partitions of this session")
        session.epoch = session.epoch % _MAX_ID + 1
        session.last_used = time.monotonic()
        self._sessions.move_to_end(session.session_id)


def _wanted(request: FetchRequest, by_id: bool) -> list[Wanted]:
    return [
        Wanted(
            (_topic_key(topic, by_id), partition.partition),
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _topic_key(
    topic: FetchRequest.FetchTopic | FetchRequest.ForgottenTopic, by_id: bool
) -> TopicKey:
    return UUID(str(topic.topic_id)) if by_id else topic.topic
