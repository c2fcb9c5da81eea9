"""One server for all drivers of ClickHouse: each test has tables of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import broker_with_writer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = broker_with_writer(
        tmp_path_factory.mktemp("drivers") / "data", sql_max_memory_bytes="1073741824"
    )
    yield process
    process.stop()
