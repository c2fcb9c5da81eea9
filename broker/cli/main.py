"""The command `brokerhouse`: a file in this folder for each family of commands.

An error is one sentence on stderr. The exit code is 2 where the command line or the settings are
wrong, and 1 where the work failed. A command's file is imported when the command is used, and heavy
libraries (the engine, Kafka's client, rich) when its work begins, so that `--help` is quick:
tests/unit/test_help_imports.py lists what has to wait.
"""

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from brokerhouse.broker.cli.ctrl_c import INTERRUPTED
from brokerhouse.broker.cli.examples import add_examples
from brokerhouse.common.process import no_garbage_collection

COMMANDS = {
    "backup": ("backup.backup", "Back up a single broker, also while it runs."),
    "check": ("cluster.check", "Print what is wrong with a cluster."),
    "config": ("config.show_config", "Print every setting, its default and its meaning."),
    "consume": ("consume.consume", "Print the records of topics, alone or in a group."),
    "engine": ("engine.engine", "Run the embedded ClickHouse alone, without a broker."),
    "feed": ("feed.feed", "Fill typed tables beside the brokers of a cluster."),
    "groups": ("groups.groups", "List, describe, reset and delete consumer groups."),
    "jobs": ("jobs.jobs", "Run Spark jobs over the whole log."),
    "migrate": ("cluster.migrate", "Create or update the tables of a cluster."),
    "produce": ("produce.produce", "Write records to a topic, from files or standard input."),
    "restore": ("backup.restore", "Restore a backup into an empty data directory."),
    "serve": ("serve.serve", "Run a broker until Ctrl-C or SIGTERM."),
    "slots": ("cluster.slots", "Show who owns which slots of a cluster, and move slots."),
    "sql": ("sql.sql", "Run a query and print the answer."),
    "tables": ("tables.tables", "Fill tables with columns from topics, each record once."),
    "tail": ("tail.tail", "Print the records of a topic as they arrive, until Ctrl-C."),
    "topics": ("topics.topics", "List, create, describe and delete topics."),
    "views": ("views.views", "Show, repair and drop materialized views that could not be filled."),
}
"""By name: the file in this folder and the name in it, and what `brokerhouse --help` says."""


class _Commands(click.Group):
    """Finds a command in its file; and what may happen to any: Ctrl-C, output that fails."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        place, _ = COMMANDS[cmd_name]
        file, name = place.split(".")
        with no_garbage_collection():
            found: click.Command = getattr(import_module(f"brokerhouse.broker.cli.{file}"), name)
        add_examples(found, (cmd_name,))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

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


if __name__ == "__main__":
    main()
