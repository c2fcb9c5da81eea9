"""How commands read the settings; what is wrong with them is one sentence, and exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from brokerhouse.broker.settings import config_sources
from brokerhouse.broker.settings.config import ConfigError
from brokerhouse.broker.settings.config_sources import Configuration

config_file_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"TOML file with settings; also {config_sources.CONFIG_FILE_ENV}.",
)


class WrongSettings(click.ClickException):
    """What is wrong with the settings, in one sentence."""

    exit_code = 2


@contextmanager
def settings_errors() -> Iterator[None]:
    """Turns a ConfigError into the sentence and the exit code that the user sees."""
    try:
        yield
    except ConfigError as error:
        raise WrongSettings(str(error)) from error


def load_settings(flags: dict[str, Any], config_file: Path | None) -> Configuration:
    """The settings from all sources; flags that are None were not given."""
    with settings_errors():
        return config_sources.load(flags, config_file)
