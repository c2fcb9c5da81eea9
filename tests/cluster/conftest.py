"""Tests against a cluster that runs already: its addresses come from the command line.

Without `--kafka` and `--clickhouse` they are deselected, so `make test` has nothing to do with
them; `make test-cluster` runs them. They change nothing but topics and groups of their own names.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

HERE = Path(__file__).parent
QUERY_LIMIT_S = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption("--kafka", metavar="HOST:PORT,...", help="brokers of the cluster")
    group.addoption("--clickhouse", metavar="URL,...", help="every ClickHouse server of it")
    group.addoption("--clickhouse-user", default="brokerhouse")
    group.addoption(
        "--clickhouse-password",
        default=os.environ.get("CLICKHOUSE_PASSWORD", "brokerhouse"),
        help="also CLICKHOUSE_PASSWORD",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kafka", None) and config.getoption("--clickhouse", None):
        return
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@dataclass(frozen=True, slots=True)
class ClickHouse:
    """One server, asked over HTTP."""

    url: str
    user: str
    password: str

    async def rows(self, sql: str, parameters: Mapping[str, str] | None = None) -> list[list[Any]]:
        """The rows of an answer; a refusal is an AssertionError with the server's own words."""
        settings = {f"param_{name}": value for name, value in (parameters or {}).items()}
        settings |= {
            "default_format": "JSONCompactEachRow",
            "output_format_json_quote_64bit_integers": "0",
        }
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=QUERY_LIMIT_S)) as session,
            session.post(
                self.url,
                params=settings,
                data=sql.encode(),
                headers={"X-ClickHouse-User": self.user, "X-ClickHouse-Key": self.password},
            ) as response,
        ):
            text = await response.text()
            assert response.status == 200, f"{self.url}: {text}"
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> list[str]:
    """HOST:PORT of each broker."""
    return str(pytestconfig.getoption("--kafka")).split(",")


@pytest.fixture(scope="session")
def clickhouse(pytestconfig: pytest.Config) -> Sequence[ClickHouse]:
    """Every server of every shard."""
    user = str(pytestconfig.getoption("--clickhouse-user"))
    password = str(pytestconfig.getoption("--clickhouse-password"))
    urls = str(pytestconfig.getoption("--clickhouse")).split(",")
    return [ClickHouse(url, user, password) for url in urls]


@pytest.fixture
def name() -> str:
    """Of a topic or group that no other run uses."""
    return f"cluster-test-{uuid4()}"
