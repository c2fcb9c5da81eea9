"""`Engine`: what the broker asks of ClickHouse, embedded or remote.

Callers do not know which engine it is. Everything that a client sent is passed as a bound parameter
or inside a Native block, never as SQL text.

An insert has these outcomes: it returned (the block is stored), `InsertRejected` (no row of it is
stored), `InsertOutcomeUnknown` (repeat it with the same token until the outcome is known), or
`TokenUsed` (after that: look whether the rows are there). A block is stored atomically.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

DATABASE = "brokerhouse"

Parameter = str | int | Sequence[str] | Mapping[str, str]
Row = list[Any]
NativeBlock = bytes | memoryview

_SMALL_BYTES = 64 << 10
_LINES_AT_ONCE = 1000
"""Parsing one by one takes three times as long, and all at once keeps other threads waiting."""


async def parsed_rows(lines: bytes) -> list[Row]:
    """The rows of an answer in the format JSONCompactEachRow. Raises ValueError."""
    if len(lines) < _SMALL_BYTES:
        return _parsed(lines)
    return await asyncio.to_thread(_parsed, lines)


def _parsed(lines: bytes) -> list[Row]:
    texts = lines.splitlines()
    rows: list[Row] = []
    for at in range(0, len(texts), _LINES_AT_ONCE):
        rows += json.loads(b"[%s]" % b",".join(texts[at : at + _LINES_AT_ONCE]))
    return rows


class EngineError(Exception):
    """ClickHouse refused a statement. `code` is ClickHouse's error code (system.errors)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class InsertRejected(EngineError):
    """The block was refused and no row of it is stored."""


class NotSent(InsertRejected):
    """Nothing was sent to the engine, so that no row can be stored."""


class InsertOutcomeUnknown(EngineError):
    """The block may or may not be stored. Only the same block with the same token may follow."""


class TokenUsed(EngineError):
    """The token is used up, by this attempt or by an earlier one whose outcome was unknown.

    The rows are visible now or never will be. A table that is not replicated notes the token of an
    insert before it adds the rows, so a server that is killed between the two takes every
    repetition for a duplicate, and has no row. Source: `MergeTreeSink::commitPart` of ClickHouse.
    """


class StorageFault(Exception):
    """Files on disk may be damaged: nothing more may be appended before the next start.

    The next start detaches damaged parts; no acknowledged row is in them.
    """


@dataclass(frozen=True, slots=True)
class PeopleBounds:
    """What a statement of people may use at most, whatever it sets.

    `temporary_bytes`: on disk, of all statements together. `iceberg_warehouse`: an absolute path;
    it may read Iceberg tables below it.
    """

    max_memory_bytes: int = 1 << 30
    max_execution_ms: int = 300_000
    temporary_bytes: int = 4 << 30
    max_threads: int = 1
    iceberg_warehouse: str | None = None


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query whose rows go into a file of this machine."""

    sql: str
    path: str
    format: str
    structure: str


class Engine(Protocol):
    """One ClickHouse, as the broker sees it."""

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        """Store one Native block, once per `token`, however often it is repeated.

        `lane` picks the connection: inserts of one lane never overlap. Raises `InsertRejected`,
        `InsertOutcomeUnknown` or `TokenUsed`. Source: `insert_deduplication_token`,
        https://clickhouse.com/docs/operations/settings/settings#insert_deduplication_token
        """

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        """Run a SELECT and yield Native blocks of about `chunk_bytes` as they are produced.

        Closing the iterator cancels the query. Raises `EngineError`.
        """

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        """Run a small SELECT. Raises `EngineError`.

        Numbers of up to 64 bits come as int or float, Bool as bool, arrays as lists, NULL as None,
        and everything else as str.
        """

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """Run a statement that has no result. Raises `EngineError`."""

    async def close(self) -> None:
        """Wait for running statements, and release the engine."""


@runtime_checkable
class BuildingEngine(Engine, Protocol):
    """An engine behind a journal (storage/journal.py).

    Blocks of the log may be packed (protocol/packed_blocks.py), in `insert_block` too. And it can
    build a block in the thread in which it stores it. That saves two changes of threads for each
    block, which is in that processor's cache then: 7% of the broker's processor time at full speed
    (measured, 100 B).
    """

    async def insert_built(
        self, table: str, columns: str, build: Callable[[], bytes], size: int, token: str
    ) -> bool:
        """As `insert_block`, of the block that `build` returns. Nothing is stored if it is empty.

        `build` is called once, perhaps in another thread, and `size` is about what it returns, in
        bytes. False: it was not called, and the block has to be inserted as usual. Raises
        `NotSent`, also before `build` was called, and what `build` raises.
        """
