"""A block of a feed in an engine that cannot read the feeder's files, as in a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgpack
import pytest

from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.writer import BlockWriter
from brokerhouse.storage.embedded import EmbeddedEngine, EngineSession
from tests.support.feed_tables import FEED, SOURCE, TOPIC_ID, FeedTables


class _WithoutFiles:
    """A session that is told the lines inside its statements."""

    reads_files = False

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


@pytest.fixture
async def tables(engine: EmbeddedEngine, tmp_path: Path) -> AsyncIterator[FeedTables]:
    made = FeedTables(engine, tmp_path)
    session = cast(EngineSession, _WithoutFiles(made.session))
    made.writer = BlockWriter(session, str(tmp_path / "x.lines"), made.decoder, made.tables)
    await made.make("id UInt8, name String")
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("kind", "values", "dead"),
    [
        (Format.JSON, ['{"id": 1, "name": "o\'ne"}', '[{"id": 2}]', '{"id": 300}', "no"], [2, 3]),
        (Format.DEBEZIUM, ['{"id": 1, "name": "o\'ne"}', '{"id": 2}', '{"id": 300}', "no"], [2, 3]),
        (Format.CSV, ["1,o'ne", '2,""', "300,x", "no"], [2, 3]),
        (
            Format.MSGPACK,
            [
                msgpack.packb({"id": 1, "name": "o'ne"}),
                msgpack.packb([{"id": 2}]),
                msgpack.packb({"id": 300}),
                b"\xc1",
            ],
            [2, 3],
        ),
    ],
)
async def test_a_feed_without_files_stores_the_same_rows_and_dead_letters(
    tables: FeedTables, kind: Format, values: list[str | bytes], dead: list[int]
) -> None:
    feed = replace(FEED, format=kind)
    offsets = await tables.produce(*values)

    assert await tables.write(offsets, feed=feed) == BlockCounts(2, len(dead))
    assert await tables.rows() == [[1, "o'ne"], [2, ""]]
    assert [offset for offset, _ in await tables.errors()] == dead
    assert await tables.write(offsets, feed=feed, again=True) == BlockCounts(2, len(dead))
    assert len(await tables.rows()) == 2


async def test_a_block_ends_before_a_transaction_whose_end_is_not_stored(
    tables: FeedTables,
) -> None:
    """The leader knows that it has ended a moment before its rows say so."""
    await tables.produce(*('{"id": 1}' for _ in range(4)))
    await tables.engine.execute(
        "INSERT INTO open_transaction_versions (topic, topic_id, partition, producer_id,"
        f" producer_epoch, transaction_start, ended, version) VALUES ('orders', '{TOPIC_ID}', 0, 5,"
        " 0, 2, false, 1)"
    )

    assert await tables.writer.cut(SOURCE, Offsets(0, 4), 1000) == Offsets(0, 2)
    assert await tables.writer.cut(SOURCE, Offsets(2, 4), 1000) is None

    await tables.engine.execute(
        "INSERT INTO open_transaction_versions (topic, topic_id, partition, producer_id,"
        f" producer_epoch, transaction_start, ended, version) VALUES ('orders', '{TOPIC_ID}', 0, 5,"
        " 0, -1, true, 2)"
    )
    assert await tables.writer.cut(SOURCE, Offsets(0, 4), 1000) == Offsets(0, 4)
