"""Replicas as one engine: a shard of the cluster (`Shard`), and any server of it (`AnyServer`).

A shard asks its replicas in the order of preference. What must hold:
* Once the outcome of a token is unknown it stays unknown until a replica has accepted the token: a
  replica that refuses it says nothing about the one that did not answer. Even then, tables that
  are not replicated may know the token and not the rows (`TokenUsed`).
* A log never seems to end earlier than it does. Rows may be on another replica than the one that is
  read, so before the first read after a write elsewhere the replica fetches what it lacks
  (SYSTEM SYNC REPLICA ... LIGHTWEIGHT). A replica that cannot do so is not read.
* A replica that fails is not used for a pause that grows, and is used again once it answers a ping.
* A replica is pinged only when nothing else has shown for a while that it answers. While all is
  well, one that owes an answer may be silent for a second, the others for longer.

Writes ask for `quorum` replicas. When fewer are alive, `quorum_min` are enough, as Kafka's in-sync
replicas shrink to min.insync.replicas: a block that was acknowledged meanwhile is on that many.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from typing import TypeVar

from brokerhouse.common.clock import wall_ms
from brokerhouse.common.tasks import Backoff, Periodic
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.engine import (
    EngineError,
    InsertOutcomeUnknown,
    InsertRejected,
    NativeBlock,
    NotSent,
    Parameter,
    Row,
    TokenUsed,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_AFTER_MS = 3000
SYNCED_TABLES = (
    "messages",
    "consumer_offsets",
    "consumer_group_versions",
    "group_member_versions",
    "group_heartbeats",
    "partition_checkpoints",
    "leader_epochs",
    "producer_states",
    "topic_versions",
    "transaction_versions",
    "transaction_offsets",
    "open_transaction_versions",
    "aborted_transactions",
)
_PING_S = 0.5
_PING_ASKED_S = 1.0
"""For how long a replica that owes an answer may be silent before it is pinged."""
_PING_FIRST_S = 2.5  # the same for the replica that is asked first, while it owes none
_PING_SPARE_S = 5.0  # the same for the others, which nobody asks while the first one answers
_HEDGE_S = 0.25
"""How long a server may be silent before the next is asked as well."""
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 30.0
# More tokens than the lanes of many sessions have; the oldest is of a session that ended long ago.
_DOUBTS_MAX = 10_000
_QUORUM_TIMEOUT_SHARE = 0.8  # of the request's, so that the server reports the outcome
TOO_FEW_LIVE_REPLICAS = 285
_NOT_THERE = frozenset((60, 81))  # UNKNOWN_TABLE, UNKNOWN_DATABASE
# The server has a problem that another may not have. All other codes blame the statement.
_TROUBLE = frozenset(
    (
        0,  # no answer from ClickHouse
        159,  # TIMEOUT_EXCEEDED
        160,  # TOO_SLOW
        173,  # CANNOT_ALLOCATE_MEMORY
        *(192, 193, 194, 195),  # the user is unknown or not allowed there
        198,  # DNS_ERROR
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        203,  # NO_FREE_CONNECTION
        *(209, 210),  # SOCKET_TIMEOUT, NETWORK_ERROR
        225,  # NO_ZOOKEEPER
        236,  # ABORTED
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        244,  # UNEXPECTED_ZOOKEEPER_ERROR
        252,  # TOO_MANY_PARTS
        279,  # ALL_CONNECTION_TRIES_FAILED
        285,  # TOO_FEW_LIVE_REPLICAS
        394,  # QUERY_WAS_CANCELLED
        516,  # AUTHENTICATION_FAILED
        999,  # KEEPER_EXCEPTION
    )
)


class _Replica:
    """A server, and whether it works."""

    def __init__(self, server: ClickHouseServer) -> None:
        self.server = server
        self.failed = False
        self.failed_ms = 0
        self.rest_until = 0.0
        self.owed = 0  # requests that it has not answered yet
        self.silent_since: float | None = None
        self.unanswered_pings = 0
        self.writes = 0  # blocks and statements that may have reached it
        self.caught_up_to = -1  # how many writes elsewhere it has fetched
        self.catching_up = asyncio.Lock()
        self._backoff = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)

    @property
    def has_trouble(self) -> bool:
        return self.failed or self.silent_since is not None

    @contextmanager
    def owing(self) -> Iterator[None]:
        """While a request is under way."""
        self.owed += 1
        try:
            yield
        finally:
            self.owed -= 1

    def answered(self) -> None:
        """It answered, if only with an error."""
        self.server.heard.at = time.monotonic()
        self.silent_since = None
        self.unanswered_pings = 0

    def did_well(self) -> None:
        self.answered()
        self.failed = False
        self._backoff.reset()

    def has_failed(self, error: EngineError, asked_at: float) -> None:
        if error.code:
            self.answered()
        elif self.silent_since is None:
            self.silent_since = asked_at
        now = time.monotonic()
        if self.failed and now < self.rest_until:
            return  # one of many requests with the same problem
        log.warning("%s is not used for %.1f s: %s", self.server, self._backoff.next_s, error)
        self.failed = True
        self.failed_ms = wall_ms()
        self.rest_until = now + self._backoff.advance()

    def is_back(self) -> None:
        """It answers pings again. If its next request fails, its pause grows further."""
        self.answered()
        if self.failed:
            self.failed = False
            log.info("%s answers again", self.server)


def _judge(replica: _Replica, error: EngineError, asked_at: float, *, resend: bool) -> None:
    """Note what an error says about the replica. Raises it if no other would do better."""
    # The code of a statement says little about the server: a registry key that exists already is a
    # KEEPER_EXCEPTION, and so is a Keeper that does not answer.
    is_answer = not resend and error.code and not isinstance(error, NotSent)
    if is_answer or error.code not in _TROUBLE:
        replica.answered()
        raise error
    replica.has_failed(error, asked_at)


async def _first_that_can(
    replicas: Sequence[_Replica], ask: Callable[[_Replica], Awaitable[T]], *, resend: bool
) -> T:
    """The first answer. `resend`: another may be asked even if one may have executed it."""
    last: EngineError | None = None
    for replica in replicas:
        asked_at = time.monotonic()
        try:
            with replica.owing():
                answer = await ask(replica)
        except EngineError as error:
            _judge(replica, error, asked_at, resend=resend)
            if not resend and not isinstance(error, NotSent):
                raise
            last = error
        else:
            replica.did_well()
            return answer
    assert last is not None
    raise last


class _Doubts:
    """Tokens whose outcome is unknown."""

    def __init__(self) -> None:
        self.tokens: OrderedDict[str, bool] = OrderedDict()

    def add(self, token: str) -> None:
        self.tokens[token] = True
        self.tokens.move_to_end(token)
        if len(self.tokens) > _DOUBTS_MAX:
            self.tokens.popitem(last=False)

    def resolve(self, token: str) -> bool:
        return self.tokens.pop(token, False)


class Shard:
    """`storage.engine.Engine` on the replicas of one shard, in order of preference."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[ClickHouseServer],
        *,
        replicated: bool,
        quorum: int = 1,
        quorum_min: int = 1,
        away_after_ms: int = AWAY_AFTER_MS,
    ) -> None:
        """The shard closes its servers. `replicated`: the servers replicate the tables; otherwise
        all servers share them.

        `quorum` replicas have a block before it is acknowledged, or `quorum_min` when no more are
        alive.
        """
        self.name = name
        self.away = False
        self._replicas = [_Replica(server) for server in replicas]
        self._replicated = replicated
        self._quorum = quorum
        self._quorum_min = min(quorum_min, quorum)
        self._shrunk = False
        self._away_after_s = away_after_ms / 1000
        self._doubts = _Doubts()
        self._foreign_writes = 0
        self._pings = Periodic(f"pings of shard {name}", _PING_S, self._ping_all)

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        return self._pings.background

    @property
    def failures_ms(self) -> Mapping[str, int]:
        """When each server has last failed, in ms since 1970; only those that have."""
        return {one.server.url: one.failed_ms for one in self._replicas if one.failed_ms}

    async def start(self) -> None:
        """Begin the pings."""
        assert self._pings.task is None, "started twice"
        self._pings.start()
        assert self._pings.task is not None
        self._pings.task.add_done_callback(self._pings_ended)

    async def close(self) -> None:
        await self._pings.close()
        for replica in self._replicas:
            await replica.server.close()

    # --- inserts

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        last: EngineError = NotSent(f"shard {self.name} does not answer")
        for replica in self._to_ask():
            asked_at = time.monotonic()
            try:
                with replica.owing():
                    await self._insert(replica, table, columns, block, token)
            except InsertOutcomeUnknown as error:
                replica.writes += 1
                self._doubts.add(token)
                replica.has_failed(error, asked_at)
                last = error
            except InsertRejected as error:
                last = error
                if error.code not in _TROUBLE:
                    replica.answered()
                    break
                replica.has_failed(error, asked_at)
            except BaseException:
                # The caller was cancelled while the block was being sent.
                replica.writes += 1
                self._doubts.add(token)
                raise
            else:
                replica.writes += 1
                replica.did_well()
                self._answered()
                # Whether an earlier attempt may have been the one that is stored.
                if self._doubts.resolve(token) and not self._replicated:
                    raise TokenUsed(f"shard {self.name} may have the token {token} without rows")
                return
        if token in self._doubts.tokens:
            raise InsertOutcomeUnknown(str(last), last.code)
        raise last

    async def _insert(
        self, replica: _Replica, table: str, columns: str, block: bytes, token: str
    ) -> None:
        quorum = self._quorum
        try:
            await replica.server.insert(table, columns, block, token, self.quorum_settings())
        except InsertRejected as error:
            if error.code != TOO_FEW_LIVE_REPLICAS or self._quorum_min == quorum:
                raise
            quorum = self._quorum_min
            await replica.server.insert(
                table, columns, block, token, self.quorum_settings(least=True)
            )
        if self._shrunk != (quorum < self._quorum):
            self._shrunk = not self._shrunk
            log.warning("shard %s: %d replicas acknowledge a block now", self.name, quorum)

    def quorum_settings(self, *, least: bool = False) -> dict[str, str]:
        """For inserts; none if nothing is replicated. `least`: fewer replicas are alive."""
        if not self._replicated:
            return {}
        quorum = self._quorum_min if least else self._quorum
        server = self._replicas[0].server
        timeout_ms = int(server.request_timeout_ms * _QUORUM_TIMEOUT_SHARE)
        return {
            "insert_quorum": str(quorum if quorum > 1 else 0),
            "insert_quorum_parallel": "1",
            "insert_quorum_timeout": str(timeout_ms),
        }

    # --- reads and statements

    async def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        """As `Engine.read_native`. Another replica is asked only before the first block."""
        last: EngineError = NotSent(f"shard {self.name} does not answer")
        for replica in self._to_ask():
            asked_at = time.monotonic()
            begun = False
            try:
                with replica.owing():
                    await self._catch_up(replica)
                    blocks = replica.server.read_native(sql, params, chunk_bytes)
                    async with aclosing(blocks):
                        async for block in blocks:
                            begun = True
                            replica.did_well()
                            yield block
            except EngineError as error:
                if error.code not in _TROUBLE:
                    replica.answered()
                    raise
                replica.has_failed(error, asked_at)
                if begun:
                    raise
                last = error
            else:
                replica.did_well()
                self._answered()
                return
        raise last

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        async def ask(replica: _Replica) -> list[Row]:
            await self._catch_up(replica)
            return await replica.server.rows(sql, params)

        return await self._first_that_can(ask, resend=True)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """As `Engine.execute`. Sent to one replica only: the caller knows if it may be repeated.

        The next replica is asked only if the statement was not sent at all.
        """

        async def ask(replica: _Replica) -> None:
            replica.writes += 1
            await replica.server.execute(sql, params)

        await self._first_that_can(ask, resend=False)

    def expect_foreign_writes(self) -> None:
        """Others may have written to any replica: each one catches up before it is read again.

        Called when a slot is taken over.
        """
        self._foreign_writes += 1

    async def readable_server(self, kept: ClickHouseServer | None = None) -> ClickHouseServer:
        """A server that has fetched what was written elsewhere: `kept`, as long as it works.

        For sessions (shard_session.py). Raises `EngineError`.
        """
        replicas = self._to_ask()
        if not replicas:
            raise NotSent(f"shard {self.name} does not answer")
        works = (one for one in replicas if one.server is kept and not one.failed)
        replica = next(works, replicas[0])
        await self._catch_up(replica)
        return replica.server

    def has_failed(self, server: ClickHouseServer, error: EngineError, asked_at: float) -> None:
        """A session on one of the servers has failed."""
        for replica in self._replicas:
            if replica.server is server and error.code in _TROUBLE:
                replica.has_failed(error, asked_at)

    async def _first_that_can(self, ask: Callable[[_Replica], Awaitable[T]], *, resend: bool) -> T:
        replicas = self._to_ask()
        if not replicas:
            raise NotSent(f"shard {self.name} does not answer")
        answer = await _first_that_can(replicas, ask, resend=resend)
        self._answered()
        return answer

    async def _catch_up(self, replica: _Replica) -> None:
        """Make a replica fetch what was written elsewhere. Raises `EngineError`."""
        if not self._replicated or replica.caught_up_to == self._written_elsewhere(replica):
            return
        async with replica.catching_up:
            elsewhere = self._written_elsewhere(replica)
            if replica.caught_up_to == elsewhere:
                return
            for table in SYNCED_TABLES:
                try:
                    await replica.server.execute(f"SYSTEM SYNC REPLICA {table} LIGHTWEIGHT")
                except EngineError as error:
                    if error.code not in _NOT_THERE:  # before the first migration
                        raise
            replica.caught_up_to = elsewhere

    def _written_elsewhere(self, replica: _Replica) -> int:
        others = sum(other.writes for other in self._replicas if other is not replica)
        return others + self._foreign_writes

    # --- who answers

    def _to_ask(self) -> list[_Replica]:
        if self.away:
            return []
        # A replica that has failed is asked after all others.
        return sorted(self._replicas, key=lambda replica: replica.failed)

    def _answered(self) -> None:
        if self.away:
            self.away = False
            log.warning("shard %s answers again", self.name)

    async def _ping_all(self) -> None:
        await asyncio.gather(*map(self._ping, self._to_ping()))
        if not self.away and all(map(self._is_silent, self._replicas)):
            self.away = True
            log.error("shard %s does not answer: no replica is reachable", self.name)

    def _to_ping(self) -> list[_Replica]:
        now = time.monotonic()
        if not any(replica.has_trouble for replica in self._replicas):
            return [one for one in self._replicas if now >= self._expected_at(one)]
        all_failed = all(replica.failed for replica in self._replicas)
        return [
            replica
            for replica in self._replicas
            if not replica.failed or all_failed or replica.rest_until <= now
        ]

    def _expected_at(self, replica: _Replica) -> float:
        """When it should have answered something, whoever asked for it."""
        idle_s = _PING_FIRST_S if replica is self._replicas[0] else _PING_SPARE_S
        return replica.server.heard.at + (_PING_ASKED_S if replica.owed else idle_s)

    async def _ping(self, replica: _Replica) -> None:
        asked_at = time.monotonic()
        try:
            await replica.server.ping()
        except EngineError as error:
            if not error.code:
                replica.unanswered_pings += 1
            replica.has_failed(error, asked_at)
        else:
            replica.is_back()
            self._answered()

    def _is_silent(self, replica: _Replica) -> bool:
        # At least two pings: this process itself may have been stopped for a while.
        since = replica.silent_since
        return (
            since is not None
            and replica.unanswered_pings > 1
            and time.monotonic() - since >= self._away_after_s
        )

    def _pings_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("bug: shard %s is no longer pinged", self.name, exc_info=error)


