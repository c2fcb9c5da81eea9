"""Refuses what a web page of another site sends through a visitor's browser.

A browser lets any page send requests to any address, with the visitor's network and this machine's
loopback address behind them. It says whose page it was: `Origin` and `Sec-Fetch-Site`
(https://www.w3.org/TR/fetch-metadata/). Programs send neither.

A page can also have its own name point at this server (DNS rebinding). Then both headers look like
those of a page from here, and only `Host` tells: it holds a name that is not this server's. Names
without a dot and the names below are given by the local network or by this machine, never by
public DNS, so that `http://broker:8123` works in Docker Compose and Kubernetes.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Set
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from brokerhouse.sql.http.errors import access_denied, sql_error

_FROM_HERE = ("same-origin", "none")  # "none": typed into the address bar
# RFC 6761, ICANN's reservation for private use, and Kubernetes' default.
_PRIVATE_SUFFIXES = (".localhost", ".internal", ".cluster.local")


def refuse_other_sites(request: web.Request) -> None:
    """Raises ACCESS_DENIED for a request of another site's page, BAD_ARGUMENTS without a Host."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not hosts[0]:
        version = "1.1" if request.version >= HttpVersion11 else "1.0"
        raise sql_error(
            36,
            "BAD_ARGUMENTS",
            f"The request of HTTP/{version} has {len(hosts)} Host headers: send one",
        )
    for origin in request.headers.getall("Origin", []):
        if not _same_host(origin, hosts[0]):
            raise access_denied(f"A web page of {origin!r} may not query this server.")
    for site in request.headers.getall("Sec-Fetch-Site", []):
        if site.strip().lower() not in _FROM_HERE:
            raise access_denied("A web page of another site may not query this server.")


def refuse_unknown_host(request: web.Request, hosts: Set[str]) -> None:
    """Raises ACCESS_DENIED unless `Host` is an address or a name of this server.

    `hosts`: more names of this server.
    """
    name = _host_name(request.headers.get("Host", ""))
    if not (is_own_name(name) or name in hosts):
        raise access_denied(
            f"{name!r} is not known as a name of this server: use an address, add the name to the"
            " setting http_hosts, or send a user and password."
        )


def is_own_name(name: str) -> bool:
    """Whether no other site can have this name; addresses count."""
    if _is_address(name) or name == socket.gethostname().lower():
        return True
    return name != "" and ("." not in name or name.endswith(_PRIVATE_SUFFIXES))


def _same_host(origin: str, host: str) -> bool:
    scheme, _, place = origin.strip().lower().partition("://")
    if scheme not in ("http", "https"):
        return False
    port = ":443" if scheme == "https" else ":80"
    return place.removesuffix(port) == host.strip().lower().removesuffix(port)


def _host_name(host: str) -> str:
    """Without its port, in lower case; an IPv6 address without brackets."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
