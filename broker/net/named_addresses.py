"""Addresses of listeners in text, in the form of Kafka's `listeners` and `advertised.listeners`.

`HOST:PORT` is a single listener with the name PLAINTEXT. Several listeners are written as
`NAME://HOST:PORT,...`. A client gets the addresses of all brokers for the name of the listener to
which it is connected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from brokerhouse.common.address import Address, parse_address

DEFAULT_LISTENER = "PLAINTEXT"
_NAME = re.compile(r"[A-Z0-9._-]{1,64}")
_NOT_SERVED = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
"""In Kafka these names alone already mean encryption or a login."""


class NamedAddress(NamedTuple):
    """An address of the listener with this name."""

    listener: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.listener}://{self.address}"


def parse_listeners(text: str) -> tuple[NamedAddress, ...]:
    """`HOST:PORT`, or a list of `NAME://HOST:PORT`, of which each name is there once.

    Raises ValueError.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and any("://" not in part for part in parts):
        raise ValueError("several listeners have names: write NAME://HOST:PORT,NAME://HOST:PORT")
    found = tuple(map(_parsed, parts))
    names = [one.listener for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"there are two addresses of the listener {name}")
    return found


def listeners_text(listeners: Iterable[NamedAddress]) -> str:
    """The shortest text of which `parse_listeners` makes these."""
    listeners = tuple(listeners)
    if [one.listener for one in listeners] == [DEFAULT_LISTENER]:
        return str(listeners[0].address)
    return ",".join(map(str, listeners))


def _parsed(text: str) -> NamedAddress:
    before, slashes, address = text.rpartition("://")
    name = before.upper() if slashes else DEFAULT_LISTENER
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{before!r} cannot be the name of a listener: letters, digits, '.', '_' and '-' can"
        )
    if name in _NOT_SERVED:
        raise ValueError(f"a listener cannot be named {name}: TLS and SASL are not served")
    return NamedAddress(name, *parse_address(address))
