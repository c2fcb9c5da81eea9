"""What the options of several commands share: reading addresses, and the error for settings."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from broker.config import ConfigError
from common.address import Address, parse_address


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


def to_address(_context: click.Context, _parameter: click.Parameter, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def to_addresses(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[Address, ...]:
    return tuple(to_address(context, parameter, text) for text in texts)
