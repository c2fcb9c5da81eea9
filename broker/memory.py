"""The memory of requests and of responses, over all connections: two budgets in bytes.

Requests (`RequestMemory`): past the budget only one connection at a time is still read.

Responses (`ResponseMemory`): they are charged before records are read. The memory of a response is
charged to its connection (`ResponseCharge`) until the last byte has left for the socket. A large
batch that several responses share is counted once, because it is in memory once. One response can
take a quarter of the free budget, as switches share a buffer between ports ("dynamic threshold",
Choudhury and Hahne 1998). So no client can take everything, and later ones get less. Responses that
do not fit wait in the order of arrival.

The last quarter of the budget is reserved for clients that have read all of their responses, and
for small responses. So clients that never read do not block them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

_SMALL_SHARE_BYTES = 1 << 20
_STALLED_AFTER_S = 5.0


class Throttled(Protocol):
    """What `RequestMemory` needs of a connection."""

    last_active: float
    """When bytes last arrived, by the event loop's clock."""

    @property
    def idle(self) -> bool:
        """Whether none of its requests is being answered."""

    def update_reading(self) -> None:
        """Call `RequestMemory.holds_back` again."""

    def abort(self, reason: str) -> None:
        """Close it now."""


class RequestMemory:
    """Bytes of unanswered requests, over all connections.

    Past the budget only one connection at a time has the turn and is still read. Without that,
    half-received requests could fill the budget and all wait for each other. A connection that has
    the turn and sends nothing is closed. The newest one is next, because clients that stalled are
    among the older ones.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._held_back: dict[Throttled, None] = {}  # a set that keeps its order
        self._turn: Throttled | None = None

    def change(self, delta: int) -> None:
        self.size += delta
        if self._held_back and self.size < self.max_bytes:
            released, self._held_back = self._held_back, {}
            for connection in released:
                connection.update_reading()

    def holds_back(self, connection: Throttled, held: int) -> bool:
        """Whether a connection that holds `held` bytes must not be read for now.

        A connection that holds little is always read, so that small requests get through while
        large ones wait.
        """
        if self.size < self.max_bytes or held <= _SMALL_SHARE_BYTES:
            self._held_back.pop(connection, None)
            if self._turn is connection:
                self.forget(connection)
            return False
        if self._turn is None:
            self._give_turn(connection)
        if self._turn is connection:
            return False
        self._held_back[connection] = None
        return True

    def forget(self, connection: Throttled) -> None:
        """This connection needs no turn, or is closed: the next one gets the turn."""
        self._held_back.pop(connection, None)
        if self._turn is connection:
            self._turn = None
        while self._held_back and self._turn is None:
            waiting, _ = self._held_back.popitem()
            waiting.update_reading()

    def _give_turn(self, connection: Throttled) -> None:
        self._turn = connection
        self._held_back.pop(connection, None)
        loop = asyncio.get_running_loop()
        loop.call_later(_STALLED_AFTER_S, self._check_turn, connection, loop.time())

    def _check_turn(self, connection: Throttled, since: float) -> None:
        if self._turn is not connection:
            return
        if self._held_back and connection.idle and connection.last_active <= since:
            connection.abort("its request stopped arriving while other connections wait for memory")
            return
        self._give_turn(connection)


_PIECE_BYTES = 64
"""For each batch of a response: entries of lists, the head of the object, the buffer's entry."""
_SHARED_BATCH_BYTES = 16 << 10
"""Smaller batches are charged in full: to count who holds them would cost more than it saves."""
_SMALL_RESPONSE_BYTES = 64 << 10
_TRUSTED_BYTES = 1 << 20
"""More than the socket's buffers take for a client that reads nothing."""
_FIRST_ESTIMATE_BYTES = 1 << 20
_WOKEN_AT_ONCE = 32
_TINY_RESPONSE_BYTES = 4 << 10
_SHARE_OF_A_CROWD_BYTES = 1 << 20


_Queue: TypeAlias = OrderedDict[asyncio.Future[None], int]
"""Who waits, and for how many bytes."""


