"""ClickHouse's HTTP interface, as Spark's driver and tasks read through it. Blocking.

Values travel as bound parameters, and no setting is changed, so that a user who may only read will
do. An answer counts as whole only when the end of its HTTP body has come: a server that is lost
midway never looks like the end of the data.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import urllib3

from spark_jobs.options import Login
from storage.engine import Parameter
from storage.parameters import parameter_texts

ATTEMPTS = 5
"""Rounds over all servers before one gives up."""
PAUSE_S = 0.25
"""Before the second round; each later one waits twice as long."""

# A server that runs a query says nothing until the first rows are found.
_POOL = urllib3.PoolManager(
    timeout=urllib3.Timeout(connect=5.0, read=120.0), retries=False, maxsize=4
)
_SHOWN_CHARS = 500
_LOGIN_REFUSED = ("192", "193", "194", "516")  # unknown user, wrong password, both


class ServerError(Exception):
    """No answer that can be used; the message is one sentence."""


class Refused(ServerError):
    """The server has understood and will not: asking again, or elsewhere, changes nothing."""


class Unreachable(ServerError):
    """The answer did not come, or not whole: another server may do."""


class Failures:
    """Which server to ask next after some have failed, one after another, and when to give up."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._told: dict[str, Unreachable] = {}
        self._count = 0

    @property
    def next_url(self) -> str:
        return self._urls[self._count % len(self._urls)]

    def add(self, error: Unreachable) -> None:
        """Raises Unreachable after the last attempt; waits where each server had its turn."""
        self._told[self.next_url] = error
        self._count += 1
        rounds, turns = divmod(self._count, len(self._urls))
        if rounds == ATTEMPTS:
            raise Unreachable("; ".join(str(error) for error in self._told.values())) from error
        if turns == 0:
            # A server that is being restarted is back in a moment.
            time.sleep(PAUSE_S * 2 ** (rounds - 1))

    def forget(self) -> None:
        """The server answers: from here on it is the first, and has all its attempts again."""
        self._count %= len(self._urls)
        self._told.clear()


def rows_of_any(
    urls: Sequence[str], login: Login, sql: str, params: Mapping[str, Parameter]
) -> list[list[Any]]:
    """`rows` of the first server that answers. Raises ServerError."""
    failures = Failures(urls)
    while True:
        try:
            return rows(failures.next_url, login, sql, params)
        except Unreachable as error:
            failures.add(error)


def rows(
    url: str, login: Login, sql: str, params: Mapping[str, Parameter] | None = None
) -> list[list[Any]]:
    """The rows of a small result; 64-bit integers may be text. Raises ServerError."""
    response = _ask(url, login, f"{sql} FORMAT JSONCompactEachRow", params)
    try:
        return [json.loads(line) for line in response.read().splitlines()]
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(f"{url} broke off its answer ({_told(error)})") from error
    finally:
        response.close()


def arrow(
    url: str, login: Login, sql: str, params: Mapping[str, Parameter] | None = None
) -> Iterator[pa.RecordBatch]:
    """A result of any size, as it comes. Raises ServerError, also after some of it has come."""
    response = _ask(url, login, f"{sql} FORMAT ArrowStream", params)
    try:
        with pa.ipc.open_stream(response) as stream:
            yield from stream
        # What follows the stream is the end of the body; that of a query that failed is an error.
        if rest := response.read():
            raise Unreachable(f"{url} failed midway: {_first_line(rest)}")
    except (urllib3.exceptions.HTTPError, pa.ArrowException, OSError) as error:
        raise Unreachable(f"{url} broke off its answer ({_told(error)})") from error
    finally:
        response.close()


def _ask(
    url: str, login: Login, sql: str, params: Mapping[str, Parameter] | None
) -> urllib3.BaseHTTPResponse:
    query = {f"param_{name}": text for name, text in parameter_texts(params).items()}
    headers = {}
    if login.user is not None:
        # Headers of ClickHouse's own cannot carry every password.
        pair = base64.b64encode(f"{login.user}:{login.password}".encode())
        headers = {"Authorization": f"Basic {pair.decode()}"}
    try:
        response = _POOL.request(
            "POST",
            f"{url}/?{urlencode(query)}",
            body=sql.encode(),
            headers=headers,
            preload_content=False,
        )
    except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
        raise Unreachable(f"{url} does not answer ({_told(error)})") from error
    if response.status == 200:
        return response
    try:
        raise _failure(url, login, response)
    finally:
        response.close()


def _failure(url: str, login: Login, response: urllib3.BaseHTTPResponse) -> ServerError:
    code = response.headers.get("X-ClickHouse-Exception-Code", "")
    if response.status == 401 or code in _LOGIN_REFUSED:
        who = "to be read without a user" if login.user is None else f"user {login.user}"
        return Refused(f"{url} refuses {who}: set the options user and password")
    try:
        text = _first_line(response.read())
    except (urllib3.exceptions.HTTPError, OSError) as error:
        text = _told(error)
    message = f"{url} answers with status {response.status}: {text}"
    return Refused(message) if 300 <= response.status < 500 else Unreachable(message)


def _first_line(body: bytes) -> str:
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[0][:_SHOWN_CHARS] if lines else "nothing more is said"


def _told(error: Exception) -> str:
    """Without what urllib3 puts before its reasons."""
    return re.sub(r"^(?:<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
