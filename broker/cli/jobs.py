"""`brokerhouse jobs`: Spark jobs that read the whole log.

The jobs themselves are in spark_jobs/. It is imported only when a job is run, because the broker
needs neither Spark nor Java. No other file of broker/ imports spark_jobs/.
"""

from __future__ import annotations

from importlib import import_module

import click

from brokerhouse.broker.cli.examples import add_examples
from brokerhouse.broker.cli.options import json_option, print_json
from brokerhouse.common.console import console, new_table

JOBS = {
    "lag": "How far groups are behind, window by window, into lag_history; alerts; a plot.",
    "audit": "Offsets that are missing, doubled or out of order; commits that go back.",
    "feed": "Fills a typed table exactly once from any Kafka, in any ClickHouse.",
    "iceberg": "Writes topics into Iceberg tables, each committed record once.",
    "iceberg-maintenance": "Rewrites small files of Iceberg tables, expires snapshots.",
    "iceberg-view": "Makes a view of an Iceberg table and of the log behind it, in ClickHouse.",
    "compaction": "Keeps the latest record of each key, where cleanup.policy has compact.",
}
"""Every job: the name of its module in spark_jobs/, with - for _, and what it does."""


@click.group()
def jobs() -> None:
    """Run Spark jobs over the whole log."""


@jobs.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """Print every job and what it is for."""
    if as_json:
        print_json([{"job": name, "what it does": purpose} for name, purpose in JOBS.items()])
        return
    table = new_table("job", "what it does")
    for name, purpose in JOBS.items():
        table.add_row(name, purpose)
    console().print(table)


class _Jobs(click.Group):
    """Finds a job's command in its module, which imports pyspark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in JOBS:
            return None
        from brokerhouse.spark_jobs.session import SparkMissing, check_installed

        try:
            check_installed()
            found: click.Command = import_module(
                f"brokerhouse.spark_jobs.{cmd_name.replace('-', '_')}"
            ).command
        except SparkMissing as error:
            raise click.ClickException(str(error)) from error
        add_examples(found, ("jobs", "run", cmd_name))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@jobs.command("run", cls=_Jobs, subcommand_metavar="NAME [OPTIONS]")
def run() -> None:
    """Run the job NAME; `brokerhouse jobs run NAME --help` has its options."""
