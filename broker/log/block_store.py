"""Stores the blocks of one lane, each under a number of its own.

An insert whose outcome is unknown is repeated, the same block with the same token, until the
outcome is known. When an insert is rejected, the engine is asked whether the rows are really not
stored. When the engine knows the token and not the rows, the block gets another number.

The lease (broker/log/write_lease.py) is checked before every attempt. A lane that may be fenced
leaves no block number unused, because its successor finds the last block by going through the
numbers (broker/log/fence.py): the number of a refused block is burnt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from brokerhouse.broker.log.block import PendingBlock
from brokerhouse.broker.log.fence import block_token
from brokerhouse.broker.log.transaction_tables import begun_rows
from brokerhouse.broker.log.write_lease import SentBlock, WriteLease
from brokerhouse.common.clock import DAY_MS
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Backoff, event_within
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.blocks import block as encoded_block
from brokerhouse.storage.engine import (
    BuildingEngine,
    Engine,
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NotSent,
    TokenUsed,
)

log = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0


class LeaseOver(Exception):
    """The lease is over: the lane has ended, and must not take its next step."""


class BlockStore:
    """One block at a time."""

    def __init__(self, lane: int, engine: Engine, lease: WriteLease, ended: asyncio.Event) -> None:
        """`ended`: the lane sends nothing more."""
        self.resolved = 0
        """The last number whose outcome is known, as that of all before it."""
        self.is_sent = False
        """Whether the block was sent to the engine."""
        self._lane = lane
        self._engine = engine
        self.takes_packed = isinstance(engine, BuildingEngine)
        """Whether `data` of the blocks may be a packed block."""
        self._builder: BuildingEngine | None = None
        # In a cluster a successor may fence this lane. So the lease is checked right before the
        # insert, and a block number is never returned.
        if isinstance(engine, BuildingEngine) and not lease.is_fenced:
            self._builder = engine
        self._lease = lease
        self._identity = str(lease.identity)
        self._ended = ended
        self._block_number = 0

    async def store(self, block: PendingBlock) -> None:
        """Raises `EngineError` when nothing is stored, and `LeaseOver`."""
        self._block_number += 1
        try:
            await self._store_begun(block)
            await self._store_rows(block)
        except EngineError:
            self.resolved = self._block_number
            raise
        self.resolved = self._block_number

    async def store_built(
        self, build: Callable[[], PendingBlock], size: int, append_time_ms: int
    ) -> PendingBlock | None:
        """The block that `build` returns, built and stored by the engine in one thread.

        None: `build` was not called, as the engine cannot do that, or not now. If the block is not
        `is_stored`, it may be given to `store`. It must not begin a transaction. `size`: about
        that of its rows, in bytes. Raises what `build` raises, and `LeaseOver`.
        """
        if self._builder is None:
            return None
        block: PendingBlock | None = None

        def data() -> bytes:
            nonlocal block
            block = build()
            return block.data

        self.check_lease(append_time_ms)
        self.is_sent = True
        self._block_number += 1
        with suppress(NotSent):  # `store` says it again
            await self._builder.insert_built("messages", COLUMN_LIST, data, size, self._token)
            if block is not None and block.rows:
                block.is_stored = True
                self.resolved = self._block_number
                return block
        self._block_number -= 1  # nothing has it
        return block

    def check_lease(self, append_time_ms: int) -> None:
        """Raises `LeaseOver` when nothing may be sent, published or acknowledged any more."""
        if self._ended.is_set() or not self._lease.is_valid():
            raise LeaseOver("The session of this broker is over.")
        if append_time_ms // DAY_MS not in self._lease.days():
            raise LeaseOver("The session of this broker may not write rows of this day.")

    @property
    def _token(self) -> str:
        return block_token(self._identity, self._lane, self._block_number)

    async def _store_begun(self, block: PendingBlock) -> None:
        """Before their records: store which transactions begin in the block. Raises as `store`."""
        if not block.staging.begun:
            return
        begun = begun_rows(block.staging.begun)
        table, data = begun.table, encoded_block(begun.table, begun.rows)
        token = f"{self._token}-begun"
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            self.check_lease(block.append_time_ms)
            try:
                await self._engine.insert_block(
                    self._lane, table.name, table.column_list, data, token
                )
                return
            except TokenUsed:  # perhaps without the rows, and they may be there twice
                token = f"{token}-again"
            except (NotSent, InsertRejected):
                if self._lease.is_fenced:
                    await self._is_stored(block)  # it is not: this burns its number
                raise
            except InsertOutcomeUnknown as error:
                await self._pause(backoff.after(error, log, f"outcome of {token} is unknown"))

    async def _store_rows(self, block: PendingBlock) -> None:
        """Insert until the outcome is known.

        Raises as `store`.
        """
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            self.check_lease(block.append_time_ms)
            self.is_sent = True
            token = self._token
            try:
                await self._engine.insert_block(
                    self._lane, "messages", COLUMN_LIST, block.data, token
                )
                return
            except NotSent:
                if self._lease.is_fenced and await self._is_stored(block):
                    log.warning(
                        "block %s is stored: an earlier attempt succeeded", token, extra=counted()
                    )
                    return
                raise
            except InsertRejected:
                if not await self._is_stored(block):
                    raise
                log.warning(
                    "block %s is stored, although ClickHouse refused it", token, extra=counted()
                )
                return
            except TokenUsed:
                if await self._is_stored(block):
                    return
                self.resolved = self._block_number
                self._block_number += 1
                log.warning(
                    "a crash used up token %s without storing its rows; using %s instead",
                    token,
                    self._token,
                    extra=counted(),
                )
            except InsertOutcomeUnknown as error:
                await self._pause(backoff.after(error, log, f"outcome of block {token} is unknown"))

    async def _is_stored(self, block: PendingBlock) -> bool:
        """As `WriteLease.is_stored`; retries until the engine answers."""
        partition, offset = next(iter(block.staging.first_offsets.items()))
        sent = SentBlock(self._lane, self._block_number, block.append_time_ms, partition, offset)
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            self.check_lease(block.append_time_ms)
            try:
                return await self._lease.is_stored(self._engine, sent)
            except EngineError as error:
                log.error(
                    "cannot find out whether a block is stored; retrying in %.2f s: %s",
                    backoff.next_s,
                    error,
                    extra=counted(),
                )
                await self._pause(backoff.advance())

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, unless the lane has ended.

        A shutdown does not end the wait: the outcome has to be known first.
        """
        await event_within(self._ended, seconds)
