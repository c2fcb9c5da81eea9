"""`brokerhouse sql`: one statement over HTTP, and its answer as a table, or byte for byte.

It speaks ClickHouse's HTTP interface (https://clickhouse.com/docs/interfaces/http), so it works
against any ClickHouse. Neither a whole answer nor the data of an INSERT is held in memory: bytes
are passed on as they arrive, and a table on a terminal stops after MAX_TABLE_ROWS.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from io import BufferedReader
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click

from brokerhouse.broker.cli.options import timeout_option
from brokerhouse.common.address import host_to_connect_to
from brokerhouse.common.options import environment_option, server_option
from brokerhouse.sql.http.text import InsertData, insert_head

if TYPE_CHECKING:
    import aiohttp
    from rich.text import Text
    from yarl import URL

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

MAX_TABLE_ROWS = 1000
MAX_MESSAGE_BYTES = 65536
PIECE_BYTES = 256 * 1024
CONNECT_TIMEOUT_S = 5.0
TABLE_FORMAT = "TabSeparatedWithNamesAndTypes"
PIPE_FORMAT = "TabSeparatedWithNames"


@dataclass(frozen=True, slots=True)
class SqlServer:
    """The server to query, and the user to log in as."""

    url: URL
    user: str | None
    password: str | None
    timeout_s: float = 30.0
    """Until it is known that the server answers. A statement may take longer."""

    def headers(self) -> dict[str, str]:
        wanted = {
            "X-ClickHouse-User": self.user,
            "X-ClickHouse-Key": self.password,
            "Accept-Encoding": "identity",
        }
        return {name: value for name, value in wanted.items() if value is not None}


def to_url(_context: click.Context, _parameter: click.Parameter, text: str) -> URL:
    from yarl import URL

    try:
        url = URL(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise click.BadParameter(f"write a URL or HOST:PORT, not {text!r}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise click.BadParameter(f"write a URL or HOST:PORT, not {text!r}")
    if url.port == 0:
        raise click.BadParameter("nothing listens on port 0: write the port of the server")
    return url.with_host(host_to_connect_to(url.host))


def server_options(user_help: str, *, with_timeout: bool = True) -> Callable[[CommandT], CommandT]:
    """--http, --user, --password, --timeout: the command gets them as its argument `sql_server`."""

    def add(command: CommandT) -> CommandT:
        @wraps(command)
        def with_server(*, http: URL, user: str | None, password: str | None, **others: Any) -> Any:
            timeout = {"timeout_s": others.pop("timeout_s")} if with_timeout else {}
            return command(sql_server=SqlServer(http, user, password, **timeout), **others)

        options = [
            server_option(
                "--http", "URL", "http://127.0.0.1:8123", "HTTP", to_url, "The SQL server."
            ),
            environment_option("--user", "SQL_USER", user_help, metavar="NAME"),
            environment_option("--password", "SQL_PASSWORD", "Password of --user.", metavar="TEXT"),
            *([timeout_option] if with_timeout else []),
        ]
        made: Any = with_server
        for option in reversed(options):
            made = option(made)
        return cast(CommandT, made)

    return add


@click.command()
@click.argument("query")
@click.option(
    "--format", "output", metavar="NAME", help="Any ClickHouse format, such as CSVWithNames."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each row, one a line."
)
@server_options("Anonymous if not given.")
def sql(query: str, output: str | None, as_json: bool, sql_server: SqlServer) -> None:
    """Run QUERY and print the answer.

    The answer is a table on a terminal, and tab-separated lines with a header elsewhere. Another
    format is chosen with --format or at the end of the query. If QUERY is -, it is read from
    standard input.

    The data of an INSERT that ends with VALUES or FORMAT is read from standard input, as in
    brokerhouse sql "INSERT INTO mine.t FORMAT CSVWithNames" < file.csv
    """
    if as_json:
        output = "JSONEachRow"
    body = _body_to_send(query)
    wanted = output or (TABLE_FORMAT if sys.stdout.isatty() else PIPE_FORMAT)
    draw = output is None and sys.stdout.isatty()
    with connection_errors(sql_server):
        asyncio.run(_run(sql_server, body, wanted, draw))


@contextmanager
def connection_errors(server: SqlServer) -> Iterator[None]:
    """Turns what may happen to a connection into the sentence that the user sees."""
    import aiohttp

    http = server.url
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise click.ClickException(
            f"no SQL server at {http} ({reason}): start one with `brokerhouse serve`, "
            "or name another with --http"
        ) from error
    except aiohttp.ClientPayloadError as error:
        raise click.ClickException(
            f"{http} closed the connection before the answer was complete"
        ) from error
    except TimeoutError as error:
        raise click.ClickException(
            f"{http} has not answered within {server.timeout_s:g} s: look at the server's log, wait"
            " longer with --timeout, or name another with --http"
        ) from error
    except aiohttp.ClientError as error:
        raise click.ClickException(
            f"{http} does not speak HTTP ({_in_a_few_words(error)}): name the address of the"
            " broker's setting `http` with --http"
        ) from error


def _in_a_few_words(error: aiohttp.ClientError) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def asked(server: SqlServer, path: str, parameters: Mapping[str, str], body: str) -> str:
    """The whole answer to a small request; what goes wrong as one sentence."""
    with connection_errors(server):
        return asyncio.run(_answer(server, path, parameters, body))


@asynccontextmanager
async def _session(server: SqlServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with a server that answers. Raises TimeoutError and aiohttp's errors.

    It is asked for something small before: a statement may take as long as it likes, so without
    this a server that is stopped would be waited for without end.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=server.headers()) as session:
        limit = aiohttp.ClientTimeout(total=server.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with session.get(server.url.with_path("/ping"), timeout=limit) as response:
            await response.read()
        yield session


async def _answer(server: SqlServer, path: str, parameters: Mapping[str, str], body: str) -> str:
    async with (
        _session(server) as session,
        session.post(server.url.with_path(path), params=parameters, data=body.encode()) as response,
    ):
        text = await response.text()
        if response.status != 200:
            raise click.ClickException(failure_text(response.status, text))
        return text


def _body_to_send(query: str) -> bytes | AsyncIterator[bytes]:
    """The statement, with standard input behind it if that is where its data comes from."""
    if query == "-":
        return _with_stdin(b"")
    text = query.encode()
    head = insert_head(text, complete=True)
    if not isinstance(head, InsertData) or text[head.data_start :].strip():
        return text
    if sys.stdin.isatty():
        raise click.UsageError("the INSERT has no data: send it on standard input, as in < FILE")
    return _with_stdin(text + b"\n")


async def _with_stdin(start: bytes) -> AsyncIterator[bytes]:
    stdin = cast(BufferedReader, sys.stdin.buffer)
    chunk = start or await asyncio.to_thread(stdin.read1, PIECE_BYTES)
    while chunk:
        yield chunk
        chunk = await asyncio.to_thread(stdin.read1, PIECE_BYTES)


async def _run(
    server: SqlServer, body: bytes | AsyncIterator[bytes], output: str, draw: bool
) -> None:
    async with (
        _session(server) as session,
        session.post(server.url, params={"default_format": output}, data=body) as response,
    ):
        if response.status != 200:
            raise click.ClickException(failure_text(response.status, await response.text()))
        # A FORMAT in the query itself takes precedence over `output`.
        if draw and response.headers.get("X-ClickHouse-Format", output) == output:
            await _print_table(response)
        else:
            await _print_bytes(response, sys.stdout.buffer)


def failure_text(status: int, body: str) -> str:
    """The server's own message, without the version of the engine at its end."""
    message = " ".join(body.split())
    return message.partition(" (version ")[0] or f"the server answered HTTP {status}"


