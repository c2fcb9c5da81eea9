"""The command `brokerhouse`: a file in this folder for each family of commands.

An error is one sentence on stderr. The exit code is 2 where the command line or the settings are
wrong, and 1 where the work failed. Heavy imports (the engine, Kafka's client) wait until a command
needs them, so that `--help` is quick.
"""

import errno
import os
import sys
from typing import Any

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
from broker.cli.ctrl_c import INTERRUPTED
from broker.cli.examples import add_examples


class _Commands(click.Group):
    """What may happen to any command: Ctrl-C, and output that cannot be written."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                # Python would write the rest once more at its exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise click.ClickException(f"cannot write the output: {error.strerror}") from error
            raise
        return result


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
add_examples(main)


if __name__ == "__main__":
    main()
