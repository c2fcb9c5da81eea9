"""An embedded ClickHouse in a child process, for tests of its input and output formats.

A process can open only one chDB data directory in its whole life. With a child process, the process
of the tests can still open another.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path


class ChdbProcess:
    """Queries and Native inserts on a new database in `directory`, one after another."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(directory)), daemon=True)
        self._process.start()
        theirs.close()

    def query(self, sql: str, format_: str = "Native") -> bytes:
        return self._call("query", sql, format_)

    def insert(self, sql: str, *blocks: bytes) -> None:
        self._call("insert", sql, *blocks)

    def stop(self) -> None:
        self._connection.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _call(self, *request: str | bytes) -> bytes:
        self._connection.send(request)
        answer: bytes | RuntimeError = self._connection.recv()
        if isinstance(answer, RuntimeError):
            raise answer
        return answer


def _serve(connection: Connection, directory: str) -> None:
    from chdb import _chdb

    database = vars(_chdb)["connect"](directory)  # it has no type stubs
    while True:
        try:
            kind, sql, *rest = connection.recv()
        except EOFError:
            database.close()
            return
        answer: bytes | RuntimeError = b""
        try:
            if kind == "query":
                answer = database.query(sql, *rest).bytes()
            else:
                insert = database.send_insert(sql, "Native")
                for block in rest:
                    database.insert_append(insert, block)
                database.insert_done(insert)
        except RuntimeError as error:
            answer = RuntimeError(str(error))
        connection.send(answer)
