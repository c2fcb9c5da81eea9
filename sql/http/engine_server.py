"""`brokerhouse engine`: the embedded engine alone, behind ClickHouse's HTTP interface.

It takes the place of a ClickHouse server, and does what a broker needs of a shard: inserts with
deduplication, through the journal where that is possible (storage/block_intake.py), KeeperMap
tables over a real Keeper, the same SQL and error codes. It does not replicate and does not speak
the native protocol. Several listeners of one engine stand for several replicas that are always
in sync.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvloop
from aiohttp import web

from brokerhouse.common.address import Address
from brokerhouse.sql.http.block_connections import EngineListeners
from brokerhouse.sql.http.engine_interface import EngineInterface
from brokerhouse.sql.http.interface import application
from brokerhouse.sql.http.settings import SqlSettings
from brokerhouse.storage.block_intake import BlockIntake
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.data_directory import DataDirectoryError, refuse_unfinished
from brokerhouse.storage.embedded import ClusterPlace, EmbeddedEngine
from brokerhouse.storage.engine import EngineError, StorageFault
from brokerhouse.storage.journal import JournaledEngine, JournalLimits, open_journal
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.schema_files import SchemaError
from brokerhouse.storage.shard_directory import become_shard

log = logging.getLogger(__name__)

KEEPER_LOOK_S = 1.0


class EngineStartError(Exception):
    """The engine cannot start; says in one sentence what to change."""


@dataclass(frozen=True, slots=True)
class EngineServerSettings:
    """What one engine stores, where it listens, and which replica of which shard it is.

    `place`: None if it has no Keeper.
    """

    sql: SqlSettings
    fsync: bool
    journal: JournalLimits
    skip_damage: bool
    """Of the journal, at this start."""
    listen: Sequence[Address]
    place: ClusterPlace | None


async def serve(server: EngineServerSettings, progress: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM. Prints the ready line.

    Raises `EngineStartError`, and `StorageFault` when what is on disk may be damaged.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    progress(f"opening {server.sql.data_dir}")
    journal = await _open(server)
    engine = journal.embedded
    try:
        for path in await engine.damaged_parts():
            log.error("the engine found %s damaged and left it out: its rows are missing", path)
        await _look_for_keeper(server.place.keepers if server.place else ())
        interface = EngineInterface(engine, server.sql, BlockIntake(journal))
        runner = web.AppRunner(application(interface), access_log=None)
        await runner.setup()
        listeners = EngineListeners(interface, _protocols(runner))
        try:
            addresses = [await _listen(listeners, address) for address in server.listen]
            print(f"ready http={','.join(map(str, addresses))}", flush=True)
            ending: list[asyncio.Future[Any]] = [loop.create_task(stop.wait()), interface.fault]
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            progress("stopping")
        finally:
            await listeners.close()
            await runner.cleanup()
        if interface.fault.done():
            interface.fault.result()
    finally:
        await journal.close()


async def _open(server: EngineServerSettings) -> JournaledEngine:
    """Returns when the tables have what the journal holds. Those of a single broker become those of
    a shard, if there is a Keeper.
    """
    try:
        refuse_unfinished(server.sql.data_dir)
        engine = await asyncio.to_thread(
            EmbeddedEngine,
            server.sql.data_dir,
            STREAMS,
            server.fsync,
            server.sql.limits.bounds,
            server.place,
            SHARD_DATABASE,
        )
        try:
            if server.place is not None:
                await become_shard(engine)
            return await open_journal(
                engine, server.journal, fsync=server.fsync, skip_damage=server.skip_damage
            )
        except BaseException:
            await engine.close()
            raise
    except (DataDirectoryError, EngineError, SchemaError) as error:
        raise EngineStartError(str(error)) from error


def _protocols(runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
    """Makes the protocol that serves one connection by aiohttp."""
    assert runner.server is not None
    return runner.server


async def _listen(listeners: EngineListeners, address: Address) -> Address:
    try:
        port = await listeners.listen(address.host, address.port)
    except OSError as error:
        raise EngineStartError(f"cannot listen for HTTP on {address}: {_reason(error)}") from error
    return address._replace(port=port)


async def _look_for_keeper(keepers: Sequence[tuple[str, int]]) -> None:
    """Warn when no Keeper answers. One may come later, as it may go away later."""

    async def answers(address: tuple[str, int]) -> bool:
        try:
            async with asyncio.timeout(KEEPER_LOOK_S):
                _, writer = await asyncio.open_connection(*address)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    if keepers and not any(await asyncio.gather(*map(answers, keepers))):
        log.warning(
            "no Keeper answers at %s: tables that need one fail until it does",
            ", ".join(f"{host}:{port}" for host, port in keepers),
        )


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    return error.strerror or str(error)


def run(server: EngineServerSettings) -> int:
    """Serve until a signal; returns the exit code. An error is one sentence on stderr."""

    def progress(text: str) -> None:
        print(f"brokerhouse engine: {text}", file=sys.stderr, flush=True)

    try:
        uvloop.run(serve(server, progress))
    except (EngineStartError, StorageFault) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
