"""What is removed from a full disk at once: only what nobody can read any more."""

from __future__ import annotations

from uuid import uuid4

import pytest

from brokerhouse.broker.log.reclaim import Reclaim
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.alone import GivenLogs
from tests.support.stored_rows import store_records


@pytest.mark.parametrize("exists", [True, False], ids=["a log not open", "a deleted topic"])
async def test_only_rows_of_deleted_topics_are_dropped_if_their_logs_are_not_open(
    engine: EmbeddedEngine, exists: bool
) -> None:
    topic_id = uuid4()
    await store_records(engine, "orders", topic_id, append_time_ms=1_700_000_000_000)
    reclaim = Reclaim(engine, GivenLogs(), lambda one: exists and one == topic_id, engine.reserve)
    await reclaim.round()
    assert await engine.rows("SELECT count() FROM messages") == [[1 if exists else 0]]