async def _print_bytes(response: aiohttp.ClientResponse, sink: BinaryIO) -> None:
    async for chunk in _body(response):
        sink.write(chunk)
        sink.flush()


async def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The answer. Raises a failure that the server reports inside it (ClickHouse 25.11 on)."""
    tag = response.headers.get("X-ClickHouse-Exception-Tag")
    if tag is None:
        async for chunk in response.content.iter_any():
            yield chunk
        return
    marker = f"\r\n__exception__\r\n{tag}\r\n".encode()
    held = b""
    async for chunk in response.content.iter_any():
        before, found, after = (held + chunk).partition(marker)
        if found:
            yield before
            raise click.ClickException(await _failure_inside(response, after, tag))
        # The last bytes may be the start of the marker.
        yield before[: 1 - len(marker)]
        held = before[1 - len(marker) :]
    yield held


async def _failure_inside(response: aiohttp.ClientResponse, start: bytes, tag: str) -> str:
    """The message between the marker and its length, which is followed by the tag."""
    from aiohttp import ClientPayloadError

    told = start
    try:
        while len(told) < MAX_MESSAGE_BYTES and (chunk := await response.content.readany()):
            told += chunk
    except ClientPayloadError:
        # After its message the server deliberately ends the stream without a last chunk.
        pass
    message = re.split(rf"\d+ {re.escape(tag)}\r\n", told.decode("utf-8", "replace"))[0]
    return failure_text(response.status, message)


async def _print_table(response: aiohttp.ClientResponse) -> None:
    from rich.console import Console
    from rich.table import Table

    lines = _lines(response)
    names = await anext(lines, None)
    types = await anext(lines, None)
    if names is None or types is None:
        return
    table = Table(header_style="bold")
    for name, kind in zip(names, types, strict=True):
        table.add_column(name, justify="right" if _is_number(kind) else "left", overflow="fold")
    more = False
    async for row in lines:
        if table.row_count == MAX_TABLE_ROWS:
            more = True
            break
        table.add_row(*map(_cell, row))
    Console().print(table)
    if more:
        click.echo(f"only the first {MAX_TABLE_ROWS} rows: --format prints all of them", err=True)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[list[str]]:
    """The columns of each line of TabSeparated, still escaped. A line may be of any length."""
    rest = b""
    async for chunk in _body(response):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").split("\t")


def _is_number(kind: str) -> bool:
    inner = kind.removeprefix("LowCardinality(").removeprefix("Nullable(")
    return inner.startswith(("Int", "UInt", "Float", "Decimal", "BFloat"))


def _cell(text: str) -> Text:
    from rich.text import Text

    if text == "\\N":
        return Text("NULL", "dim")
    text = re.sub(r"\\(['\\])", r"\1", text)
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return Text(printable)
