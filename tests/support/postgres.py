"""A PostgreSQL server with logical decoding, in a temporary directory of its own.

PostgreSQL refuses to run as root. Then it runs as the user that Debian's package makes, who cannot
read the directories of pytest.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import tools
from tests.support.server_process import LIMIT_S, ServerProcess, free_port

HOST, USER, DATABASE = "127.0.0.1", "postgres", "postgres"
_AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "fsync": "off",  # the directory does not outlive the test
}


class Postgres(ServerProcess):
    """`with Postgres(tmp_path) as postgres: postgres.run("CREATE TABLE ...")`.

    Every connection from the loopback is let in as the superuser.
    """

    def __init__(self, directory: Path) -> None:
        """`directory`: where its log goes."""
        super().__init__(directory / "postgres.log")
        self.port = free_port()
        self._data = Path(tempfile.mkdtemp(prefix="postgres-"))
        if os.geteuid() == 0:
            shutil.chown(self._data, USER, USER)
        tools.run(
            [
                *_as_user(),
                tools.postgres_program("initdb"),
                *shlex.split(
                    f"--no-sync --auth=trust --username={USER} --locale=C --encoding=UTF8"
                ),
                str(self._data),
            ],
            directory=Path("/"),
            limit_s=LIMIT_S,
        )

    def command(self) -> Sequence[str]:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        server = tools.postgres_program("postgres")
        return [*_as_user(), server, "-D", str(self._data), "-p", str(self.port), *settings]

    def is_ready(self) -> bool:
        if "ready to accept connections" not in self.printed():
            return False
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def run(self, *statements: str) -> str:
        """What psql prints for the statements. Each is a transaction of its own."""
        psql = [
            tools.program("psql"),
            *shlex.split(
                f"--no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --host={HOST}"
                f" --port={self.port} --username={USER} --dbname={DATABASE}"
            ),
        ]
        printed, _ = tools.run(
            [*psql, *(f"--command={statement}" for statement in statements)], limit_s=LIMIT_S
        )
        return printed.strip()

    def stop(self) -> None:
        """SIGINT disconnects the clients; SIGTERM alone waits for them."""
        self._running().send_signal(signal.SIGINT)
        super().stop()

    def kill(self, after_s: float = 0.0) -> None:
        """SIGQUIT: as sudden as SIGKILL, but its shared memory does not stay behind."""
        if self.running:
            self._running().send_signal(signal.SIGQUIT)
        super().kill(after_s or LIMIT_S)

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._data)


def _as_user() -> Sequence[str]:
    return _AS_USER if os.geteuid() == 0 else ()
