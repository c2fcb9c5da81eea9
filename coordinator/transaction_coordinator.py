"""The transaction coordinator: drives the transactional ids of this broker.

Every change of an id is stored as a row before it is answered or has an effect. `EndTxn` is
answered when the decision is stored. The markers are written afterwards, and requests for the next
transaction wait for them for a moment. A start reads the stored ids and completes prepared
transactions.

transaction_states.py decides, hosted_transactions.py stores and completes transactions; this module
checks requests and aborts transactions that time out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from brokerhouse.common.clock import Clock
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Outage, Periodic, in_turns
from brokerhouse.coordinator.hosted_transactions import HostedTransaction, HostedTransactions
from brokerhouse.coordinator.transaction_states import (
    ENDED,
    PREPARED,
    Member,
    Producer,
    Transaction,
    TransactionState,
)
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    KafkaError,
    PolicyViolation,
)
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_EVERY_S = 1.0


class FreshIds(Protocol):
    async def next(self) -> int:
        """A producer id that was never assigned before. Raises `EngineError`."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    max_timeout_ms: int
    max_ids: int
    expiration_ms: int
    """After which an id that nobody uses is forgotten."""


class TransactionCoordinator:
    """The transactional ids of this broker. Methods raise the `KafkaError` that the client gets."""

    def __init__(
        self,
        hosted: HostedTransactions,
        producer_ids: FreshIds,
        limits: TransactionLimits,
        clock: Clock,
    ) -> None:
        self.hosted = hosted
        self._producer_ids = producer_ids
        self._limits = limits
        self._clock = clock
        self._requests: set[asyncio.Task[Any]] = set()
        self._full = Outage(
            log, "new transactional ids are refused", "new transactional ids are accepted again"
        )
        self._periodic = Periodic("transactions", _LOOK_EVERY_S, self._look)

    def start(self) -> None:
        """Start what runs in the background."""
        self._periodic.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that run until `close`, and end earlier only because of a bug."""
        return self._periodic.background

    async def close(self) -> None:
        """What is prepared is ended by the next start."""
        await self._periodic.close()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.hosted.close()

    def all(self) -> list[Transaction]:
        return [hosted.transaction for hosted in self.hosted]

    async def matching(self, pattern: str) -> list[Transaction]:
        """Those whose id a regular expression matches as a whole."""
        try:
            return [hosted.transaction for hosted in await self.hosted.matching(pattern)]
        except EngineError as error:
            raise CoordinatorNotAvailable(f"Cannot read the transactional ids: {error}") from error

    def get(self, transactional_id: str) -> Transaction | None:
        hosted = self.hosted.get(transactional_id)
        return None if hosted is None else hosted.transaction

    # Requests

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        """InitProducerId: a new instance of the producer. What the one before began is aborted."""
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"transaction.timeout.ms must be from 1 to {self._limits.max_timeout_ms}."
            )
        return await self._to_its_end(self._begin_producer(transactional_id, timeout_ms, expected))

    async def _begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        hosted = self.hosted.get(transactional_id)
        if hosted is None:
            if len(self.hosted) >= self._limits.max_ids:
                self._full.failed(PolicyViolation(f"There are {len(self.hosted)} already."))
                raise PolicyViolation("There are too many transactional ids.")
            self._full.worked()
            fresh = Transaction(transactional_id, await self._next_id(), timeout_ms)
            hosted = self.hosted.add(fresh)
        async with hosted.lock:
            await self.hosted.end_of_the_one_before(hosted)
            now_ms = self._clock.wall_ms()
            if hosted.transaction.state is TransactionState.ONGOING and (
                expected is None or expected.producer_id == hosted.transaction.producer_id
            ):
                await self.hosted.store(hosted, hosted.transaction.fenced(now_ms))
                self.hosted.begin_to_end(hosted)
                await self.hosted.end_of_the_one_before(hosted)
            fresh_id = await self._next_id() if hosted.transaction.is_exhausted else -1
            begun = hosted.transaction.initialised(timeout_ms, expected, fresh_id, now_ms)
            await self.hosted.store(hosted, begun)
        return Producer(begun.producer_id, begun.epoch)

    async def add(
        self,
        transactional_id: str,
        producer: Producer,
        members: Collection[Member] = (),
        groups: Collection[str] = (),
        *,
        version: int = 0,
    ) -> None:
        """Make these partitions and groups part of the producer's transaction."""
        hosted = self._known(transactional_id)
        transaction = hosted.transaction
        if transaction.state is TransactionState.ONGOING and not hosted.lock.locked():
            now_ms = self._clock.wall_ms()
            if transaction.with_added(producer, members, groups, version, now_ms) is transaction:
                return
        await self._to_its_end(self._add(hosted, producer, members, groups, version))

    async def _add(
        self,
        hosted: HostedTransaction,
        producer: Producer,
        members: Collection[Member],
        groups: Collection[str],
        version: int,
    ) -> None:
        async with hosted.lock:
            await self.hosted.end_of_the_one_before(hosted)
            added = hosted.transaction.with_added(
                producer, members, groups, version, self._clock.wall_ms()
            )
            if added is not hosted.transaction:
                await self.hosted.store(hosted, added)

    def verify(self, transactional_id: str, producer: Producer, member: Member) -> None:
        """Whether a partition is part of the producer's transaction: see `Transaction.verify`."""
        self._known(transactional_id).transaction.verify(producer, member)

    def verify_group(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        """The same for the offsets of a group: see `Transaction.verify_group`."""
        self._known(transactional_id).transaction.verify_group(producer, group_id)

    async def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int
    ) -> Producer:
        """EndTxn: returns when it is stored that the transaction is committed or aborted.

        The producer with which the client goes on.
        """
        hosted = self._known(transactional_id)
        return await self._to_its_end(self._end(hosted, producer, commit, version))

    async def _end(
        self, hosted: HostedTransaction, producer: Producer, commit: bool, version: int
    ) -> Producer:
        async with hosted.lock:
            await self.hosted.end_of_the_one_before(hosted)
            is_last = version >= 2 and hosted.transaction.is_exhausted
            fresh_id = await self._next_id() if is_last else -1
            ended = hosted.transaction.ended(
                producer,
                commit=commit,
                version=version,
                fresh_id=fresh_id,
                now_ms=self._clock.wall_ms(),
            )
            if ended is not hosted.transaction:
                await self.hosted.store(hosted, ended)
                self.hosted.begin_to_end(hosted)
        if ended.state in PREPARED and ended.next_producer_id >= 0:
            return Producer(ended.next_producer_id, 0)
        return Producer(ended.producer_id, ended.epoch)

    async def _to_its_end(self, request: Coroutine[Any, Any, T]) -> T:
        """A client that leaves stops no request halfway: what is stored has to be acted on."""
        task = asyncio.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

    def _known(self, transactional_id: str) -> HostedTransaction:
        hosted = self.hosted.get(transactional_id)
        if hosted is None:
            raise InvalidProducerIdMapping(
                f"The transactional id {transactional_id!r} does not exist."
            )
        return hosted

    async def _next_id(self) -> int:
        try:
            return await self._producer_ids.next()
        except EngineError as error:
            raise CoordinatorNotAvailable(f"Cannot reserve a producer id: {error}") from error

    # Time

    async def _look(self) -> None:
        """Abort transactions past their time-out, and forget ids that nobody uses."""
        now_ms = self._clock.wall_ms()
        async for hosted in in_turns(self.hosted):  # there may be a hundred thousand
            if hosted.lock.locked():
                continue
            transaction = hosted.transaction
            try:
                if transaction.has_timed_out(now_ms):
                    await self._abort_timed_out(hosted)
                elif (
                    transaction.state in ENDED
                    and now_ms - transaction.updated_ms >= self._limits.expiration_ms
                ):
                    await self.hosted.forget(hosted)
            except (EngineError, KafkaError) as error:
                log.warning(
                    "cannot end or forget transaction %r; retrying: %s",
                    transaction.transactional_id,
                    error,
                    extra=counted(),
                )

    async def _abort_timed_out(self, hosted: HostedTransaction) -> None:
        async with hosted.lock:
            now_ms = self._clock.wall_ms()
            if hosted.transaction.has_timed_out(now_ms):
                log.info(
                    "transaction of %r timed out; aborting it",
                    hosted.transaction.transactional_id,
                    extra=counted(),
                )
                await self.hosted.store(hosted, hosted.transaction.fenced(now_ms))
                self.hosted.begin_to_end(hosted)
