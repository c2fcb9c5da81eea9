"""How many requests with SQL are handled at once, apart from how many statements run (pool.py).

A request has a place from its head to the end of its answer: while its body arrives, while it waits
for its turn, while its client reads. Readers without credentials have three quarters of the
connections, and those of one address half of them. The user with a password has all but one in
sixteen. So there is always a connection for monitoring (listener.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from common.address import client_network
from sql.http.access import Role
from sql.http.errors import SqlError, sql_error


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
        202, "TOO_MANY_SIMULTANEOUS_QUERIES",
        f"Too many simultaneous queries: {why}: send the query again later",
    )  # fmt: skip
