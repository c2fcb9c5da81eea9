"""The SQL client of Spark's driver and workers: ClickHouse's HTTP interface. Blocking.

What must hold:
* Values that people chose (group ids, topics, patterns) travel as bound parameters.
* An answer is complete only when its HTTP body has ended: a server that is lost midway is never
  taken for the end of the data.
* A statement without a complete answer is sent again, to the next server. So is an insert: the
  engine stores the block of a deduplication token once, and an insert without a token is of rows
  that replace each other.
* A query changes no setting, so that a user who may only read can run it.
* `SqlServers` is a value: it travels to Spark's workers with the tasks.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import pyarrow as pa
import urllib3

from brokerhouse.common.address import host_to_connect_to
from brokerhouse.common.tasks import Backoff
from brokerhouse.storage.engine import DATABASE, Parameter
from brokerhouse.storage.parameters import parameter_texts

ROUNDS = 5
"""How often each server is asked before the client gives up."""
FIRST_PAUSE_S = 0.25
"""Before the second round; each later pause is twice as long."""
BLOCK_ROWS = 200_000
"""Rows of one insert, which the engine stores as one block."""

_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 300.0  # a server that runs a query sends nothing until the first rows are found
_DEFAULT_PORTS = {"http": 8123, "https": 8443}
_ERROR_CHARACTERS = 500
_POOL = urllib3.PoolManager(
    timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_ANSWER_TIMEOUT_S),
    retries=False,
    maxsize=4,
)
_INSERT_SETTINGS = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "max_insert_block_size": 1_000_000_000,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    # These two are for Distributed tables; other engines ignore them.
    "distributed_foreground_insert": 1,
    "insert_shard_id": 1,
}

# ClickHouse's error codes: https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
_UNKNOWN_TABLE, _UNKNOWN_DATABASE, _ACCESS_DENIED = 60, 81, 497
_LOGIN_REFUSED = {192, 193, 194, 516}
# A user who may only read, a database, statement or role that is not allowed, what this ClickHouse
# does not have: status 500 or 501, and for good.
_REFUSED_FOR_GOOD = {48, 164, 291, 344, 392, 511, 512}
# Timeouts, too many queries or parts, no memory, a session that is busy, no Keeper: the same
# statement may succeed later.
_TRANSIENT = {159, 202, 209, 210, 241, 242, 252, 319, 373, 425, 439, 999}

T = TypeVar("T")


class SqlFailure(Exception):
    """The query has no usable answer; the message is one sentence."""


class SqlRefused(SqlFailure):
    """A server refused the statement: sending it again, or elsewhere, changes nothing."""


class SqlDenied(SqlRefused):
    """A server refuses the login, or the user lacks a right."""


class SqlUnavailable(SqlFailure):
    """No complete answer came: the same server later, or another one, may give it."""


@dataclass(frozen=True, slots=True)
class SqlCredentials:
    """The user of a request; without a user none is sent."""

    user: str | None = None
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SqlServers:
    """Servers that give the same answers, the preferred one first.

    `database`: where tables are that a statement names without a database.
    """

    urls: tuple[str, ...]
    login: SqlCredentials = SqlCredentials()
    database: str | None = None

    @classmethod
    def parse(
        cls, servers: str, user: str | None = None, password: str | None = None
    ) -> SqlServers:
        """Servers of the database `brokerhouse`. Raises ValueError.

        `servers`: URLs or HOST:PORT, separated by commas.
        """
        urls = [_checked_url(text.strip()) for text in servers.split(",") if text.strip()]
        if not urls:
            raise ValueError("write a URL or HOST:PORT, not nothing")
        return cls(tuple(urls), SqlCredentials(user, password or ""), DATABASE)

    def rows(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> list[list[Any]]:
        """The rows of a small result. Raises SqlFailure."""
        table = self.table(sql, parameters)
        columns = [column.to_pylist() for column in table.columns]
        return [list(row) for row in zip(*columns, strict=True)]

    def table(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> pa.Table:
        """A result that fits into memory. Raises SqlFailure."""
        return self._with_retries(partial(self._table_from, sql=sql, parameters=parameters))

    def execute(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> None:
        """Run a statement that has no result and may be repeated. Raises SqlFailure."""
        self._with_retries(lambda url: HttpSession(self, url).execute(sql, parameters))

    def stream(
        self, url: str, sql: str, parameters: Mapping[str, Parameter] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A result of any size, from one server and without retries.

        Raises SqlFailure, also after a part of the result.
        """
        with self._arrow(url, sql, parameters) as reader:
            yield from reader

    def insert(self, table: str, rows: pa.Table, token: str | None) -> int:
        """Add rows to a table of `database`; returns how many there are. Raises SqlFailure.

        Whoever inserts the same rows again uses the same token, and they are stored once; a table
        that is not replicated may have the token and not the rows, if its server was killed.
        Without a token they are stored at least once.
        """
        for start in range(0, rows.num_rows, BLOCK_ROWS):
            block = rows.slice(start, BLOCK_ROWS).combine_chunks()
            of_block = None if token is None else f"{token}-{start}"
            self._with_retries(partial(self._insert_at, table=table, block=block, token=of_block))
        return int(rows.num_rows)

    def _with_retries(self, ask: Callable[[str], T]) -> T:
        attempts = Attempts(self.urls)
        while True:
            try:
                return ask(attempts.url)
            except SqlUnavailable as error:
                attempts.failed(error)

    def _table_from(
        self, url: str, sql: str, parameters: Mapping[str, Parameter] | None
    ) -> pa.Table:
        with self._arrow(url, sql, parameters) as reader:
            return reader.read_all()

    @contextmanager
    def _arrow(
        self,
        url: str,
        sql: str,
        parameters: Mapping[str, Parameter] | None,
        session: Mapping[str, object] | None = None,
    ) -> Iterator[pa.RecordBatchReader]:
        query = {**(session or {}), **_bound(parameters)}
        response = self._send(url, query, f"{sql}\nFORMAT ArrowStream".encode())
        try:
            with pa.ipc.open_stream(response) as reader:
                yield reader
            # Only the end of the body may follow the stream; where the query failed, an error does.
            if rest := response.read():
                raise SqlUnavailable(f"{url} failed midway: {_one_line(rest)}")
        except (urllib3.exceptions.HTTPError, pa.ArrowException, OSError) as error:
            raise SqlUnavailable(f"{url} broke off its answer ({_reason(error)})") from error
        finally:
            response.close()

    def _insert_at(
        self,
        url: str,
        table: str,
        block: pa.Table,
        token: str | None,
        session: Mapping[str, object] | None = None,
    ) -> None:
        columns = ", ".join(f"`{name}`" for name in block.column_names)
        query = {
            **(session or {}),
            **_INSERT_SETTINGS,
            # Without a token ClickHouse would take equal rows for a repetition.
            "insert_deduplication_token": token or uuid4().hex,
            "query": f"INSERT INTO {table} ({columns}) FORMAT ArrowStream",
        }
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, block.schema) as writer:
            writer.write_table(block, max(block.num_rows, 1))
        self._done(url, query, sink.getvalue().to_pybytes())

    def _done(self, url: str, query: Mapping[str, object], body: bytes) -> None:
        """Send a request whose answer says nothing but that it succeeded."""
        response = self._send(url, query, body)
        try:
            response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise SqlUnavailable(f"{url} broke off its answer ({_reason(error)})") from error
        finally:
            response.close()

    def _send(self, url: str, query: Mapping[str, object], body: bytes) -> urllib3.BaseHTTPResponse:
        """The response of a request that succeeded, before its body is read."""
        database = {} if self.database is None else {"database": self.database}
        headers = {}
        if self.login.user is not None:
            # ClickHouse's own headers cannot carry every password.
            pair = base64.b64encode(f"{self.login.user}:{self.login.password}".encode())
            headers = {"Authorization": f"Basic {pair.decode()}"}
        try:
            response = _POOL.request(
                "POST",
                f"{url}/?{urlencode({**database, **query})}",
                body=body,
                headers=headers,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            raise SqlUnavailable(f"{url} does not answer ({_reason(error)})") from error
        if response.status == 200:
            return response
        try:
            raise _failure(url, self.login.user, self.database, response)
        finally:
            response.close()


class HttpSession:
    """Statements for one server, which see the same temporary tables; nothing is sent again."""

    def __init__(self, servers: SqlServers, url: str, name: str | None = None) -> None:
        """`name`: of the session; without it nothing outlives a statement."""
        self._servers = servers
        self._url = url
        self._query = {} if name is None else {"session_id": name}

    def rows(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> list[list[Any]]:
        """The rows of a small result. Raises SqlFailure."""
        with self._servers._arrow(self._url, sql, parameters, self._query) as reader:
            table = reader.read_all()
        columns = [column.to_pylist() for column in table.columns]
        return [list(row) for row in zip(*columns, strict=True)]

    def execute(self, sql: str, parameters: Mapping[str, Parameter] | None = None) -> None:
        """Run a statement that has no result. Raises SqlFailure; then it may have run."""
        query = {"wait_end_of_query": 1, **self._query, **_bound(parameters)}
        self._servers._done(self._url, query, sql.encode())

    def send(self, sql: str, data: bytes) -> None:
        """Run an insert of data in the format that it names. Raises SqlFailure, as `execute`."""
        self._servers._done(self._url, {**self._query, "query": sql}, data)

    def lines(self, sql: str) -> Iterator[bytes]:
        """A result of one column with text. Raises SqlFailure."""
        with self._servers._arrow(self._url, sql, None, self._query) as reader:
            for batch in reader:
                yield from batch.column(0).cast(pa.binary()).to_pylist()

    def insert(self, table: str, rows: pa.Table) -> None:
        """Add rows, all of them as one block. Raises SqlFailure; then they may be stored."""
        self._servers._insert_at(self._url, table, rows.combine_chunks(), None, self._query)


def _bound(parameters: Mapping[str, Parameter] | None) -> dict[str, str]:
    return {f"param_{name}": text for name, text in parameter_texts(parameters).items()}


class Attempts:
    """Which server to ask next after failures, and when to give up."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._errors: dict[str, SqlUnavailable] = {}
        self._count = 0
        self._backoff = Backoff(FIRST_PAUSE_S, FIRST_PAUSE_S * 2**ROUNDS)

    @property
    def url(self) -> str:
        """The server to ask now."""
        return self._urls[self._count % len(self._urls)]

    def failed(self, error: SqlUnavailable) -> None:
        """The server failed. Pauses after each round; raises SqlUnavailable after the last."""
        self._errors[self.url] = error
        self._count += 1
        rounds, turn = divmod(self._count, len(self._urls))
        if rounds == ROUNDS:
            raise SqlUnavailable("; ".join(str(one) for one in self._errors.values())) from error
        if turn == 0:
            # A server that is being restarted is back in a moment.
            time.sleep(self._backoff.advance())

    def succeeded(self) -> None:
        """The server answers: it is asked first from now on, and all attempts are left again."""
        self._count %= len(self._urls)
        self._errors.clear()
        self._backoff.reset()


def _checked_url(text: str) -> str:
    """With a scheme and a port. Raises ValueError."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username:
        raise ValueError(f"write a URL or HOST:PORT, not {url!r}")
    host = host_to_connect_to(parts.hostname)
    if host != parts.hostname:
        port = "" if parts.port is None else f":{parts.port}"
        parts = parts._replace(netloc=f"[{host}]{port}" if ":" in host else f"{host}{port}")
    if parts.port is None:  # raises ValueError where it is not a number
        parts = parts._replace(netloc=f"{parts.netloc}:{_DEFAULT_PORTS[parts.scheme]}")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def _failure(
    url: str, user: str | None, database: str | None, response: urllib3.BaseHTTPResponse
) -> SqlFailure:
    try:
        text = _one_line(response.read())
    except (urllib3.exceptions.HTTPError, OSError) as error:
        text = _reason(error)
    header = response.headers.get("X-ClickHouse-Exception-Code", "")
    code = int(header) if header.isdigit() else 0
    if response.status == 401 or code in _LOGIN_REFUSED:
        who = "requests without a user" if user is None else f"user {user}"
        return SqlDenied(f"{url} refuses {who}: give the right user and password")
    if code == _ACCESS_DENIED and user is None:
        return SqlDenied(
            f"{url} allows only its sql_user to do this: give user and password ({text})"
        )
    if code == _ACCESS_DENIED:
        return SqlDenied(f"{url} does not let user {user} do this ({text})")
    if code == _UNKNOWN_TABLE and database == DATABASE:
        return SqlRefused(f"{url} lacks a table: its brokerhouse is older than this one ({text})")
    if code == _UNKNOWN_DATABASE and database == DATABASE:
        return SqlRefused(
            f"{url} has no database {DATABASE}, which `distributed = true` makes ({text})"
        )
    message = f"{url} answers with status {response.status}: {text}"
    may_pass = (response.status >= 500 and code not in _REFUSED_FOR_GOOD) or code in _TRANSIENT
    return SqlUnavailable(message) if may_pass else SqlRefused(message)


def _one_line(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    text = re.sub(r" \(version [^)]*\)+", "", text)
    return text[:_ERROR_CHARACTERS] or "it gives no reason"


def _reason(error: Exception) -> str:
    """Without what urllib3 puts before its reasons."""
    return re.sub(r"^(?:<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
