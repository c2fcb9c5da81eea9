"""The transactional ids of this broker as they are stored, and the ends of their transactions.

A change of an id is stored as a row before `transaction` has it. Prepared transactions are
completed in the background: the markers first, then the new state. Both are retried until they
succeed.

A transactional id belongs to a slot, and its coordinator is the owner of the slot. If a broker
stores rows after another one has loaded its ids, these rows are ignored: versions of a later owner
are higher, and a broker acts on a row only while it coordinates the id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from brokerhouse.common.clock import Clock
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Backoff
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.coordinator.tables import TRANSACTIONS
from brokerhouse.coordinator.transaction_states import (
    NOT_STARTED,
    PREPARED,
    Member,
    Transaction,
    TransactionState,
)
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidRegularExpression,
    KafkaError,
)
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, Row
from brokerhouse.storage.row_lane import RowLane, TableRows
from brokerhouse.storage.slot_map import VERSIONS_OF_EPOCH

log = logging.getLogger(__name__)

_END_WAIT_S = 1.0
"""How long a request waits for the end of the transaction before; then the client asks again."""
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0


class Markers(Protocol):
    """Ends transactions in the partitions and groups that are part of them."""

    async def write(self, transaction: Transaction) -> None:
        """Returns when each of them has ended a prepared transaction. May be called again.

        Raises `EngineError` if that is not known.
        """


@dataclass(slots=True, eq=False)
class HostedTransaction:
    """A transactional id; `lock` is held while a request changes it."""

    transaction: Transaction
    version: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Task[None] | None = None


class HostedTransactions:
    """The transactional ids that this broker coordinates."""

    def __init__(
        self,
        engine: Engine,
        rows: RowLane,
        node_id: int,
        slots: OwnSlots,
        markers: Markers,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._node_id = node_id
        self._slots = slots
        self._markers = markers
        self._clock = clock
        self._hosted: dict[str, HostedTransaction] = {}
        self._forgotten_version = 0

    def __len__(self) -> int:
        return len(self._hosted)

    def __iter__(self) -> Iterator[HostedTransaction]:
        return iter(tuple(self._hosted.values()))

    def get(self, transactional_id: str) -> HostedTransaction | None:
        return self._hosted.get(transactional_id)

    async def matching(self, pattern: str) -> list[HostedTransaction]:
        """Those whose id a regular expression matches. Raises as `matching_ids`."""
        found = await matching_ids(self._engine, pattern)
        return [hosted for name, hosted in self._hosted.items() if name in found]

    def add(self, fresh: Transaction) -> HostedTransaction:
        """An id that is not stored yet, or that another request has added just now.

        Raises `CoordinatorNotAvailable` if it is not this broker's any more.
        """
        self._check_ours(fresh.transactional_id)
        first = self._slots.epoch_of(fresh.transactional_id) * VERSIONS_OF_EPOCH
        made = HostedTransaction(fresh, first + self._forgotten_version % VERSIONS_OF_EPOCH)
        return self._hosted.setdefault(fresh.transactional_id, made)

    # Which ids are coordinated here

    async def load(self, chosen: Callable[[str], bool]) -> None:
        """Coordinate these ids from now on, from what is stored; end what was prepared.

        Raises `EngineError`.
        """
        stored = await read_transactions(self._engine)
        self._drop(chosen)
        for transaction, version in stored:
            if chosen(transaction.transactional_id):
                hosted = HostedTransaction(transaction, version)
                self._hosted[transaction.transactional_id] = hosted
                if transaction.state in PREPARED:
                    self.begin_to_end(hosted)

    async def unload(self, chosen: Callable[[str], bool]) -> None:
        """Stop coordinating these ids. Returns when none of their rows is being stored."""
        await asyncio.gather(*self._drop(chosen), return_exceptions=True)
        await self._rows.store()

    def abandon(self) -> None:
        """Stop coordinating every id at once: the session of this broker is over."""
        self._drop(lambda _: True)

    async def close(self) -> None:
        """What is prepared is ended by the next start."""
        await asyncio.gather(*self._drop(lambda _: True), return_exceptions=True)

    def _drop(self, chosen: Callable[[str], bool]) -> Collection[asyncio.Task[None]]:
        """The tasks that end transactions of these ids; they are cancelled."""
        dropped = [self._hosted.pop(one) for one in list(self._hosted) if chosen(one)]
        ending = [one.ending for one in dropped if one.ending is not None]
        for task in ending:
            task.cancel()
        return ending

    # Storing

    async def store(self, hosted: HostedTransaction, changed: Transaction) -> None:
        """Raises `CoordinatorNotAvailable` if it is not stored."""
        self._check_hosted(hosted, changed.transactional_id)
        hosted.version = self._next_version(hosted)
        try:
            await self._rows.store(transaction_row(changed, hosted.version, self._node_id))
        except EngineError as error:
            raise CoordinatorNotAvailable(f"Cannot store the transaction: {error}") from error
        # If another broker has loaded the id meanwhile, it may not have seen this row.
        self._check_hosted(hosted, changed.transactional_id)
        hosted.transaction = changed

    def _check_hosted(self, hosted: HostedTransaction, transactional_id: str) -> None:
        self._check_ours(transactional_id)
        if self._hosted.get(transactional_id) is not hosted:
            raise CoordinatorNotAvailable(
                f"The transactional id {transactional_id!r} has expired, or another broker"
                " coordinates it now."
            )

    def _check_ours(self, transactional_id: str) -> None:
        if not self._slots.may_coordinate(transactional_id):
            raise CoordinatorNotAvailable(
                f"Another broker coordinates the transactional id {transactional_id!r} now."
            )

    def _next_version(self, hosted: HostedTransaction) -> int:
        first = self._slots.epoch_of(hosted.transaction.transactional_id) * VERSIONS_OF_EPOCH
        return max(hosted.version + 1, first + self._clock.wall_ms())

    async def forget(self, hosted: HostedTransaction) -> None:
        """The id has expired. Raises `EngineError` and `CoordinatorNotAvailable`."""
        transactional_id = hosted.transaction.transactional_id
        async with hosted.lock:
            self._check_hosted(hosted, transactional_id)
            version = hosted.version = self._next_version(hosted)
            await self._rows.store(
                transaction_row(hosted.transaction, version, self._node_id, removed=True)
            )
            if self._hosted.get(transactional_id) is hosted:
                del self._hosted[transactional_id]
                self._forgotten_version = max(self._forgotten_version, version)

    # Ending

    async def end_of_the_one_before(self, hosted: HostedTransaction) -> None:
        """Wait for it, for a moment."""
        if hosted.ending is not None and hosted.transaction.state in PREPARED:
            await asyncio.wait({hosted.ending}, timeout=_END_WAIT_S)

    def begin_to_end(self, hosted: HostedTransaction) -> None:
        """End what is prepared, in the background."""
        name = f"end-{hosted.transaction.transactional_id}"
        hosted.ending = asyncio.create_task(self._end_prepared(hosted), name=name)
        hosted.ending.add_done_callback(_log_failure)

    async def _end_prepared(self, hosted: HostedTransaction) -> None:
        """Write the markers, then note that they are written; again until both have worked."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            prepared = hosted.transaction
            try:
                self._check_hosted(hosted, prepared.transactional_id)
                await self._markers.write(prepared)
                await self.store(hosted, prepared.completed(self._clock.wall_ms()))
                return
            except (EngineError, KafkaError) as error:
                what = f"{prepared.transactional_id!r} cannot be ended yet"
                await asyncio.sleep(backoff.after(error, log, what))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("bug: cannot end a transaction", exc_info=task.exception(), extra=counted())