class ResponseMemory:
    """The budget. `charge` gives each connection its account."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._holders: dict[int, int] = {}
        # Those who wait: first the clients that read, then the others.
        self._waiting: tuple[_Queue, _Queue] = (OrderedDict(), OrderedDict())
        self._is_serving = False
        self._keepers: set[asyncio.Event] = set()
        self._last_sizes: dict[int, int] = {}

    def charge(self) -> ResponseCharge:
        return ResponseCharge(self)

    @property
    def is_short(self) -> bool:
        """Whether responses wait for memory."""
        return any(self._waiting)

    @property
    def is_tight(self) -> bool:
        """Whether more than half is used: clients that do not read have to go."""
        return self.used > self.max_bytes // 2 or self.is_short

    @property
    def room(self) -> int:
        """Bytes that the response of any client may have now; always enough for a small one."""
        return self.room_for(trusted=False)

    def room_for(self, *, trusted: bool) -> int:
        return max((self._limit(trusted) - self.used) // 4, _SMALL_RESPONSE_BYTES)

    def estimate(self, api_key: int) -> int:
        """How large the response of an API may become: about as large as the last ones."""
        return self._last_sizes.get(api_key, _FIRST_ESTIMATE_BYTES)

    def note_size(self, api_key: int, size: int) -> None:
        before = self._last_sizes.get(api_key, 0)
        self._last_sizes[api_key] = max(size, before - before // 8)

    def wake_when_short(self, event: asyncio.Event) -> None:
        """Set the event when a response has to wait: whoever holds records can answer at once."""
        self._keepers.add(event)

    def forget_event(self, event: asyncio.Event) -> None:
        self._keepers.discard(event)

    # For charges

    def _limit(self, trusted: bool) -> int:
        return self.max_bytes if trusted else self.max_bytes - self.max_bytes // 4

    def _fits(self, size: int, trusted: bool) -> bool:
        # One that is larger than half of the budget may exceed it: a batch is never cut (KIP-74).
        needed = min(size, self.max_bytes // 2)
        return self.used + needed <= self._limit(trusted or size <= _SMALL_RESPONSE_BYTES)

    def _may_have(self, size: int, trusted: bool) -> bool:
        if not self._fits(size, trusted):
            return False
        return size <= _SMALL_RESPONSE_BYTES or not (
            self._waiting[0] or (not trusted and self._waiting[1])
        )

    async def _grant(self, size: int, trusted: bool) -> None:
        """Count `size` bytes, as soon as there is room for them."""
        if self._may_have(size, trusted):
            self.used += size
            return
        queue = self._waiting[0 if trusted else 1]
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue[granted] = size
        self._wake_keepers()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                queue.pop(granted, None)
                self._serve_waiting()
            else:
                self._release(size)
            raise

    def _release(self, size: int) -> None:
        self.used -= size
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Grant what fits, one in each turn of the event loop: what they make may be large."""
        if not self._is_serving and self.is_short:
            self._is_serving = True
            asyncio.get_running_loop().call_soon(self._serve_next)

    def _serve_next(self) -> None:
        self._is_serving = False
        for queue, trusted in zip(self._waiting, (True, False), strict=True):
            if not queue:
                continue
            granted, size = next(iter(queue.items()))
            if not granted.cancelled():
                if not self._fits(size, trusted):
                    continue
                self.used += size
                granted.set_result(None)
            del queue[granted]
            self._serve_waiting()
            break
        if self.is_short:
            self._wake_keepers()

    def _wake_keepers(self) -> None:
        for _ in range(min(_WOKEN_AT_ONCE, len(self._keepers))):
            self._keepers.pop().set()

    def _missing_bytes(self, batches: Iterable[bytes]) -> int:
        """What these shared batches add to the bytes that are held already."""
        holders = self._holders
        return sum(len(batch) for batch in batches if id(batch) not in holders)

    def _hold(self, batches: Sequence[bytes]) -> None:
        holders = self._holders
        for batch in batches:
            key = id(batch)  # nobody else has it while the batch is held
            count = holders.get(key, 0)
            if not count:
                self.used += len(batch)
            holders[key] = count + 1

    def _let_go(self, batches: Sequence[bytes]) -> None:
        holders, freed = self._holders, 0
        for batch in batches:
            key = id(batch)
            count = holders.pop(key)
            if count > 1:
                holders[key] = count - 1
            else:
                freed += len(batch)
        self._release(freed)


