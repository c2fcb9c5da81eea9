"""The transaction coordinator: drives the transactional ids of this broker.

Every change of an id is a row before anybody is told or acts on it. `EndTxn` is answered when the
decision is stored; the markers are written behind it, and requests for the next transaction wait
for them for a moment. A start reads what is stored, and ends what was prepared.

transaction_states.py decides; this module stores, waits and keeps the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from common.clock import Clock
from common.tasks import Backoff, Outage, Periodic
from coordinator.transaction_rows import read_transactions, transaction_row
from coordinator.transaction_states import (
    ENDED,
    PREPARED,
    Member,
    Producer,
    Transaction,
    TransactionState,
)
from protocol.errors import (
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    KafkaError,
    PolicyViolation,
)
from storage.engine import Engine, EngineError
from storage.row_lane import RowLane

log = logging.getLogger(__name__)

T = TypeVar("T")

_END_WAIT_S = 1.0
"""How long a request waits for the end of the transaction before; then the client asks again."""
_LOOK_EVERY_S = 1.0
_LOOKS_AT_ONCE = 1000
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0


class FreshIds(Protocol):
    async def next(self) -> int:
        """A producer id that was never assigned before. Raises `EngineError`."""


class Markers(Protocol):
    """Ends transactions in the partitions and groups that are part of them."""

    async def write(self, transaction: Transaction) -> None:
        """Returns when each of them has ended a prepared transaction. May be called again.

        Raises `EngineError` if that is not known.
        """


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    max_timeout_ms: int
    max_ids: int
    expiration_ms: int
    """After which an id that nobody uses is forgotten."""


@dataclass(slots=True, eq=False)
class _Hosted:
    """A transactional id; `lock` is held while a request changes it."""

    transaction: Transaction
    version: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Task[None] | None = None


class TransactionCoordinator:
    """The transactional ids of this broker. Methods raise the `KafkaError` that the client gets."""

    def __init__(
        self,
        engine: Engine,
        rows: RowLane,
        node_id: int,
        producer_ids: FreshIds,
        markers: Markers,
        limits: TransactionLimits,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._node_id = node_id
        self._producer_ids = producer_ids
        self._markers = markers
        self._limits = limits
        self._clock = clock
        self._hosted: dict[str, _Hosted] = {}
        self._requests: set[asyncio.Task[Any]] = set()
        self._full = Outage(
            log, "new transactional ids are refused", "there is room for transactional ids again"
        )
        self._periodic = Periodic("transactions", _LOOK_EVERY_S, self._look)

    async def load(self) -> None:
        """Read what is stored, and end what was prepared. Raises `EngineError`."""
        for transaction, version in await read_transactions(self._engine):
            hosted = _Hosted(transaction, version)
            self._hosted[transaction.transactional_id] = hosted
            if transaction.state in PREPARED:
                self._begin_to_end(hosted)
        self._periodic.start()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        """Tasks that run until `close`, and end earlier only because of a bug."""
        return self._periodic.background

    async def close(self) -> None:
        """What is prepared is ended by the next start."""
        await self._periodic.close()
        await asyncio.gather(*self._requests, return_exceptions=True)
        ending = [one.ending for one in self._hosted.values() if one.ending is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def all(self) -> list[Transaction]:
        return [hosted.transaction for hosted in self._hosted.values()]

    def get(self, transactional_id: str) -> Transaction | None:
        hosted = self._hosted.get(transactional_id)
        return None if hosted is None else hosted.transaction

    # Requests

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        """InitProducerId: a new instance of the producer. What the one before began is aborted."""
        if not transactional_id:
            raise InvalidRequest("a transactional id must not be empty")
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"transaction.timeout.ms must be from 1 to {self._limits.max_timeout_ms}"
            )
        return await self._to_its_end(self._begin_producer(transactional_id, timeout_ms, expected))

    async def _begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        hosted = self._hosted.get(transactional_id)
        if hosted is None:
            if len(self._hosted) >= self._limits.max_ids:
                self._full.failed(PolicyViolation(f"there are {len(self._hosted)} already"))
                raise PolicyViolation("there are too many transactional ids")
            self._full.worked()
            fresh = Transaction(transactional_id, await self._next_id(), timeout_ms)
            hosted = self._hosted.setdefault(transactional_id, _Hosted(fresh))
        async with hosted.lock:
            await self._end_of_the_one_before(hosted)
            now_ms = self._clock.wall_ms()
            if hosted.transaction.state is TransactionState.ONGOING and (
                expected is None or expected.producer_id == hosted.transaction.producer_id
            ):
                await self._store(hosted, hosted.transaction.fenced(now_ms))
                self._begin_to_end(hosted)
                await self._end_of_the_one_before(hosted)
            fresh_id = await self._next_id() if hosted.transaction.is_exhausted else -1
            begun = hosted.transaction.initialised(timeout_ms, expected, fresh_id, now_ms)
            await self._store(hosted, begun)
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
        hosted: _Hosted,
        producer: Producer,
        members: Collection[Member],
        groups: Collection[str],
        version: int,
    ) -> None:
        async with hosted.lock:
            await self._end_of_the_one_before(hosted)
            added = hosted.transaction.with_added(
                producer, members, groups, version, self._clock.wall_ms()
            )
            if added is not hosted.transaction:
                await self._store(hosted, added)

    def verify(self, transactional_id: str, producer: Producer, member: Member) -> None:
        """Whether a partition is part of the producer's transaction: see `Transaction.verify`."""
        self._known(transactional_id).transaction.verify(producer, member)

    @asynccontextmanager
    async def going_on(
        self, transactional_id: str, producer: Producer, group_id: str
    ) -> AsyncIterator[None]:
        """The producer's transaction includes the offsets of this group, and does not end inside.

        Raises as `Transaction.verify_group`.
        """
        hosted = self._known(transactional_id)
        async with hosted.lock:
            hosted.transaction.verify_group(producer, group_id)
            yield

    async def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int
    ) -> Producer:
        """EndTxn: returns when it is stored that the transaction is committed or aborted.

        The producer with which the client goes on.
        """
        hosted = self._known(transactional_id)
        return await self._to_its_end(self._end(hosted, producer, commit, version))

    async def _end(
        self, hosted: _Hosted, producer: Producer, commit: bool, version: int
    ) -> Producer:
        async with hosted.lock:
            await self._end_of_the_one_before(hosted)
            is_last = version >= 2 and hosted.transaction.is_exhausted
            fresh_id = await self._next_id() if is_last else -1
            ended = hosted.transaction.ended(
                producer, commit=commit, version=version, fresh_id=fresh_id,
                now_ms=self._clock.wall_ms(),
            )  # fmt: skip
            if ended is not hosted.transaction:
                await self._store(hosted, ended)
                self._begin_to_end(hosted)
        if ended.state in PREPARED and ended.next_producer_id >= 0:
            return Producer(ended.next_producer_id, 0)
        return Producer(ended.producer_id, ended.epoch)

    async def _to_its_end(self, request: Coroutine[Any, Any, T]) -> T:
        """A client that leaves stops no request halfway: what is stored has to be acted on."""
        task = asyncio.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return await asyncio.shield(task)

    def _known(self, transactional_id: str) -> _Hosted:
        hosted = self._hosted.get(transactional_id)
        if hosted is None:
            raise InvalidProducerIdMapping(f"there is no transactional id {transactional_id!r}")
        return hosted

    async def _next_id(self) -> int:
        try:
            return await self._producer_ids.next()
        except EngineError as error:
            raise CoordinatorNotAvailable(f"no producer id can be reserved: {error}") from error

    # Ending

    async def _end_of_the_one_before(self, hosted: _Hosted) -> None:
        if hosted.ending is not None and hosted.transaction.state in PREPARED:
            await asyncio.wait({hosted.ending}, timeout=_END_WAIT_S)

    def _begin_to_end(self, hosted: _Hosted) -> None:
        name = f"end-{hosted.transaction.transactional_id}"
        hosted.ending = asyncio.create_task(self._end_prepared(hosted), name=name)
        hosted.ending.add_done_callback(_log_failure)

    async def _end_prepared(self, hosted: _Hosted) -> None:
        """Write the markers, then note that they are written; again until both have worked."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            prepared = hosted.transaction
            try:
                await self._markers.write(prepared)
                await self._store(hosted, prepared.completed(self._clock.wall_ms()))
                return
            except (EngineError, KafkaError) as error:
                what = f"{prepared.transactional_id!r} cannot be ended yet"
                await asyncio.sleep(backoff.after(error, log, what))

    async def _store(self, hosted: _Hosted, changed: Transaction) -> None:
        """Raises `CoordinatorNotAvailable` if it is not stored."""
        if self._hosted.get(changed.transactional_id) is not hosted:
            raise CoordinatorNotAvailable(f"{changed.transactional_id!r} has just expired")
        version = max(hosted.version + 1, self._clock.wall_ms() * 1000)
        try:
            await self._rows.store(transaction_row(changed, version, self._node_id))
        except EngineError as error:
            raise CoordinatorNotAvailable(f"the transaction cannot be stored: {error}") from error
        hosted.transaction, hosted.version = changed, version

    # Time

    async def _look(self) -> None:
        """Abort transactions past their time-out, and forget ids that nobody uses."""
        now_ms = self._clock.wall_ms()
        for number, (transactional_id, hosted) in enumerate(tuple(self._hosted.items())):
            if number % _LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be a hundred thousand
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
                    await self._forget(transactional_id, hosted)
            except (EngineError, KafkaError) as error:
                log.warning("%r: %s; retrying", transactional_id, error)

    async def _abort_timed_out(self, hosted: _Hosted) -> None:
        async with hosted.lock:
            now_ms = self._clock.wall_ms()
            if hosted.transaction.has_timed_out(now_ms):
                log.info("%r: its time is up: aborting", hosted.transaction.transactional_id)
                await self._store(hosted, hosted.transaction.fenced(now_ms))
                self._begin_to_end(hosted)

    async def _forget(self, transactional_id: str, hosted: _Hosted) -> None:
        async with hosted.lock:
            version = max(hosted.version + 1, self._clock.wall_ms() * 1000)
            await self._rows.store(
                transaction_row(hosted.transaction, version, self._node_id, removed=True)
            )
            if self._hosted.get(transactional_id) is hosted:
                del self._hosted[transactional_id]


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a transaction cannot be ended: a bug", exc_info=task.exception())
