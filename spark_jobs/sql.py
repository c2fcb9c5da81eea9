"""SQL for jobs: questions answered as Arrow or as a DataFrame, and rows added, once for certain.

What must hold:
* What people chose (group ids, topics, patterns) goes as bound parameters.
* A question is asked again, of the next server, when a server does not answer. So is an insert:
  every one has a deduplication token, and the engine stores the block of a token once.
* An `Endpoint` travels to Spark's workers with the tasks; clients are made where they are used.

Works with a broker's SQL interface and with the ClickHouse servers of a cluster, where database
`brokerhouse` is made of Distributed tables: an insert names the shard that it is for.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DATABASE = "brokerhouse"
ATTEMPTS = 4
PAUSE_S = 0.5  # before the second attempt, and twice that before the next
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 300
BLOCK_ROWS = 200_000
"""Rows of one insert: a block of the engine is whole or not there."""

MESSAGE_CHARACTERS = 500

T = TypeVar("T")

# It logs what it raises.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

# Too many queries, too slow, no memory or Keeper for the moment, too many parts.
_TRANSIENT = frozenset({159, 202, 209, 210, 241, 242, 252, 319, 425, 439, 999})
_ARROW = {
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_compression_method": "none",
}
_INSERT = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "max_insert_block_size": 1_000_000_000,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    # Of a Distributed table; other engines take no notice.
    "distributed_foreground_insert": 1,
    "insert_shard_id": 1,
}


class SqlFailure(Exception):
    """The servers did not do what was asked; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Servers that all know the same, and as whom they are asked."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, servers: str, user: str | None = None, password: str | None = None) -> Endpoint:
        """`servers`: URLs or HOST:PORT, separated by commas. Raises ValueError."""
        urls = [text.strip() for text in servers.split(",") if text.strip()]
        if not urls:
            raise ValueError("write a URL or HOST:PORT, not nothing")
        urls = [url if "://" in url else f"http://{url}" for url in urls]
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                raise ValueError(f"write a URL or HOST:PORT, not {url!r}")
            _ = parts.port  # raises ValueError where it is no number
        return cls(tuple(urls), user, password)

    def arrow(self, sql: str, parameters: Mapping[str, object] | None = None) -> pa.Table:
        """The rows of a question. All of them are in memory: ask for no more than fits there."""
        return self._attempt(
            lambda client: client.query_arrow(sql, dict(parameters or {}), settings=_ARROW)
        )

    def rows(
        self, sql: str, parameters: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        """The same as tuples."""
        table = self.arrow(sql, parameters)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def insert(self, table: str, rows: pa.Table, token: str) -> int:
        """Add rows to a table of database `brokerhouse`; returns how many there are.

        Who inserts the same rows again, whenever, uses the same token, and they are stored once.
        """
        for start in range(0, rows.num_rows, BLOCK_ROWS):
            block = rows.slice(start, BLOCK_ROWS).combine_chunks()
            settings = {**_INSERT, "insert_deduplication_token": f"{token}-{start}"}
            self._attempt(partial(_insert, table=table, block=block, settings=settings))
        return int(rows.num_rows)

    def _attempt(self, work: Callable[[Client], T]) -> T:
        for attempt in range(ATTEMPTS):
            url = self.urls[attempt % len(self.urls)]
            try:
                return work(_client(self, url))
            except ClickHouseError as error:
                if attempt + 1 == ATTEMPTS or not _may_pass(error):
                    raise SqlFailure(_explained(error, url, self.user)) from error
            if attempt + 1 >= len(self.urls):
                time.sleep(PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


@lru_cache(maxsize=16)
def _client(endpoint: Endpoint, url: str) -> Client:
    """One for each process: to connect takes several questions."""
    parts = urlsplit(url)
    return clickhouse_connect.get_client(
        interface=parts.scheme,
        host=parts.hostname,
        port=parts.port or (8443 if parts.scheme == "https" else 8123),
        proxy_path=parts.path,
        username=endpoint.user,
        password=endpoint.password or "",
        database=DATABASE,
        connect_timeout=CONNECT_TIMEOUT_S,
        send_receive_timeout=ANSWER_TIMEOUT_S,
        autogenerate_session_id=False,
        query_retries=0,
    )


def _insert(client: Client, table: str, block: pa.Table, settings: dict[str, Any]) -> None:
    client.insert_arrow(table, block, DATABASE, settings=settings)


@dataclass(frozen=True, slots=True)
class Question:
    sql: str
    parameters: Mapping[str, object] = field(default_factory=dict)


def frame(
    spark: SparkSession, endpoint: Endpoint, questions: Sequence[Question], schema: str
) -> DataFrame:
    """The answers as one DataFrame with this schema, fetched by workers and not by the driver.

    A worker holds one answer at a time, so each has to fit into its memory. Raises SqlFailure in
    the worker.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    wanted = to_arrow_schema(columns, timezone="UTC")

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                question = questions[number]
                answer = endpoint.arrow(question.sql, question.parameters)
                yield from answer.select(wanted.names).cast(wanted).to_batches()

    numbers = spark.range(0, len(questions), 1, max(len(questions), 1))
    return numbers.mapInArrow(ask, schema)


def glob_pattern(globs: Sequence[str]) -> str:
    """One regular expression (RE2) for all of these: `*` is any text and `?` any character.

    Without any it fits everything.
    """
    special = {"*": ".*", "?": "."}
    one_by_one = (
        "".join(special.get(character, re.escape(character)) for character in glob)
        for glob in globs or ["*"]
    )
    return f"(?s)^(?:{'|'.join(one_by_one)})$"


def _may_pass(error: ClickHouseError) -> bool:
    code = getattr(error, "code", None)
    if code is None:
        return isinstance(error, OperationalError)
    return code in _TRANSIENT


def _explained(error: ClickHouseError, url: str, user: str | None) -> str:
    code = getattr(error, "code", None)
    told = " ".join(str(error).split())
    if code is None:
        refused = re.search(r"\[Errno -?\d+\] ([\w ]+)|timed out", told)
        reason = (refused[1] or refused[0]) if refused else "it does not answer as ClickHouse does"
        return f"no SQL server at {url} ({reason}): start one, or name another with --servers"
    told = told.partition("server response: ")[2] or told
    told = re.sub(r" \(version [^)]*\)+", "", told)[:MESSAGE_CHARACTERS]
    match code:
        case 516:  # AUTHENTICATION_FAILED
            return f"{url} does not know {user or 'anonymous'} with this password"
        case 497 if not user:  # ACCESS_DENIED
            return f"only the sql_user of {url} may do this: give --user and --password ({told})"
        case 60:  # UNKNOWN_TABLE
            return f"{url} lacks a table, so its brokerhouse is older than this one ({told})"
        case 81:  # UNKNOWN_DATABASE
            return f"{url} has no database {DATABASE}, which `distributed = true` makes ({told})"
    return f"{url}: {told}"
