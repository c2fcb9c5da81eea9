"""The command `brokerhouse jobs run iceberg-view`: history and log as one view of ClickHouse.

The table must have the columns that `brokerhouse jobs run iceberg --metadata` makes: they say which
offsets it has. The view itself, and why it has neither gap nor double, is in
sql/queries/iceberg_view.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import click
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import TOTAL_DELETE_FILES

from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.job import in_catalog
from brokerhouse.spark_jobs.iceberg_maintenance import opened_catalog
from brokerhouse.spark_jobs.job import JobFailure, JobReport, JobRun
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.parameters import literal, quoted

_LOG = "brokerhouse.messages_committed"
LOG_COLUMNS = {
    "topic": "String",
    "partition": "Int32",
    "offset": "Int64",
    "timestamp": "DateTime64(3)",
    "key": "Nullable(String)",
    "value": "Nullable(String)",
    "headers": "Array(Tuple(key String, value Nullable(String)))",
}
_OF_RECORD = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_key": "key",
    "_headers": "mapFromArrays(headers.key, arrayMap(one -> ifNull(one, ''), headers.value))",
}
_PLACE = ("_topic", "_partition", "_offset")


@job.command("iceberg-view")
@click.argument("view", metavar="DATABASE.VIEW")
@in_catalog("A directory with tables and a catalog in SQLite")
@click.option(
    "--table", "name", metavar="NAMESPACE.TABLE", required=True, help="The Iceberg table."
)
@click.option(
    "--source",
    metavar="SQL",
    default="",
    help="How ClickHouse reads the table, as in icebergS3(...). Not needed for tables in"
    " local files.",
)
@click.option(
    "--log",
    "log_url",
    metavar="URL",
    default="",
    help="A broker's SQL interface, if its log is not in this ClickHouse.",
)
def command(
    run: JobRun,
    /,
    view: str,
    catalog: str,
    catalog_options: dict[str, str],
    name: str,
    source: str,
    log_url: str,
) -> JobReport:
    """Make a view of an Iceberg table's rows and of the records that it does not have yet.

    The view is made on --http, a ClickHouse that may read both. Values are JSON.
    """
    database, _, short = view.rpartition(".")
    if not database or not short:
        raise JobFailure(f"write DATABASE.VIEW, not {view!r}")
    opened = opened_catalog(*tables.catalog_properties(catalog, catalog_options), [name])
    table = opened.load_table(name)
    _check(table, name)
    source = source or _local_source(table)
    place = f"{quoted(database)}.{quoted(short)}"
    sql = _statement(run.servers, table, place, source, _topics(table), log_url)
    if run.dry_run:
        return JobReport((), (), sql)
    run.servers.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
    run.servers.execute(sql)
    return JobReport((), (), f"{view}: made")


def _check(table: Table, name: str) -> None:
    """Raises JobFailure."""
    missing = [column for column in _PLACE if column not in table.schema().column_names]
    if missing:
        raise JobFailure(f"{name} has no column {missing[0]}: make it with --metadata")
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise JobFailure(f"{name} has no rows yet, and the view finds its topics in the rows")
    summary = snapshot.summary
    has_deletes = summary is not None and int(summary.get(TOTAL_DELETE_FILES) or 0)
    if has_deletes or table.schema().identifier_field_ids:
        raise JobFailure(f"rows of {name} replace others, so the view would show both")


def _topics(table: Table) -> list[str]:
    found = table.scan(selected_fields=("_topic",)).to_arrow_batch_reader()
    topics = {value for batch in found for value in batch.column(0).unique().to_pylist()}
    return sorted(topics - {None})


def _local_source(table: Table) -> str:
    """Raises JobFailure."""
    scheme, _, path = PyArrowFileIO.parse_location(table.location())
    if scheme != "file":
        raise JobFailure(f"{table.location()}: say with --source how ClickHouse reads it")
    return f"icebergLocal({literal(path)})"


def _statement(
    servers: SqlServers, table: Table, view: str, source: str, topics: Sequence[str], log_url: str
) -> str:
    types = {name: kind for name, kind, *_ in servers.rows(f"DESCRIBE TABLE {source}")}
    columns = [(field.name, types[field.name]) for field in table.schema().fields]
    return query(
        "iceberg_view",
        view=view,
        table=source,
        log=_log_over_http(log_url, topics) if log_url else _LOG,
        topics=", ".join(map(literal, topics)),
        of_log=", ".join(f"{_of_log(*column)} AS {quoted(column[0])}" for column in columns),
        of_table=", ".join(quoted(name) for name, _ in columns),
    )


def _of_log(name: str, kind: str) -> str:
    if name in _OF_RECORD:
        return f"CAST({_OF_RECORD[name]}, {literal(kind)})"
    return f"JSONExtract(row, {literal(name)}, {literal(kind)})"


def _log_over_http(url: str, topics: Sequence[str]) -> str:
    # A function of ClickHouse cannot send the seam along, so all records of the topics are read.
    names = ", ".join(map(literal, topics))
    asked = f"SELECT {', '.join(LOG_COLUMNS)} FROM {_LOG} WHERE topic IN ({names}) FORMAT Native"
    address = f"{url.rstrip('/')}/?{urlencode({'query': asked})}"
    structure = ", ".join(f"{name} {kind}" for name, kind in LOG_COLUMNS.items())
    # ClickHouse asks for the columns that a query needs, and is sent all of them.
    return (
        f"(SELECT * FROM url({literal(address)}, 'Native', {literal(structure)})"
        " SETTINGS input_format_skip_unknown_fields = 1)"
    )


if __name__ == "__main__":
    command()
