"""An address in text: HOST:PORT, or [IPV6]:PORT; and which clients count as one address."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT` or `[IPV6]:PORT` as an Address. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or any(c.isspace() for c in host):
        raise ValueError("write HOST:PORT, for example 127.0.0.1:9092 or [::1]:9092")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"the port must be a number from 0 to 65535, not {port!r}")
    return Address(host, int(port))


def is_wildcard(host: str) -> bool:
    """Whether a listener with this host takes every address of its machine: 0.0.0.0, ::, 0."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        return socket.inet_aton(host) == bytes(4)
    except OSError:
        return False


def host_to_connect_to(host: str) -> str:
    """The same host; for a wildcard, which is no destination, the loopback of its family."""
    if not is_wildcard(host):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def client_network(remote: str | None) -> str:
    """What counts as one address: of IPv6 the network of a customer, /64."""
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return remote or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
