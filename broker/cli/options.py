"""What the options of several commands share: addresses and JSON."""

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast

import click

from brokerhouse.common.address import Address, parse_address
from brokerhouse.common.options import brokers_from_text, brokers_option

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


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


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Brokers to ask for the others; as text, what Kafka's clients take.

    `timeout_s`: how long a command goes on while no broker does what it asks for.
    """

    addresses: tuple[Address, ...]
    timeout_s: float = 30.0

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def _to_bootstrap(_context: click.Context, _parameter: click.Parameter, text: str) -> Bootstrap:
    try:
        return Bootstrap(brokers_from_text(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.IntRange(1, 3600),
    default=30,
    show_default=True,
    help="How long to retry while no broker succeeds.",
)


def bootstrap_option(command: CommandT) -> CommandT:
    """--bootstrap and --timeout: the command gets both as its argument `bootstrap`."""

    @wraps(command)
    def with_brokers(*, bootstrap: Bootstrap, timeout_s: int, **others: Any) -> Any:
        return command(bootstrap=replace(bootstrap, timeout_s=timeout_s), **others)

    return brokers_option(_to_bootstrap)(timeout_option(cast(CommandT, with_brokers)))


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


json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each record, one a line."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table.")


def print_json(content: Any) -> None:
    """What a table would show, with numbers as numbers, for programs."""
    click.echo(json.dumps(content, indent=2))
