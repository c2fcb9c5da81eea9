"""Errors of the HTTP interface, in ClickHouse's words."""

from __future__ import annotations

import re

SYNTAX_ERROR = 62
STD_EXCEPTION = 1001

_CODE = re.compile(r"Code: (\d+)\. ")
_REPEATED_HEAD = re.compile(r"^(Code: \d+\. DB::Exception: )(?:Code: \d+\. DB::Exception: )+")
_REPEATED_TAIL = re.compile(r"(?: \(version [0-9.]+\)\. \(([A-Z_0-9]+)\))+(?= \(version|$)")


class SqlError(Exception):
    """An error as ClickHouse words it: `Code: 60. DB::Exception: ... (UNKNOWN_TABLE)`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CredentialsNeeded(SqlError):
    """The request has no credentials, and nobody may ask without them."""


def sql_error(code: int, name: str, message: str) -> SqlError:
    """`code` and `name` as in ClickHouse's system.errors."""
    return SqlError(code, _worded(code, name, message))


def access_denied(why: str) -> SqlError:
    return sql_error(497, "ACCESS_DENIED", f"Not enough privileges. {why}")


def needs_sql_user(why: str) -> SqlError:
    """For a reader without credentials: also how to get some."""
    return access_denied(f"{why} {_GET_SQL_USER}")


_GET_SQL_USER = (
    "Log in with the name and the password in the broker's settings sql_user and sql_password; if"
    " they are not set, set them and restart the broker."
)


def wrong_credentials(user: str, password: str) -> SqlError:
    """Words of ClickHouse where a password was given; nobody is told that none is incorrect."""
    if password:
        why = "password is incorrect, or there is no user with such name."
    elif user:
        why = f"no password was given. {_GET_SQL_USER}"
    else:
        why = f"credentials are needed here (sql_anonymous). {_GET_SQL_USER}"
    message = _worded(
        516, "AUTHENTICATION_FAILED", f"{user or 'default'}: Authentication failed: {why}"
    )
    return SqlError(516, message) if user or password else CredentialsNeeded(516, message)


def _worded(code: int, name: str, message: str) -> str:
    return f"Code: {code}. DB::Exception: {message} ({name})"


# What a chDB handle raises: the second when the message quotes bytes that are not UTF-8.
ENGINE_ERRORS = (RuntimeError, UnicodeDecodeError)


def engine_error(error: RuntimeError | UnicodeDecodeError) -> SqlError:
    """The engine's exception, without the repetitions that chDB wraps around some of them."""
    if isinstance(error, UnicodeDecodeError):
        message = bytes(error.object).decode("utf-8", "replace")
    else:
        message = str(error)
    text = _REPEATED_HEAD.sub(r"\1", message.strip())
    text = _REPEATED_TAIL.sub(r"", text)
    match = _CODE.search(text)
    if match is None:
        return sql_error(STD_EXCEPTION, "STD_EXCEPTION", text)
    return SqlError(int(match[1]), text)
