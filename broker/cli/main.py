"""The command `brokerhouse`: reads the command line and starts what was asked for.

`serve` and `config` live here, what talks to a running broker in topics.py, groups.py and
sql.py. An error is one sentence on stderr; the exit code is 2 where the command line or the
settings are wrong and 1 where the work failed. Heavy imports (the engine, Kafka's client) wait
until a command needs them, so that `--help` is quick.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from broker import config
from broker.cli import cluster as cli_cluster
from broker.cli import engine as cli_engine
from broker.cli import groups as cli_groups
from broker.cli import jobs as cli_jobs
from broker.cli import sql as cli_sql
from broker.cli import topics as cli_kafka
from broker.cluster.config import load_cluster
from broker.config import ConfigError, Configuration, SettingRow, Settings
from common.console import console

config_file_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"TOML file with settings; also {config.CONFIG_FILE_ENV}.",
)


class WrongSettings(click.ClickException):
    """What is wrong with the settings, in one sentence."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="brokerhouse", prog_name="brokerhouse")
def main() -> None:
    """A Kafka broker whose log is a ClickHouse table."""


def settings_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one flag per setting. Secrets have none: a command line is public."""
    for name, field in reversed(Settings.model_fields.items()):
        if field.annotation == SecretStr | None:
            continue
        flag = name.replace("_", "-")
        unit, default = config.unit(field), config.as_text(field.default)
        help_text = f"{field.description}  [{f'default: {default}' if default else 'not set'}]"
        command = (
            click.option(f"--{flag}/--no-{flag}", name, default=None, help=help_text)
            if field.annotation is bool
            else click.option(f"--{flag}", name, metavar=unit.upper(), help=help_text)
        )(command)
    return command


@main.command()
@config_file_option
@settings_flags
@click.pass_context
def serve(context: click.Context, /, config_file: Path | None, **flags: Any) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Every setting is a flag here, an environment variable BROKERHOUSE_NAME, and a key of the TOML
    file, in this order of precedence. When clients can connect, one line is printed:

        ready kafka=127.0.0.1:9092 http=127.0.0.1:8123

    With a table [cluster] in the file, this is one broker of several: docs/cluster.md.
    """
    settings = _load(flags, config_file).settings
    path = config_file or config.config_file_of_environment()
    try:
        cluster = None if path is None else load_cluster(path)
        if cluster is None:
            config.prepare_data_dir(settings)
    except ConfigError as error:
        raise WrongSettings(str(error)) from error

    from broker import server

    context.exit(server.run(settings, cluster))


@main.command("config")
@config_file_option
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "toml", "json"]),
    default="table",
    show_default=True,
    help="A table to read, a file for --config, or JSON.",
)
def show_config(config_file: Path | None, output: str) -> None:
    """Print every setting, its default and its meaning.

    Also the unit of each value and where it comes from: a flag, the environment, a file.
    """
    configuration = _load({}, config_file)
    rows = list(config.rows(configuration))
    match output:
        case "toml":
            click.echo(_as_toml(rows), nl=False)
        case "json":
            click.echo(json.dumps([_as_json(row) for row in rows], indent=2))
        case _:
            console().print(_as_table(rows))


def _load(flags: dict[str, Any], config_file: Path | None) -> Configuration:
    try:
        return config.load(flags, config_file)
    except ConfigError as error:
        raise WrongSettings(str(error)) from error


def _as_table(rows: list[SettingRow]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("setting", "value", "default", "unit", "meaning", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = "" if row.source == "default" else "green"
        table.add_row(
            row.name,
            Text(row.value, style),
            row.default,
            row.unit,
            row.description,
            Text(row.source, style),
        )
    return table


def _as_toml(rows: list[SettingRow]) -> str:
    """A file that `--config` takes. What is not set, and secrets, stand there as comments."""
    blocks = []
    for row in rows:
        about = f"# {row.description} ({row.unit}; default: {row.default or 'not set'})"
        hidden = row.unit == "secret" or not row.value
        blocks.append(f"{about}\n{'# ' if hidden else ''}{row.name} = {_toml_value(row)}\n")
    return "\n".join(blocks)


def _toml_value(row: SettingRow) -> str:
    if row.unit == "secret" or not row.value:
        return '""'
    if isinstance(Settings.model_fields[row.name].default, int):
        return row.value
    return json.dumps(row.value, ensure_ascii=False)


def _as_json(row: SettingRow) -> dict[str, str]:
    return {name: getattr(row, name) for name in SettingRow.__slots__}


main.add_command(cli_cluster.migrate)
main.add_command(cli_cluster.check)
main.add_command(cli_cluster.slots)
main.add_command(cli_engine.engine)
main.add_command(cli_kafka.topics)
main.add_command(cli_groups.groups)
main.add_command(cli_jobs.jobs)
main.add_command(cli_kafka.tail)
main.add_command(cli_sql.sql)


if __name__ == "__main__":
    main()
