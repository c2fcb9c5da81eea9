"""The parts of a log, put together for tests: topics, batches, an engine whose faults are scripted.

The engine is a real one; only faults that cannot be caused on purpose (a refused insert, an unknown
outcome, a delay) are simulated, before or after the real insert.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from brokerhouse.broker.led_partitions import LedPartitions
from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.block import Appended, AppendLimits, Outcome, PendingAppend
from brokerhouse.broker.log.decompression import Decompressions
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.tail_cache import TailCache
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.log.write_lease import EndlessSession, WriteLease
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.effective_configs import effective
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.common.clock import wall_ms
from brokerhouse.protocol._batches import BatchHeader, check_crc, parse_headers
from brokerhouse.protocol.compression import decompress
from brokerhouse.storage.blocks import DATETIME64_MS, STRING, Table
from brokerhouse.storage.blocks import block as encoded_block
from brokerhouse.storage.engine import (
    Engine,
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NativeBlock,
    Parameter,
    TokenUsed,
)
from brokerhouse.storage.engine import Row as EngineRow
from tests.support.record_batches import Batch, Record, Row, batch_of, stored

LANES = 3
LIMITS = AppendLimits(
    block_max_bytes=16 << 20,
    block_max_rows=65536,
    decompressed_max_bytes=128 << 20,
    linger_ms=0,
    producer_id_expiration_ms=86_400_000,
)
NOTHING_FRESH = 2**62
"""As `first_fresh_producer_id`: any producer may have rows from before."""


def make_topic(
    name: str = "topic", partitions: int = 1, configs: Mapping[str, str] | None = None
) -> Topic:
    given = configs or {}
    return Topic(name, uuid4(), partitions, given, effective(given, Settings()))


def make_log(
    topic: Topic | None = None, partition: int = 0, *, end: int = 0, first_fresh: int = 0
) -> PartitionLog:
    return PartitionLog(topic or make_topic(), partition, 0, end, first_fresh)


def make_appender(
    engine: Engine,
    *,
    lanes: int = LANES,
    limits: AppendLimits = LIMITS,
    cache: TailCache | None = None,
    lease: WriteLease | None = None,
) -> Appender:
    appender = Appender(
        engine,
        cache or TailCache(64 << 20),
        lanes,
        limits,
        lease or WriteLease(EndlessSession(), ""),
        Decompressions(256 << 20, limits),
    )
    appender.start()
    return appender


def append(appender: Appender, log: PartitionLog, data: bytes) -> asyncio.Future[Appended]:
    """Queue one batch. The future ends with what its producer is told."""
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def told(outcome: Outcome) -> None:
        if done.cancelled():
            return  # the caller has gone away
        if isinstance(outcome, Appended):
            done.set_result(outcome)
        else:
            done.set_exception(outcome)

    appender.append(PendingAppend(log, data, header_of(data), told))
    return done


def header_of(data: bytes) -> BatchHeader:
    (header,) = parse_headers(data)
    return header


def numbered(
    first: int, count: int, producer_id: int = -1, epoch: int = 0, *, tag: str = ""
) -> Batch:
    """A batch of an idempotent producer; each value tells producer, epoch and sequence."""
    values = [f"{tag}{producer_id}/{epoch}/{(first + n) % 2**31}".encode() for n in range(count)]
    fields = (
        {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": first}
        if producer_id >= 0
        else {}
    )
    return batch_of(*(Record(value=value) for value in values), **fields)


def plain(*values: bytes) -> Batch:
    """A batch of a producer that is not idempotent."""
    return batch_of(*(Record(value=value) for value in values))


async def stored_values(engine: Engine, log: PartitionLog) -> list[tuple[int, str]]:
    """What SQL sees of a partition: (offset, value), by offset."""
    rows = await engine.rows(
        "SELECT offset, value FROM messages WHERE topic_id = {id:UUID}"
        " AND partition = {partition:Int32} ORDER BY offset",
        {"id": str(log.topic_id), "partition": log.partition},
    )
    return [(offset, str(value)) for offset, value in rows]


def tail_rows(log: PartitionLog, offset: int = 0) -> list[Row]:
    """What the tail cache has of a partition from `offset` on."""
    batches = log.tail.read(offset, 1 << 40, at_least_one=True)
    assert batches is not None
    return rows_of(batches)


def rows_of(batches: Sequence[bytes]) -> list[Row]:
    """The rows of whole batches, as a consumer reads them; each must have a right CRC."""
    return [row for data in batches for row in _rows_of(data)]


def _rows_of(data: bytes) -> list[Row]:
    header = header_of(data)
    check_crc(data, header)
    batch = Batch(
        decompress(header.codec, data[61:], 1 << 30),
        header.count,
        attributes=header.attributes & ~7,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return stored(batch, header.base_offset, header.leader_epoch)


@dataclass(frozen=True)
class Insert:
    """One call of `insert_block`."""

    lane: int
    table: str
    token: str
    size: int


_FAULTS: dict[str, type[EngineError]] = {
    "refused": InsertRejected,
    "unknown": InsertOutcomeUnknown,
    "token used": TokenUsed,
    "torn": InsertOutcomeUnknown,
}
_OTHER_ROWS = Table("messages", (("topic", STRING), ("append_time", DATETIME64_MS)))


class ScriptedEngine:
    """The real engine, with faults in a given order.

    `faults` has the faults of the next inserts: None for no fault; "refused", "unknown" and "token
    used" before the real insert; the same with "though stored" after it; "torn": the token is used
    up, as by a crash, without the rows; the next insert is the repetition. While `gate` is
    closed inserts wait for it, as `execute` for `execute_gate`, streams for `read_gate` and small
    queries for `rows_gate`.
    `failing_reads`: how many reads fail when they begin; `failing_chunks`: how many fail when they
    are asked for more. While `chunk_gate` is closed, streams that have begun wait for it. A
    statement that contains a text of `failing_rows` fails once.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.faults: deque[str | None] = deque()
        self.failing_rows: deque[str] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.inserts: list[Insert] = []
        self.executed: list[str] = []
        self.asked: list[str] = []
        self.insert_came = asyncio.Event()
        self.inserting: set[int] = set()
        self.reads = 0
        self.read_bytes = 0
        self.failing_reads = 0
        self.read_came = asyncio.Event()
        self.execute_gate = asyncio.Event()
        self.execute_gate.set()
        self.failing_chunks = 0
        self.open_reads = 0
        self.read_closed = asyncio.Event()
        self.read_gate = asyncio.Event()
        self.read_gate.set()
        self.chunk_gate = asyncio.Event()
        self.chunk_gate.set()
        self.rows_gate = asyncio.Event()
        self.rows_gate.set()

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        assert lane not in self.inserting, "inserts of one lane never overlap"
        self.inserting.add(lane)
        try:
            self.inserts.append(Insert(lane, table, token, len(block)))
            self.insert_came.set()
            await self.gate.wait()
            fault = self.faults.popleft() if self.faults else None
            if fault == "defect":
                raise AssertionError("a bug in the engine's client")
            if fault == "torn":
                other = encoded_block(_OTHER_ROWS, [("", wall_ms())])
                await self.engine.insert_block(
                    lane, "messages", _OTHER_ROWS.column_list, other, token
                )
                self.faults.appendleft("token used though stored")
            if fault in _FAULTS:
                raise _FAULTS[fault](fault)
            await self.engine.insert_block(lane, table, columns, block, token)
            if fault is not None:
                raise _FAULTS[fault.removesuffix(" though stored")](fault)
        finally:
            self.inserting.discard(lane)

    @property
    def tables(self) -> list[str]:
        """The table of every insert, in order."""
        return [insert.table for insert in self.inserts]

    async def next_insert(self) -> None:
        """Wait until another insert has begun."""
        self.insert_came.clear()
        await self.insert_came.wait()

    async def next_read(self) -> None:
        """Wait until another read has begun."""
        self.read_came.clear()
        await self.read_came.wait()

    async def next_close(self) -> None:
        """Wait until another read has ended or was closed."""
        self.read_closed.clear()
        await self.read_closed.wait()

    async def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        self.reads += 1
        self.read_came.set()
        await self.read_gate.wait()
        if self.failing_reads:
            self.failing_reads -= 1
            raise EngineError("scripted", 999)
        stream = self.engine.read_native(sql, params, chunk_bytes)
        self.open_reads += 1
        try:
            async for chunk in stream:
                await self.chunk_gate.wait()
                self.read_bytes += len(chunk)
                yield chunk
                if self.failing_chunks:
                    self.failing_chunks -= 1
                    raise EngineError("scripted", 999)
        finally:
            await stream.aclose()
            self.open_reads -= 1
            self.read_closed.set()

    async def rows(
        self, sql: str, params: Mapping[str, Parameter] | None = None
    ) -> list[EngineRow]:
        self.asked.append(sql)
        await self.rows_gate.wait()
        for failing in self.failing_rows:
            if failing in sql:
                self.failing_rows.remove(failing)
                raise EngineError("scripted", 999)
        return await self.engine.rows(sql, params)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        await self.execute_gate.wait()
        for failing in self.failing_rows:
            if failing in sql:
                self.failing_rows.remove(failing)
                raise EngineError("scripted", 999)
        self.executed.append(sql)
        await self.engine.execute(sql, params)

    async def close(self) -> None:
        await self.engine.close()


def log_of(catalog: TopicCatalog, topic: Topic, partition: int) -> PartitionLog:
    """As requests find it; see `LedPartitions.log_of`."""
    return LedPartitions(catalog).log_of(topic, partition)
