"""`brokerhouse views`: materialized views on the log that could not be filled.

storage/view_guard.py stops them and knows what they miss, storage/view_doubts.py what they may
miss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from brokerhouse.broker.cli.options import json_option, print_json
from brokerhouse.broker.cli.sql import SqlServer, asked, server_options
from brokerhouse.common.console import console, new_table
from brokerhouse.sql.queries import query


@click.group()
def views() -> None:
    """Show, repair and drop materialized views on `messages` that could not be filled."""


@views.command("list")
@json_option
@server_options("Anonymous if not given.")
def list_views(as_json: bool, sql_server: SqlServer) -> None:
    """Print the views that have failed, and why.

    A view that is stopped misses everything from some offsets on. One in doubt has the records of
    some ranges, or lacks them, because the broker was killed while it wrote them; it goes on.
    """
    text = asked(sql_server, "/", {}, query("list_failed_views"))
    found = [json.loads(line) for line in text.splitlines()]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no view has failed")
        return
    table = new_table("view", "since (UTC)", "missed from", "in doubt", "error")
    for row in found:
        table.add_row(row["name"], row["since"], row["missed"], row["in_doubt"], row["error"])
    console().print(table)


@views.command("repair")
@click.argument("view", metavar="DATABASE.VIEW")
@click.option("--query", metavar="SELECT", help="First give the view this query.")
@click.option(
    "--in-doubt",
    type=click.Choice(["fill", "keep"]),
    help="For records in doubt: the view lacks them (fill) or has them (keep).",
)
@server_options("The broker's sql_user, who may write.")
def repair_view(
    view: str,
    query: str | None,
    in_doubt: str | None,
    sql_server: SqlServer,
) -> None:
    """Fill DATABASE.VIEW with the records that it lacks, and resume it.

    Nothing is filled while a record still makes it fail. A view in doubt needs --in-doubt: nobody
    but you can tell whether its table has the records.
    """
    parameters = {**_named(view), **({"in_doubt": in_doubt} if in_doubt else {})}
    answer = asked(sql_server, "/views/repair", parameters, query or "")
    click.echo(
        f"{view} is filled again; records that it had missed: {json.loads(answer)['missed']}"
    )


@views.command("drop")
@click.argument("view", metavar="DATABASE.VIEW")
@server_options("The broker's sql_user, who may write.")
def drop_view(view: str, sql_server: SqlServer) -> None:
    """Drop DATABASE.VIEW, which has failed; the table that it writes to stays."""
    asked(sql_server, "/views/drop", _named(view), "")
    click.echo(f"dropped {view}")


def _named(view: str) -> Mapping[str, str]:
    database, dot, name = view.partition(".")
    return {"database": database if dot else "default", "view": name if dot else view}