class AnyServer:
    """`storage.engine.Engine` for small statements that any server of the cluster can run.

    The one that answered last is asked first. While it is silent the next one is asked as well: a
    lease may depend on the answer, and servers may hang. So a statement may be run by several
    servers, which the statements of storage/registry.py allow. The servers are closed by their
    owners.
    """

    def __init__(self, servers: Sequence[ClickHouseServer], timeout_ms: int) -> None:
        """`timeout_ms`: for one statement on one server; a lease may depend on it."""
        self._replicas = [_Replica(server) for server in servers]
        self._timeout_s = timeout_ms / 1000
        self._answered_last: _Replica | None = None

    async def insert_block(
        self, lane: int, table: str, columns: str, block: bytes, token: str
    ) -> None:
        raise InsertRejected("a block can be inserted only into a shard")

    def read_native(
        self, sql: str, params: Mapping[str, Parameter], chunk_bytes: int
    ) -> AsyncGenerator[NativeBlock, None]:
        raise EngineError("a log can be read only from a shard")

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        async def ask(replica: _Replica) -> list[Row]:
            return await self._in_time(replica.server, replica.server.rows(sql, params))

        return await self._first_answer(ask, resend=True)

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        async def ask(replica: _Replica) -> None:
            await self._in_time(replica.server, replica.server.execute(sql, params))

        await self._first_answer(ask, resend=False)

    async def _first_answer(self, ask: Callable[[_Replica], Awaitable[T]], *, resend: bool) -> T:
        """`resend`: another is asked even if the one that failed may have executed it."""
        waiting = self._to_ask()
        asked: dict[asyncio.Future[T], tuple[_Replica, float]] = {}
        last: EngineError | None = None
        try:
            while waiting or asked:
                if waiting and (last is None or resend or isinstance(last, NotSent)):
                    replica = waiting.pop(0)
                    asked[asyncio.ensure_future(ask(replica))] = replica, time.monotonic()
                elif not asked:
                    break
                done, _ = await asyncio.wait(
                    asked,
                    timeout=_HEDGE_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for one in done:
                    replica, asked_at = asked.pop(one)
                    try:
                        answer = one.result()
                    except EngineError as error:
                        _judge(replica, error, asked_at, resend=resend)
                        last = error
                    else:
                        replica.did_well()
                        self._answered_last = replica
                        return answer
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise last or NotSent("there is no server to ask")

    async def _in_time(self, server: ClickHouseServer, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError as error:
            raise EngineError(f"{server.url}: the server did not answer in time") from error

    async def close(self) -> None:
        """Nothing to do: the servers are closed by their owners."""

    def _to_ask(self) -> list[_Replica]:
        """All of them, the one that answered last first, those that failed a moment ago last."""
        now = time.monotonic()
        return sorted(
            self._replicas,
            key=lambda replica: (
                replica.failed and replica.rest_until > now,
                replica is not self._answered_last,
            ),
        )
