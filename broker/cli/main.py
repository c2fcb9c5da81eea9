"""The command `brokerhouse`: a file in this folder for each family of commands.

An error is one sentence on stderr. The exit code is 2 where the command line or the settings are
wrong, and 1 where the work failed. Heavy imports (the engine, Kafka's client) wait until a command
needs them, so that `--help` is quick.
"""

import click

from broker.cli import (
    backup,
    cluster,
    config,
    consume,
    engine,
    feed,
    groups,
    jobs,
    produce,
    serve,
    sql,
    tables,
    tail,
    topics,
    views,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="brokerhouse", prog_name="brokerhouse")
def main() -> None:
    """A Kafka broker whose log is a ClickHouse table."""


for command in (
    serve.serve,
    config.show_config,
    cluster.migrate,
    cluster.check,
    cluster.slots,
    engine.engine,
    feed.feed,
    topics.topics,
    groups.groups,
    jobs.jobs,
    produce.produce,
    consume.consume,
    tail.tail,
    sql.sql,
    views.views,
    tables.tables,
    backup.backup,
    backup.restore,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