class ResponseCharge:
    """What the responses of one connection hold, until they have been sent."""

    __slots__ = (
        "_batches",
        "_closed",
        "_memory",
        "_own",
        "_reserved",
        "_shared",
        "_taken",
        "has_to_share",
    )

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._batches: dict[int, Sequence[bytes]] = {}
        self._own = 0
        self._shared = 0
        self._reserved = 0
        self._taken = 0
        self._closed = False
        self.has_to_share = False
        """Whether so many clients ask for much that each gets little at a time."""

    @property
    def memory(self) -> ResponseMemory:
        return self._memory

    @property
    def size(self) -> int:
        """The bytes of the responses, shared ones included."""
        return self._own + self._reserved + self._shared

    @property
    def is_trusted(self) -> bool:
        """Whether the client has read what it was sent."""
        return self._taken >= _TRUSTED_BYTES

    @property
    def room(self) -> int:
        """Bytes that a response may have now."""
        room = self._memory.room_for(trusted=self.is_trusted)
        return min(room, _SHARE_OF_A_CROWD_BYTES) if self.has_to_share else room

    async def reserve(self, size: int) -> None:
        """Count `size` bytes for what is read next, as soon as there is room for them."""
        size -= self._reserved
        if size > 0 and not self._closed:
            await self._memory._grant(size, self.is_trusted)
            self._reserved += size

    def try_reserve(self, size: int) -> bool:
        """The same if there is room now."""
        size -= self._reserved
        if size <= 0 or self._closed:
            return True
        if not self._memory._may_have(size, self.is_trusted):
            return False
        self._memory.used += size
        self._reserved += size
        return True

    def drop_reserved(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._memory._release(reserved)

    def try_hold(self, batches: Sequence[bytes]) -> bool:
        """Count these batches, out of what was reserved first. False if there is no room."""
        if not batches or self._closed:
            return True
        own, is_shared = _own_bytes(batches)
        needed = own + (self._memory._missing_bytes(batches) if is_shared else 0)
        if needed > self._reserved and not self._memory._may_have(
            needed - self._reserved, self.is_trusted
        ):
            return False
        self._own += own
        self._memory.used += own
        if is_shared:
            self._memory._hold(batches)
            self._batches[id(batches)] = batches
            self._shared += sum(map(len, batches))
        used = min(needed, self._reserved)
        self._reserved -= used
        self._memory.used -= used
        return True

    def let_go(self, batches: Sequence[bytes]) -> None:
        """These batches, which `try_hold` counted, will not be sent."""
        if not batches or self._closed:
            return
        own, is_shared = _own_bytes(batches)
        self._own -= own
        self._memory._release(own)
        if is_shared:
            self._shared -= sum(map(len, batches))
            self._memory._let_go(self._batches.pop(id(batches)))

    def add(self, size: int) -> None:
        """Count bytes that exist already, out of what was reserved first."""
        if self._closed:
            return
        used = min(size, self._reserved)
        self._reserved -= used
        self._own += size
        self._memory.used += size - used

    def sent(self, in_all: int) -> None:
        """All is sent, this many bytes since the beginning. Nothing is held any more."""
        self._taken = in_all
        self._free()

    def close(self) -> None:
        """The connection has ended; from now on nothing is counted."""
        self._free()
        self._closed = True

    def _free(self) -> None:
        if not (self._own or self._reserved or self._batches):
            return
        batches, self._batches = self._batches, {}
        own = self._own + self._reserved
        self._own = self._reserved = self._shared = 0
        for held in batches.values():
            self._memory._let_go(held)
        self._memory._release(own)


def cost(batches: Sequence[bytes]) -> int:
    """What `try_hold` counts at most."""
    return sum(map(len, batches)) + len(batches) * _PIECE_BYTES


def _own_bytes(batches: Sequence[bytes]) -> tuple[int, bool]:
    """What no other response shares, and whether the batches are large enough to be shared."""
    size = sum(map(len, batches))
    is_shared = size >= _SHARED_BATCH_BYTES * len(batches)
    return len(batches) * _PIECE_BYTES + (0 if is_shared else size), is_shared


def is_tiny(size: int) -> bool:
    """Whether a response of this size is not worth a reservation."""
    return size <= _TINY_RESPONSE_BYTES
