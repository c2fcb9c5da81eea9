"""KILL QUERY by the id that a client has given to a statement of its own.

So the JDBC driver ends a statement (`Statement.cancel`, the stop button of DBeaver), from a second
connection. The engine does not know these ids: it finds statements by their marks. Any other KILL
is refused (access.py).

What must hold: without credentials a client ends only statements without credentials that came from
its own address.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sql.http.access import Role
from sql.http.pool import StatementPool
from sql.http.request import SqlRequest
from sql.http.text import literal

_KILL = re.compile(
    rb"\s*KILL\s+QUERY\s+WHERE\s+query_id\s*=\s*'([^'\\]+)'\s*(?:A?SYNC\s*)?;?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    query_id: str
    role: Role
    remote: str | None
    mark: bytes
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def may_be_ended_by(self, wanted: SqlRequest, remote: str | None) -> bool:
        return wanted.role is Role.WRITER or (self.role, self.remote) == (wanted.role, remote)


class StatementsById:
    """The statements that run or wait for their turn."""

    def __init__(self, pool: StatementPool) -> None:
        self._pool = pool
        self._statements: set[_Statement] = set()

    @contextmanager
    def with_one(self, wanted: SqlRequest, remote: str | None, mark: bytes) -> Iterator[None]:
        """Inside, the statement that begins with `mark` can be ended."""
        statement = _Statement(wanted.query_id, wanted.role, remote, mark)
        self._statements.add(statement)
        try:
            yield
        finally:
            self._statements.remove(statement)
            statement.ended.set_result(None)

    def kill(self, wanted: SqlRequest, remote: str | None, sql: bytes) -> bytes | None:
        """Begin to end the statement that `sql` names. Returns the query for what `sql` answers;
        None if it is another statement than such a KILL.
        """
        found = _KILL.fullmatch(sql)
        if found is None or wanted.method != "POST":
            return None
        query_id = found[1].decode("utf-8", "replace")
        killed = [
            statement
            for statement in self._statements
            if statement.query_id == query_id and statement.may_be_ended_by(wanted, remote)
        ]
        for statement in killed:
            # One that waits for its turn is ended when it begins.
            self._pool.finish_later(self._pool.end(statement.mark, statement.ended))
        columns = b"'waiting' AS kill_status, %b AS query_id, currentUser() AS user, '' AS query"
        return b"SELECT " + columns % literal(found[1]) + b" WHERE %d" % bool(killed)
