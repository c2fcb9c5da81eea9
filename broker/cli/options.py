"""What the options of several commands share: reading addresses, and the error for settings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

from broker.config import ConfigError
from common.address import Address, parse_address

T = TypeVar("T")


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


def if_given(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """The click callback of an option that may be absent: `parse` raises click.BadParameter."""

    def callback(
        _context: click.Context, _parameter: click.Parameter, text: str | None
    ) -> T | None:
        return None if text is None else parse(text)

    return callback


def to_address(_context: click.Context, _parameter: click.Parameter, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def to_addresses(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[Address, ...]:
    return tuple(to_address(context, parameter, text) for text in texts)
