"""Blocks that other processes send to the embedded engine: which of them go into the journal.

A block of the journal is acknowledged before the engine sees it, so the engine must not be able to
refuse it. Anybody may send one, so each is checked: it is one whole Native block, of a table that
brokers fill, and its columns have the types of the table's. Every other block is inserted directly.

A token is stored once, whichever way its block takes, also after a crash. A token of the journal is
known there. Before a block is inserted directly the journal notes its token; from then on all
blocks with this token go directly, and the engine knows which of them it has.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol.columns import block_without_rows
from brokerhouse.sql.queries import query
from brokerhouse.storage._merge_blocks import block_columns, merge_blocks
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.journal import JournaledEngine
from brokerhouse.storage.journal_statements import ALL, LOG_TABLE
from brokerhouse.storage.journal_unplaced import LOG_KEY
from brokerhouse.storage.native_types import UnmergeableBlock
from brokerhouse.storage.shards import SYNCED_TABLES

log = logging.getLogger(__name__)

TABLES = frozenset(SYNCED_TABLES)
"""The tables of which brokers send blocks. A row of theirs may be there twice after a crash, unless
it is of the log: see storage/journal.py."""
_CHECK_IN_THREAD_BYTES = 256 << 10
_LEARN_MAX_BYTES = 1 << 20
"""The columns of a larger block are not read: the block costs less directly."""
_SHAPES_MAX = 1000
# What may differ between the type of a block and that of its table: each value of one is a value of
# the other.
_EQUIVALENT = (
    (re.compile(r"LowCardinality\(String\)"), "String"),
    (re.compile(r"(DateTime64\(\d+), '[^']*'\)"), r"\1)"),
    (re.compile(r"^SimpleAggregateFunction\(\w+, (.*)\)$"), r"\1"),
)


class BlockIntake:
    """In front of the journal of `brokerhouse engine`."""

    def __init__(self, journal: JournaledEngine) -> None:
        self._journal = journal
        self._changing = 0
        """Statements that change tables now."""
        self._changes = 0
        """How many such statements there were."""
        self._shapes: dict[tuple[str, str], bytes] = {}
        """By table and columns: a block without rows, of the same types as all that wait in the
        journal, because those are merged."""
        self._checked: set[tuple[str, str]] = set()
        """The shapes that the tables have now."""

    async def append(self, table: str, columns: str, block: bytes, token: str) -> bool:
        """Append a block to the journal. False: it has to be inserted directly.

        Raises as `JournaledEngine.insert_block`.
        """
        if await self._journal.knows(table, token):
            return True
        if self._must_be_direct(table, token):
            return False
        changes = self._changes
        fits = await self._fits(table, columns, block, changes)
        if not fits or changes != self._changes or self._must_be_direct(table, token):
            return False
        await self._journal.append_block(table, columns, block, token)
        return True

    async def begin_direct(self, table: str, token: str) -> bool:
        """Announce a direct insert. False: the block of this token is stored already.

        Raises as `JournaledEngine.insert_block`.
        """
        if await self._journal.knows(table, token):
            return False
        await self._journal.note_direct(table, token)
        return True

    @asynccontextmanager
    async def tables_may_change(self) -> AsyncGenerator[None, None]:
        """Around a statement that changes tables: the journal is empty, and all inserts are direct.

        If the engine refuses rows of the journal, the statement may be there to change that.
        """
        self._changing += 1
        self._changes += 1
        try:
            await self._journal.appended_all()
            for stream in ALL:
                try:
                    await self._journal.drained([stream])
                except EngineError as error:
                    log.warning(
                        "a statement changes tables while rows wait in the journal: %s",
                        error,
                        extra=counted(),
                    )
            yield
        finally:
            self._changing -= 1
            self._checked.clear()
            if self._journal.is_empty:
                self._shapes.clear()

    async def drained(self, streams: Collection[int]) -> None:
        """As `JournaledEngine.drained`."""
        await self._journal.drained(streams)

    def _must_be_direct(self, table: str, token: str) -> bool:
        return self._changing > 0 or table not in TABLES or self._journal.is_direct(table, token)

    async def _fits(self, table: str, columns: str, block: bytes, changes: int) -> bool:
        """Whether it is a whole block with columns of which the engine takes every block.

        A shape is not remembered if tables have changed since `changes`.
        """
        if (table, columns) not in self._checked and not await self._learn(
            table, columns, block, changes
        ):
            return False
        blocks = self._shapes[table, columns], block
        try:
            if len(block) > _CHECK_IN_THREAD_BYTES:
                whole = await asyncio.to_thread(merge_blocks, blocks)
            else:
                whole = merge_blocks(blocks)
        except UnmergeableBlock:
            return False
        return whole is block  # it is not if there are no rows

    async def _learn(self, table: str, columns: str, block: bytes, changes: int) -> bool:
        """Whether the table has the columns of this block, which are remembered then."""
        if len(block) > _LEARN_MAX_BYTES or len(self._shapes) >= _SHAPES_MAX:
            return False
        try:
            found = await asyncio.to_thread(block_columns, block)
        except UnmergeableBlock:
            return False
        empty_block = block_without_rows(found)
        shape = self._shapes.get((table, columns), empty_block)
        if shape != empty_block or not await self._has_columns(table, columns, found):
            return False
        if changes != self._changes:  # what was read may be of before, or of the midst
            return False
        self._shapes.setdefault((table, columns), shape)
        self._checked.add((table, columns))
        return True

    async def _has_columns(self, table: str, columns: str, found: list[tuple[str, str]]) -> bool:
        """Whether the table has the columns of a block, and nothing that may refuse their rows."""
        embedded = self._journal.embedded
        place = {"database": embedded.database, "table": table}
        plain = await embedded.rows(query("is_plain_table"), place)
        rows = await embedded.rows(query("columns_to_insert"), place)
        types = {str(name): str(kind) for name, kind in rows}
        return (
            plain == [[1]]
            and (table != LOG_TABLE or {name for name, _ in found}.issuperset(LOG_KEY))
            and columns.split(", ") == [name for name, _ in found]
            and len(dict(found)) == len(found)
            and all(name in types and _bare(kind) == _bare(types[name]) for name, kind in found)
        )


def _bare(kind: str) -> str:
    """A type without what makes no difference to which values it has."""
    for pattern, text in _EQUIVALENT:
        kind = pattern.sub(text, kind)
    return kind
