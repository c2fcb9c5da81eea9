"""The control socket: how `brokerhouse backup` asks a running broker for a backup.

It is a Unix socket in the data directory. Only the user of the broker (and root) can connect to it.
They could also copy the directory, so the socket needs no password. It cannot be reached over the
network. The SQL interface cannot make backups, because a backup writes files with the broker's
rights.

The only route is `POST /backup` with the JSON string of an absolute path. The answer is JSON of
`BackupInfo`, or status 400 with the text of a `BackupError`. If the client disconnects, its backup
ends.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import aiohttp
from aiohttp import web

from brokerhouse.storage.backup import Backups
from brokerhouse.storage.backup_files import BackupError, BackupInfo

log = logging.getLogger(__name__)

_NAME = "control"
_BACKUP = "/backup"


class NoBroker(Exception):
    """No broker listens on the control socket of a data directory."""


class ControlSocket:
    """Listens from `start` to `close`."""

    def __init__(self, data_dir: Path, backups: Backups) -> None:
        self._data_dir = data_dir
        self._backups = backups
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """A broker that cannot listen here runs without backups, and the log says why."""
        app = web.Application()
        app.router.add_post(_BACKUP, self._backup)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.SockSite(runner, _bound(self._data_dir)).start()
        except OSError as error:
            log.error(
                "cannot open the control socket (%s): `brokerhouse backup` works only while this"
                " broker is stopped",
                error.strerror,
            )
            await runner.cleanup()
            return
        self._runner = runner

    async def close(self) -> None:
        """A backup that is being made ends, and nothing of it stays."""
        runner, self._runner = self._runner, None
        if runner is not None:
            (self._data_dir / _NAME).unlink(missing_ok=True)
            await runner.cleanup()

    async def _backup(self, request: web.Request) -> web.Response:
        try:
            info = await self._backups.make(Path(json.loads(await request.read())))
        except BackupError as error:
            return web.Response(status=400, text=str(error))
        return web.json_response(asdict(info))


def _bound(data_dir: Path) -> socket.socket:
    """The socket, which refuses connections until somebody listens: its mode comes before."""
    bound = socket.socket(socket.AF_UNIX)
    with _address(data_dir) as address:
        (data_dir / _NAME).unlink(missing_ok=True)
        bound.bind(address)
        os.chmod(data_dir / _NAME, 0o600)
    return bound


@contextmanager
def _address(data_dir: Path) -> Iterator[str]:
    """A name of the socket that is short enough, however long the directory's path is (Linux)."""
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)


async def ask_for_backup(data_dir: Path, destination: Path) -> BackupInfo:
    """Have the broker that runs on `data_dir` make a backup. Raises `NoBroker`, `BackupError`."""
    try:
        with _address(data_dir) as address:
            return await _asked(address, destination)
    except PermissionError as error:
        raise _another_user(data_dir) from error
    except (aiohttp.ClientConnectorError, FileNotFoundError, NotADirectoryError) as error:
        if error.errno == errno.EACCES:
            raise _another_user(data_dir) from error
        raise NoBroker(f"no broker runs on {data_dir}") from error
    except aiohttp.ClientError as error:
        raise BackupError(
            f"the broker on {data_dir} ended before the backup was complete: {destination} was not"
            " created"
        ) from error


def _another_user(data_dir: Path) -> BackupError:
    return BackupError(f"{data_dir} belongs to another user: run this command as that user")


async def _asked(address: str, destination: Path) -> BackupInfo:
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.UnixConnector(path=address)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.post(f"http://broker{_BACKUP}", json=str(destination)) as response,
    ):
        text = await response.text()
        if response.status != 200:
            raise BackupError(text)
        return BackupInfo(**json.loads(text))
