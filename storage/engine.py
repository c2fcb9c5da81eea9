"""What the broker asks of ClickHouse, embedded or remote.

No caller knows which engine it talks to. Everything that a client sent travels as a bound
parameter or inside a Native block, never as SQL text.

An insert has three outcomes, and they are kept apart: it returned (stored), `InsertRejected`
(certainly not stored, nothing of it), `InsertOutcomeUnknown` (repeat it with the same token until
it is known). A block is stored whole or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

DATABASE = "brokerhouse"

Parameter = str | int | Sequence[str] | Mapping[str, str]
Row = list[Any]


class EngineError(Exception):
    """ClickHouse refused a statement. `code` is ClickHouse's error code (system.errors)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class InsertRejected(EngineError):
    """The block was refused and no row of it is stored."""


class InsertOutcomeUnknown(EngineError):
    """The block may or may not be stored. Only the same block with the same token may follow."""


class StorageFault(Exception):
    """What is on disk may be damaged: nothing more may be appended before the next start.

    A start leaves damaged parts out; what was acknowledged is not among them.
    """


class Engine(Protocol):
    """One ClickHouse, as the broker sees it."""

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        """Store one Native block, once per `token` however often it is repeated.

        `lane` picks the connection: inserts of one lane never overlap. Raises `InsertRejected` or
        `InsertOutcomeUnknown`. Source: `insert_deduplication_token`,
        https://clickhouse.com/docs/operations/settings/settings#insert_deduplication_token
        """

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Run a SELECT and yield Native blocks of about `chunk_bytes` as they are produced.

        Closing the iterator cancels the query. Raises `EngineError`.
        """

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        """Run a small SELECT; numbers are int or float, the rest str. Raises `EngineError`."""

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """Run a statement that returns nothing. Raises `EngineError`."""

    async def close(self) -> None:
        """Finish what runs and release the engine."""
