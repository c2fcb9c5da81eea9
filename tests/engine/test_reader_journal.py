"""Cold reads beside the journal: newer blocks are acknowledged, but not in the table yet.

Until they are, the tail cache serves them. A segment or an open query that claimed their offsets
would make a consumer miss them once they have left the tail.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokerhouse.broker.log import reader as reader_module
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.reader import ColdReader
from brokerhouse.broker.log.row_sources import JournaledRows
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.storage.journal import JournaledEngine
from tests.support import log_parts
from tests.support.alone import OneShard
from tests.support.journal_engine import journal
from tests.support.log_parts import header_of, make_appender, make_log, plain, rows_of
from tests.support.seeds import seeds

ALL = 1 << 40


@pytest.fixture
async def journaled(data_dir: Path) -> AsyncIterator[JournaledEngine]:
    async with journal(data_dir) as opened:
        yield opened


@pytest.fixture
async def reader(journaled: JournaledEngine) -> AsyncIterator[ColdReader]:
    made = ColdReader(OneShard(journaled, JournaledRows(journaled)), 64 << 20)
    yield made
    await made.close()


class Consumer:
    """Reads a partition from its beginning as a fetch does: the tail first, then the engine."""

    def __init__(self, log: PartitionLog, reader: ColdReader) -> None:
        self.offsets: list[int] = []
        self._log = log
        self._reader = reader
        self._position = log.log_start_offset

    async def fetch(self, max_bytes: int = ALL) -> None:
        if self._position == self._log.high_watermark:
            return
        batches = self._log.tail.read(self._position, max_bytes, at_least_one=True)
        if batches is None:
            batches = await self._reader.read(self._log, self._position, max_bytes)
        assert batches, f"nothing at {self._position} of {self._log.high_watermark}"
        found = [row.offset for row in rows_of(batches)]
        self.offsets += [offset for offset in found if offset >= self._position]
        last = header_of(batches[-1])
        self._position = last.base_offset + last.last_offset_delta + 1

    async def to_the_end(self) -> None:
        while self._position < self._log.high_watermark:
            await self.fetch()


async def append(engine: JournaledEngine, log: PartitionLog, cache: TailCache, rows: int) -> None:
    """One block in the journal. The tail keeps what is only there, and nothing else."""
    appender = make_appender(engine, cache=cache)
    batch = plain(*[b"value"] * rows)
    log_parts.append(appender, log, batch.data)
    await appender.close()


async def test_a_cold_read_ends_before_rows_that_are_only_in_the_journal(
    journaled: JournaledEngine, reader: ColdReader
) -> None:
    log, cache = make_log(), TailCache(0, journaled)
    for _ in range(2):
        await append(journaled, log, cache, 10)
    await journaled.drained()
    for _ in range(2):
        await append(journaled, log, cache, 10)
    assert log.tail.start_offset == 20
    assert [row.offset for row in rows_of(await reader.read(log, 0, ALL))] == [*range(20)]
    await journaled.drained()
    await append(journaled, log, cache, 10)
    assert log.tail.start_offset == 40
    assert [row.offset for row in rows_of(await reader.read(log, 20, ALL))] == [*range(20, 40)]


@pytest.mark.parametrize("seed", seeds(3))
async def test_a_consumer_gets_every_record_once_while_blocks_move_from_the_journal_to_the_table(
    journaled: JournaledEngine, reader: ColdReader, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(reader_module, "_SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(reader_module, "_BATCH_BYTES", 3_000)
    monkeypatch.setattr(reader_module, "_AHEAD_BYTES", 200_000)
    rnd = random.Random(seed)
    log, cache = make_log(), TailCache(0, journaled)
    consumers = [Consumer(log, reader) for _ in range(2)]
    for _ in range(12):
        await append(journaled, log, cache, rnd.choice([1, 100, 12_000]))
        if rnd.random() < 0.5:
            await journaled.drained()
        for _ in range(rnd.randrange(4)):
            await rnd.choice(consumers).fetch(rnd.choice([1, 50_000, ALL]))
    for consumer in consumers:
        await consumer.to_the_end()
        assert consumer.offsets == list(range(log.high_watermark))
