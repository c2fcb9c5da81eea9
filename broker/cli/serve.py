"""`brokerhouse serve`: runs a broker, alone or as one of a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from broker import config, config_sources
from broker.cli.config import config_file_option, load_settings
from broker.cli.options import settings_errors
from broker.cluster.config import load_cluster
from broker.config import Settings
from storage.data_directory import keep_files_private


def _settings_flags(command: Callable[..., None]) -> Callable[..., None]:
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


@click.command()
@config_file_option
@_settings_flags
@click.pass_context
def serve(context: click.Context, /, config_file: Path | None, **flags: Any) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Every setting is a flag here, an environment variable BROKERHOUSE_NAME, and a key of the TOML
    file, in this order of precedence. When clients can connect, one line is printed:

        ready kafka=127.0.0.1:9092 http=127.0.0.1:8123

    With a table [cluster] in the file, this is one broker of several: docs/cluster.md.
    """
    keep_files_private()
    settings = load_settings(flags, config_file).settings
    path = config_file or config_sources.config_file_of_environment()
    with settings_errors():
        cluster = None if path is None else load_cluster(path)
        if cluster is None:
            config.prepare_data_dir(settings)
            settings = config.enter_warehouse(settings)
        elif settings.iceberg_warehouse is not None:
            raise config.ConfigError(
                "iceberg_warehouse is for a single broker: in a cluster, ClickHouse's own"
                " configuration says what it may read"
            )

    from broker import server

    context.exit(server.run(settings, cluster))
