"""`brokerhouse views`: materialized views on the log that could not be filled.

storage/view_guard.py stops them and knows what they miss.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import aiohttp
import click
from yarl import URL

from broker.cli.sql import CONNECT_TIMEOUT_S, SqlServer, connection_errors, failure_text, to_url
from common.console import console, new_table
from common.options import environment_option, server_option

_LIST = """
SELECT concat(database, '.', view) AS name, toString(failed_at) AS since, error,
    arrayStringConcat(arrayMap(
        one -> concat(one.topic, '-', toString(one.partition), ' ', toString(one.first_offset)),
        missed), '\n') AS missed
FROM brokerhouse.failed_views FORMAT JSONEachRow
"""
_http = server_option(
    "--http", "URL", "http://127.0.0.1:8123", "HTTP", to_url, "The broker to ask."
)


@click.group()
def views() -> None:
    """Show, repair and drop materialized views on `messages` that could not be filled."""


@views.command("list")
@_http
@environment_option("--user", "SQL_USER", "Anonymous if not given.")
@environment_option("--password", "SQL_PASSWORD")
def list_views(http: URL, user: str | None, password: str | None) -> None:
    """Print the views that are stopped, why, and the first offset that each of them missed."""
    text = _asked(SqlServer(http, user, password), "/", {}, _LIST)
    found = [json.loads(line) for line in text.splitlines()]
    if not found:
        click.echo("no view has failed")
        return
    table = new_table("view", "stopped at (UTC)", "missed from", "error")
    for row in found:
        table.add_row(row["name"], row["since"], row["missed"], row["error"])
    console().print(table)


@views.command("repair")
@click.argument("view", metavar="DATABASE.VIEW")
@click.option("--query", metavar="SELECT", help="Give the view this query, before.")
@_http
@environment_option("--user", "SQL_USER", "One who may write.")
@environment_option("--password", "SQL_PASSWORD")
def repair_view(
    view: str, query: str | None, http: URL, user: str | None, password: str | None
) -> None:
    """Fill DATABASE.VIEW with what it missed, and let it go on.

    Nothing is filled while a record still makes it fail.
    """
    server = SqlServer(http, user, password)
    answer = _asked(server, "/views/repair", _named(view), query or "")
    click.echo(f"{view} is filled again: it had missed {json.loads(answer)['missed']} records")


@views.command("drop")
@click.argument("view", metavar="DATABASE.VIEW")
@_http
@environment_option("--user", "SQL_USER", "One who may write.")
@environment_option("--password", "SQL_PASSWORD")
def drop_view(view: str, http: URL, user: str | None, password: str | None) -> None:
    """Drop DATABASE.VIEW, which has failed; the table that it writes to stays."""
    _asked(SqlServer(http, user, password), "/views/drop", _named(view), "")
    click.echo(f"dropped {view}")


def _named(view: str) -> Mapping[str, str]:
    database, dot, name = view.partition(".")
    return {"database": database if dot else "default", "view": name if dot else view}


def _asked(server: SqlServer, path: str, parameters: Mapping[str, str], body: str) -> str:
    with connection_errors(server.url):
        return asyncio.run(_answer(server, path, parameters, body))


async def _answer(server: SqlServer, path: str, parameters: Mapping[str, str], body: str) -> str:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=server.headers()) as session,
        session.post(server.url.with_path(path), params=parameters, data=body.encode()) as response,
    ):
        text = await response.text()
        if response.status != 200:
            raise click.ClickException(failure_text(response.status, text))
        return text
