"""Who sends a request, and which role that gives: by credentials, and by where it comes from."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from typing import Protocol

from aiohttp import web

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.errors import sql_error, wrong_credentials
from brokerhouse.sql.http.refuse_web_pages import refuse_unknown_host
from brokerhouse.sql.http.request import url_parameters
from brokerhouse.sql.http.settings import SqlSettings

# What drivers send as the password of `default` if they were given none: ClickHouse's JDBC driver
# 0.9.9 sends the word `null`.
_NO_PASSWORDS = ("", "null")


class SqlLogin(Protocol):
    def role(self, request: web.Request) -> Role:
        """Raises AUTHENTICATION_FAILED and ACCESS_DENIED."""


class PeopleLogin:
    """`sql_user` may write; who may read without credentials is the setting `sql_anonymous`."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings

    def role(self, request: web.Request) -> Role:
        user, password = credentials(request)
        settings = self._settings
        if is_sql_user(settings, user, password):
            return Role.WRITER
        anonymous = settings.anonymous == "always" or (
            settings.anonymous == "loopback" and is_local(request)
        )
        if anonymous and self._is_nobody(user, password):
            refuse_unknown_host(request, settings.hosts)
            return Role.READER
        raise wrong_credentials(user, password)

    def _is_nobody(self, user: str, password: str) -> bool:
        """Whether these are no credentials: drivers send ClickHouse's user `default` then."""
        if user == "default":
            # `sql_user` may have this name: then it needs its password.
            return self._settings.user != "default" and password in _NO_PASSWORDS
        return not user and not password


class OwnerLogin:
    """Everyone who is let in may do everything: `sql_user`, or where none is set a program of this
    machine.
    """

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings

    def role(self, request: web.Request) -> Role:
        user, password = credentials(request)
        if self._settings.user is None:
            trusted = is_local(request) and user in ("", "default") and not password
        else:
            trusted = is_sql_user(self._settings, user, password)
        if not trusted:
            raise wrong_credentials(user, password)
        return Role.WRITER


def is_sql_user(settings: SqlSettings, user: str, password: str) -> bool:
    if settings.user is None or settings.password is None:
        return False
    # Bytes of a header that are not UTF-8 come as surrogates; no user has such a name.
    right = hmac.compare_digest(user.encode(errors="surrogateescape"), settings.user.encode())
    return right & hmac.compare_digest(
        password.encode(errors="surrogateescape"), settings.password.encode()
    )


def credentials(request: web.Request) -> tuple[str, str]:
    headers = request.headers
    values = url_parameters(request)
    authorization = headers.get("Authorization")
    if "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers:
        if authorization is not None:
            raise sql_error(
                516,
                "AUTHENTICATION_FAILED",
                "Invalid authentication: it is not allowed to use X-ClickHouse HTTP headers"
                " and Authorization HTTP header simultaneously",
            )
        return headers.get("X-ClickHouse-User", ""), headers.get("X-ClickHouse-Key", "")
    if authorization is None:
        return values.get("user", ""), values.get("password", "")
    scheme, _, rest = authorization.partition(" ")
    try:
        if scheme.lower() == "basic":
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
            return user, password
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise sql_error(
        516,
        "AUTHENTICATION_FAILED",
        f"Invalid authentication: '{scheme}' HTTP Authorization is not understood here",
    )


# Headers that proxies set. A request through a proxy comes from the proxy's address.
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def is_local(request: web.Request) -> bool:
    """Whether the client runs on this machine and addressed this machine.

    A web page can have its own name point at 127.0.0.1 and use the visitor's browser to read from
    here (DNS rebinding), so the name that was asked for has to be one of this machine.
    """
    if not _is_loopback(request.remote) or any(name in request.headers for name in _FORWARDED):
        return False
    host = request.url.host or ""
    if host in ("localhost", socket.gethostname()) or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
