"""Blocks of the table `messages` as the broker inserts them, for tests of an engine."""

from __future__ import annotations

from uuid import UUID

from brokerhouse.protocol._decode_batches import BlockBuilder
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support.log_parts import header_of, plain

TOPIC_ID = UUID(int=7)


def block(first_offset: int, *values: bytes) -> bytes:
    """One block of `messages`."""
    builder = BlockBuilder(1_700_000_000_000)
    data = plain(*values).data
    header = header_of(data)
    builder.append("t", TOPIC_ID.bytes, 0, first_offset, 0, header, data[61:], None)
    return builder.finish()


async def insert(engine: EmbeddedEngine, data: bytes, token: str, lane: int = 0) -> None:
    await engine.insert_block(lane, "messages", COLUMN_LIST, data, token)