_BAD_ARGUMENTS, _CANNOT_COMPILE_REGEXP = 36, 427


def transaction_row(
    transaction: Transaction, version: int, node_id: int, *, removed: bool = False
) -> TableRows:
    t = transaction
    producer = t.producer_id, t.epoch, t.last_epoch, t.previous_producer_id, t.next_producer_id
    state = t.timeout_ms, t.state.value, t.version, sorted(t.members), sorted(t.groups)
    times = max(t.started_ms, 0), t.updated_ms
    row = (t.transactional_id, version, *producer, *state, *times, removed, node_id)
    return TableRows(TRANSACTIONS, [row])


async def read_transactions(engine: Engine) -> list[tuple[Transaction, int]]:
    """Every transactional id that has not expired, and its version. Raises `EngineError`."""
    rows = await engine.rows(query("transactions"))
    return [(_transaction(row), row[1]) for row in rows if not row[-1]]


async def matching_ids(engine: Engine, pattern: str) -> set[str]:
    """The transactional ids of which all is matched by a regular expression, in RE2's syntax.

    Raises `InvalidRegularExpression`, and `EngineError`.
    """
    try:
        rows = await engine.rows(query("matching_transactions"), {"pattern": pattern})
    except EngineError as error:
        if error.code in (_BAD_ARGUMENTS, _CANNOT_COMPILE_REGEXP):
            raise InvalidRegularExpression(
                f"{pattern!r} is not a regular expression in RE2's syntax."
            ) from error
        raise
    return {row[0] for row in rows}


def _transaction(row: Row) -> Transaction:
    transactional_id, _, producer_id, epoch, last_epoch, previous_id, next_id, *rest = row
    timeout_ms, state, version, topics, topic_ids, partitions, groups, *times, _ = rest
    started_ms, updated_ms = times
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        timeout_ms=timeout_ms,
        epoch=epoch,
        last_epoch=last_epoch,
        previous_producer_id=previous_id,
        next_producer_id=next_id,
        state=TransactionState(state),
        version=version,
        members=frozenset(
            Member(topic, UUID(topic_id), partition)
            for topic, topic_id, partition in zip(topics, topic_ids, partitions, strict=True)
        ),
        groups=frozenset(groups),
        started_ms=started_ms or NOT_STARTED,
        updated_ms=updated_ms,
    )
