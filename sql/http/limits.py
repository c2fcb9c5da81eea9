"""What all requests with SQL take together, apart from how many statements run (pool.py).

* Connections (`RequestPlaces`). A request has a place from its head to the end of its answer: while
  its body arrives, while it waits for its turn, while its client reads. Readers without credentials
  have three quarters of the connections, and those of one address half of them. The user with a
  password has all but one in sixteen. So there is always a connection for monitoring (listener.py).
* Temporary files of the engine (`TemporaryFiles`): what people's queries write to disk, because it
  does not fit into their memory, to a total. The engine has settings for that, and they do not hold
  (measured, chdb-core 26.9): of the one for a user nothing takes notice, and a sort does not count
  for the one of a query. What does hold is that no file is begun while less than
  PEOPLE_KEEP_FREE_BYTES are free. So the files are added up every second, and the query that has
  written most is killed when they are too many.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokerhouse.common.address import client_network
from brokerhouse.common.counted_lines import counted
from brokerhouse.common.tasks import Periodic
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.engine import MARK, Handle, run
from brokerhouse.sql.http.errors import SqlError, sql_error
from brokerhouse.sql.http.pool import StatementPool


class RequestPlaces:
    def __init__(self, max_connections: int) -> None:
        self._max = {
            Role.READER: max(max_connections * 3 // 4, 1),
            Role.WRITER: max(max_connections - max(max_connections // 16, 1), 1),
        }
        self._max_of_one = max(max_connections // 2, 1)
        self._taken: Counter[Role] = Counter()
        self._by_origin: Counter[str] = Counter()

    @contextmanager
    def place(self, role: Role, remote: str | None) -> Iterator[None]:
        """Raises TOO_MANY_SIMULTANEOUS_QUERIES."""
        where = client_network(remote)
        if self._taken.total() >= self._max[role]:
            raise _too_many(f"{self._max[role]} requests with SQL are handled")
        if role is Role.READER and self._by_origin[where] >= self._max_of_one:
            raise _too_many(f"{self._max_of_one} requests of your address are handled")
        self._taken[role] += 1
        if role is Role.READER:
            self._by_origin[where] += 1
        try:
            yield
        finally:
            self._taken[role] -= 1
            if role is Role.READER:
                self._by_origin -= Counter({where: 1})


def _too_many(why: str) -> SqlError:
    return sql_error(
        202,
        "TOO_MANY_SIMULTANEOUS_QUERIES",
        f"Too many simultaneous queries: {why}: send the query again later",
    )


log = logging.getLogger(__name__)

LOOK_S = 1.0

_LARGEST = (
    b"SELECT substring(query, 1, %d) FROM system.processes WHERE startsWith(query, '%s')"
    b" AND ProfileEvents['ExternalProcessingCompressedBytesTotal'] > 0"
    b" ORDER BY ProfileEvents['ExternalProcessingCompressedBytesTotal'] DESC LIMIT 1"
)


class TemporaryFiles:
    """`directory`: where the engine puts them."""

    def __init__(self, pool: StatementPool, directory: Path, max_bytes: int) -> None:
        self._pool = pool
        self._directory = directory
        self._max_bytes = max_bytes
        self._look = Periodic("temporary-files", LOOK_S, self._hold)

    def start(self) -> None:
        self._look.start()

    async def close(self) -> None:
        await self._look.close()

    async def _hold(self) -> None:
        if (size := _size(self._directory)) <= self._max_bytes:
            return
        mark = await self._pool.call_control(_largest)
        if mark:
            log.warning(
                "a query is ended: temporary files of all queries have %d bytes",
                size,
                extra=counted(),
            )
            reason = sql_error(
                396,
                "TOO_MANY_ROWS_OR_BYTES",
                "Limit for temporary files size exceeded: this query has written most of"
                f" {size} bytes, maximum: {self._max_bytes} bytes of all queries together",
            )
            await self._pool.kill_because(mark, reason)


def _largest(handle: Handle) -> bytes:
    """The mark of the statement that has written most; empty if none has written anything."""
    length = len(MARK) + 32 + len(b" */ ")
    return run(handle, _LARGEST % (length, MARK), "TSVRaw").bytes().rstrip(b"\n")


def _size(directory: Path) -> int:
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        return 0
    return total
