"""Options of commands whose value an environment variable can give too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from brokerhouse.common.address import Address, host_to_connect_to, parse_address
from brokerhouse.common.environment import BOOTSTRAP_VARIABLE, ENV_PREFIX

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def environment_option(
    name: str, variable: str, purpose: str | None = None, **more: Any
) -> Callable[[CommandT], CommandT]:
    """An option, or the variable `ENV_PREFIX` + `variable`; `more` is click's."""
    return click.option(name, envvar=ENV_PREFIX + variable, show_envvar=True, help=purpose, **more)


def server_option(
    name: str, metavar: str, default: str, variable: str, read: Callable[..., Any], purpose: str
) -> Callable[[CommandT], CommandT]:
    """The address of the server, as `read`, a click callback, returns it."""
    return environment_option(
        name, variable, purpose, metavar=metavar, default=default, callback=read, show_default=True
    )


def brokers_option(read: Callable[..., Any]) -> Callable[[CommandT], CommandT]:
    """--bootstrap, as `read`, a click callback, returns it."""
    return server_option(
        "--bootstrap",
        "HOST:PORT,...",
        "127.0.0.1:9092",
        BOOTSTRAP_VARIABLE,
        read,
        "Kafka brokers to connect to; one of them names the others.",
    )


def brokers_from_text(text: str) -> tuple[Address, ...]:
    """Addresses to connect to; a wildcard is this machine. Raises ValueError."""
    found = [parse_address(part.strip()) for part in text.split(",")]
    if any(address.port == 0 for address in found):
        raise ValueError("nothing listens on port 0: write the port of the broker")
    return tuple(Address(host_to_connect_to(host), port) for host, port in found)
