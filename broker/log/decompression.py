"""Decompressing large batches beside the lanes, within one budget of memory for all connections.

A lane decompresses a batch itself as long as little comes out of it (batch_records.py). The rest
is done here, by threads that all lanes share, a piece at a time: no batch waits for all of another
one. What must hold:

* All batches together use `max_bytes` at most, from their first byte until they are stored. A batch
  starts when there is room for the largest output that it may have, so it never waits half-way.
* Connections take turns. One that has room already gets more only while as much is left for others.
* A batch whose producer has an answer already, or has left, is not decompressed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeAlias

from brokerhouse.broker.log.batch_records import BatchRecords
from brokerhouse.broker.log.block import AppendLimits, PendingAppend, compressed_records
from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol.errors import KafkaError, RequestTimedOut, UnknownServerError

log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 1 << 20
_THREADS: Final = min(max((os.cpu_count() or 1) // 2, 1), 4)


class LargeBatchWaiter(Protocol):
    """Who has to know how far a large batch is."""

    def granted(self, batch: LargeBatch) -> None:
        """It has its room in the budget: the next one of its partition may ask for room."""

    def finished(self, batch: LargeBatch) -> None:
        """It is decompressed, or will not be: it may go into a block."""


class LargeBatch:
    """A batch that a lane does not decompress itself, or one behind it in the same partition."""

    __slots__ = (
        "append",
        "is_finished",
        "is_granted",
        "is_removed",
        "most_bytes",
        "room",
        "waiter",
        "work",
    )

    def __init__(
        self, append: PendingAppend, waiter: LargeBatchWaiter, begun: BatchRecords | None
    ) -> None:
        """`begun`: how far its lane got."""
        self.append = append
        self.waiter = waiter
        self.work = begun
        self.most_bytes = 0
        self.room = 0  # bytes of the budget that it has
        self.is_granted = False
        self.is_finished = False
        self.is_removed = False  # nobody waits for it

    @property
    def is_needed(self) -> bool:
        return not self.append.is_answered and self.append.partition.closed is None


_Sender: TypeAlias = object
"""Whose batches take turns with those of others: a connection."""


class Decompressions:
    """The large batches of all lanes. All but the decompression itself is on the event loop."""

    def __init__(self, max_bytes: int, limits: AppendLimits) -> None:
        self._max_bytes = max(max_bytes, limits.decompressed_max_bytes)
        self._limits = limits
        self.used_bytes = 0
        self._room_of: dict[_Sender, int] = {}
        self._waiting: dict[_Sender, deque[LargeBatch]] = {}
        self._running: deque[LargeBatch] = deque()
        self._is_granting = False
        self._idle_threads = _THREADS
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="decompress")

    def request(self, batch: LargeBatch) -> None:
        """Decompress this batch when it is its turn."""
        if not batch.append.header.codec:
            self._finish(batch)
            return
        try:
            batch.work = batch.work or compressed_records(batch.append, self._limits)
        except KafkaError as error:
            self._finish(batch, error)
            return
        batch.most_bytes = batch.work.most_bytes
        self._waiting.setdefault(batch.append.sender, deque()).append(batch)
        self.grant_in_turn()
        if not batch.is_granted:
            batch.work = None  # it begins again when it has room: those that wait use no memory

    def release(self, batch: LargeBatch) -> None:
        """The batch is stored or refused: others may have its room."""
        batch.append.decompressed = None
        if batch.room:
            self._set_room(batch, 0)
            self.grant_in_turn()

    def grant_in_turn(self) -> None:
        """Start what has room, one batch of each connection after the other, and drop what is not
        needed any more."""
        if self._is_granting:
            return  # called by what is below
        self._is_granting = True
        try:
            while (queue := self._next_queue()) is not None:
                batch = queue.popleft()
                sender = batch.append.sender
                del self._waiting[sender]
                if queue:
                    self._waiting[sender] = queue  # behind the others
                self._grant(batch)
        finally:
            self._is_granting = False

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    # --- room

    def _next_queue(self) -> deque[LargeBatch] | None:
        """The connection whose batch may start now."""
        for sender, queue in self._waiting.items():
            batch = queue[0]
            if not batch.is_needed:
                return queue
            room = self._room_of.get(sender, 0)
            if room + batch.most_bytes <= self._max_bytes - self.used_bytes:
                return queue
            if not room:
                return None  # it is its turn: nobody may take the room that becomes free
        return None

    def _grant(self, batch: LargeBatch) -> None:
        append = batch.append
        _refuse_if_abandoned(append)
        if not batch.is_needed:
            self._finish(batch)
            return
        if batch.work is None:
            try:
                batch.work = compressed_records(append, self._limits)
            except KafkaError as error:  # the topic's configs have changed
                self._finish(batch, error)
                return
        self._set_room(batch, batch.most_bytes)
        self._running.append(batch)
        self._told_granted(batch)
        self._run_pieces()

    def _set_room(self, batch: LargeBatch, size: int) -> None:
        sender = batch.append.sender
        room = self._room_of.get(sender, 0) + size - batch.room
        self.used_bytes += size - batch.room
        batch.room = size
        if room:
            self._room_of[sender] = room
        else:
            self._room_of.pop(sender, None)

    def _told_granted(self, batch: LargeBatch) -> None:
        if not batch.is_granted:
            batch.is_granted = True
            batch.waiter.granted(batch)

    # --- work

    def _run_pieces(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle_threads and self._running:
            batch = self._running.popleft()
            assert batch.work is not None
            self._idle_threads -= 1
            piece = loop.run_in_executor(self._threads, batch.work.advance, _PIECE_BYTES)
            piece.add_done_callback(partial(self._piece_done, batch))

    def _piece_done(self, batch: LargeBatch, piece: asyncio.Future[None]) -> None:
        self._idle_threads += 1
        work = batch.work
        assert work is not None
        error = piece.exception()
        if error is not None:
            self._finish(batch, error)
        elif work.is_finished:
            batch.append.decompressed = work.result()
            self._set_room(batch, work.size)
            self._finish(batch)
        else:
            _refuse_if_abandoned(batch.append)
            if batch.is_needed:
                self._running.append(batch)
            else:
                self._finish(batch)
        self._run_pieces()
        self.grant_in_turn()

    def _finish(self, batch: LargeBatch, error: BaseException | None = None) -> None:
        """`batch` has its result, or an error, or nobody waits for it any more."""
        batch.work = None
        if error is not None:
            if isinstance(error, KafkaError):
                # A copy: the traceback of the error holds what was decompressed.
                batch.append.decompressed = type(error)(*error.args)
            else:
                log.error("bug: cannot decompress a record batch", exc_info=error, extra=counted())
                batch.append.decompressed = UnknownServerError(
                    "The request failed; see the broker's log."
                )
        if not isinstance(batch.append.decompressed, bytes):
            self._set_room(batch, 0)
        batch.is_finished = True
        self._told_granted(batch)
        batch.waiter.finished(batch)


def _refuse_if_abandoned(append: PendingAppend) -> None:
    if append.is_abandoned:
        append.refuse(
            RequestTimedOut("The producer disconnected before its batch was decompressed.")
        )
