"""One statement over ClickHouse's HTTP interface, in the simplest way there is."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

LIMIT_S = 120.0


class SqlError(Exception):
    """The server refused a statement. `code` is ClickHouse's error code, 0 if it sent none."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def sql_rows(
    url: str,
    statement: str,
    arguments: Mapping[str, str | int] | None = None,
    *,
    user: str | None = None,
    password: str = "",
) -> list[dict[str, Any]]:
    """The rows of a statement's result. Needs no FORMAT; 64-bit integers come as ints.

    `arguments` go into the URL: settings, `param_NAME`, `database`. Raises `SqlError`.
    """
    query = {
        "default_format": "JSONEachRow",
        "output_format_json_quote_64bit_integers": 0,
        **(arguments or {}),
    }
    request = urllib.request.Request(
        f"{url}/?{urllib.parse.urlencode(query)}", data=statement.encode()
    )
    if user is not None:
        request.add_header("X-ClickHouse-User", user)
        request.add_header("X-ClickHouse-Key", password)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            return [json.loads(line) for line in response.read().splitlines()]
    except urllib.error.HTTPError as error:
        code = int(error.headers.get("X-ClickHouse-Exception-Code", "0"))
        raise SqlError(error.read().decode(errors="replace"), code) from error


def bound(parameters: Mapping[str, str | int] | None) -> dict[str, str | int]:
    """Query parameters as arguments of the URL."""
    return {f"param_{name}": value for name, value in (parameters or {}).items()}
