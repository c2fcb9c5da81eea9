"""What the options of several commands share: addresses, JSON, and the error for settings."""

import codecs
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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


class Bootstrap(tuple[Address, ...]):
    """Brokers to ask for the others; as text, what Kafka's clients take."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(map(str, self))


def to_bootstrap(context: click.Context, parameter: click.Parameter, text: str) -> Bootstrap:
    return Bootstrap(to_address(context, parameter, part.strip()) for part in text.split(","))


def unescaped(text: str) -> bytes:
    """Text in which \\n, \\t, \\0 and \\xNN stand for what they do in C."""
    try:
        decoded, _ = codecs.escape_decode(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
    return decoded


def to_delimiter(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> bytes | None:
    if text == "":
        raise click.BadParameter("a delimiter cannot be empty")
    return None if text is None else unescaped(text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table.")


def print_json(content: Any) -> None:
    """What a table would show, with numbers as numbers, for programs."""
    click.echo(json.dumps(content, indent=2))
