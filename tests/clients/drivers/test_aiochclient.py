"""aiochclient, unmodified."""

import datetime
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiochclient import ChClient, ChClientError

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def reader(server: BrokerProcess, http: aiohttp.ClientSession, **options: Any) -> Any:
    return ChClient(http, url=f"{server.http_url}/", **options)


def writer(server: BrokerProcess, http: aiohttp.ClientSession, **options: Any) -> Any:
    return reader(server, http, user=USER, password=PASSWORD, **options)


async def test_aiochclient_finds_the_server_alive(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    assert await reader(server, http).is_alive()
    assert not await reader(server, http, user=USER, password="wrong").is_alive()


@pytest.mark.parametrize("compress", [False, True])
async def test_aiochclient_fetches_rows_in_each_shape(
    server: BrokerProcess, http: aiohttp.ClientSession, compress: bool
) -> None:
    client = reader(server, http, compress_response=compress)
    rows = await client.fetch("SELECT number, toString(number) AS s, NULL FROM numbers(3)")
    assert [tuple(row.values()) for row in rows] == [(0, "0", None), (1, "1", None), (2, "2", None)]
    assert await client.fetchval("SELECT count() FROM brokerhouse.messages") == 10
    assert (await client.fetchrow("SELECT {v} AS v", params={"v": "it's\n\\"}))["v"] == "it's\n\\"
    assert [row async for row in client.iterate("SELECT 1 WHERE 0")] == []
    count = 0
    async for row in client.iterate("SELECT number FROM numbers(200000)"):
        assert row[0] == count
        count += 1
    assert count == 200_000
    assert await client.fetch("SELECT 1 AS a", json=True) == [{"a": 1}]


async def test_aiochclient_shows_and_describes_tables(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    client = reader(server, http, database="brokerhouse")
    assert "messages" in [row[0] for row in await client.fetch("SHOW TABLES")]
    assert (await client.fetch("DESCRIBE messages"))[0]["name"] == "topic"
    assert await client.fetchval("EXISTS messages") == 1


async def test_aiochclient_inserts_rows_in_each_shape(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    client = writer(server, http)
    await client.execute(
        "CREATE TABLE t (a UInt8, b Tuple(Date, Nullable(Float32)), c String)"
        " ENGINE = MergeTree ORDER BY a"
    )
    day = datetime.date(2018, 9, 7)
    await client.execute(
        "INSERT INTO t VALUES", (1, (day, None), 'it\'s "x"\n\\\t'), (2, (day, 3.5), "ü")
    )
    await client.execute(
        "INSERT INTO t FORMAT JSONEachRow", {"a": 3, "b": ["2020-01-01", 1], "c": "z"}
    )
    await client.insert_file("INSERT INTO t (a, c) FORMAT CSV", b"4,w\n")
    rows = await client.fetch("SELECT * FROM t ORDER BY a")
    assert [tuple(row.values()) for row in rows][:2] == [
        (1, (day, None), 'it\'s "x"\n\\\t'),
        (2, (day, 3.5), "ü"),
    ]
    assert [row["c"] for row in rows][2:] == ["z", "w"]
    await client.execute("DROP TABLE t")


async def test_a_session_keeps_temporary_tables(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    client = writer(server, http, session_id="aioch")
    await client.execute("CREATE TEMPORARY TABLE tmp (a Int8)")
    await client.execute("INSERT INTO tmp VALUES", (1,), (2,))
    assert await client.fetchval("SELECT sum(a) FROM tmp") == 3


async def test_errors_have_the_text_of_clickhouse(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    client = reader(server, http)
    with pytest.raises(ChClientError, match="UNKNOWN_IDENTIFIER"):
        await client.fetch("SELECT nosuch")
    with pytest.raises(ChClientError, match="ACCESS_DENIED"):
        await client.execute("CREATE TABLE t (a Int8) ENGINE = Memory")
    with pytest.raises(ChClientError, match="ACCESS_DENIED"):
        await writer(server, http).execute("INSERT INTO brokerhouse.messages VALUES", ("x", 1))


async def test_a_result_may_be_left_early(
    server: BrokerProcess, http: aiohttp.ClientSession
) -> None:
    client = reader(server, http)
    async for row in client.iterate("SELECT number FROM numbers(100000000)"):
        assert row[0] == 0
        break
    assert await client.fetchval("SELECT 1") == 1
