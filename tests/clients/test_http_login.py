"""Credentials of the HTTP interface, and who counts as a client on this machine."""

from collections.abc import Callable

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    PASSWORD,
    USER,
    WRITER,
    Answer,
    ask,
    basic,
)


def test_credentials_are_taken_from_every_place_that_clickhouse_knows(
    server: BrokerProcess,
) -> None:
    sql = "SELECT currentRoles()"
    ways: list[Answer] = [
        ask(server, sql, headers=WRITER),
        ask(server, sql, headers={"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD}),
        ask(server, sql, user=USER, password=PASSWORD),
    ]
    assert [answer.text for answer in ways] == ["['writer']\n"] * 3
    nobody = [
        {},
        basic("default", ""),
        {"X-ClickHouse-User": "default"},
        basic("default", "null"),  # the JDBC driver 0.9.9, if it was given no password
    ]
    for headers in nobody:
        assert ask(server, sql, headers=headers).text == "['reader']\n"


def test_only_the_role_that_a_client_has_can_be_asked_for(server: BrokerProcess) -> None:
    sql = "SELECT currentRoles()"
    assert ask(server, sql, role="reader").text == "['reader']\n"
    assert ask(server, sql, role="writer", headers=WRITER).text == "['writer']\n"
    for role, headers in ("writer", {}), ("engine", {}), ("engine", WRITER), ("reader", WRITER):
        assert ask(server, sql, role=role, headers=headers).code == 512


@pytest.mark.parametrize(
    "headers",
    [
        basic(USER, "wrong"),
        basic(USER, ""),
        basic("nobody", ""),
        basic("default", PASSWORD),
        basic("default", "wrong"),
        basic("", "null"),
        basic(USER, "null"),
        basic("ädmin", "pässword"),
        {"X-ClickHouse-User": USER},
        {"X-ClickHouse-Key": PASSWORD},
        {"Authorization": "Bearer abc"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /////w=="},
        {"Authorization": ""},
        {**WRITER, "X-ClickHouse-User": USER},
    ],
)
def test_wrong_credentials_are_refused_for_every_statement(
    server: BrokerProcess, headers: dict[str, str]
) -> None:
    answer = ask(server, "SELECT 1", headers=headers)
    assert (answer.status, answer.code) == (403, 516)
    assert "AUTHENTICATION_FAILED" in answer.text
    assert PASSWORD not in answer.text


def test_without_anonymous_access_credentials_are_needed(closed_server: BrokerProcess) -> None:
    server = closed_server
    answer = ask(server, "SELECT 1")
    assert (answer.status, answer.code) == (401, 516)
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert ask(server, "SELECT 1", headers=WRITER).text == "1\n"
    assert ask(server, method="GET", path="/ping").status == 200


def test_a_default_user_that_is_configured_needs_its_password(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    server = own_broker(sql_user="default", sql_password=PASSWORD)
    sql = "SELECT currentRoles()"
    assert ask(server, sql, headers=basic("default", PASSWORD)).text == "['writer']\n"
    for password in ("", "null", "wrong"):
        assert ask(server, sql, headers=basic("default", password)).code == 516
    assert ask(server, sql, headers={"X-ClickHouse-User": "default"}).code == 516
    assert ask(server, sql).text == "['reader']\n"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8123"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"Via": "1.1 proxy"},
    ],
)
def test_a_request_through_a_browser_or_a_proxy_is_not_local(
    server: BrokerProcess, headers: dict[str, str]
) -> None:
    answer = ask(server, "SELECT 1", headers=headers)
    assert (answer.status, answer.code) == (401, 516)
    assert ask(server, "SELECT 1", headers={**headers, **WRITER}).text == "1\n"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "app.localhost", "127.0.0.1", "[::1]"]
)
def test_a_request_to_a_name_of_this_machine_is_local(server: BrokerProcess, host: str) -> None:
    assert ask(server, "SELECT 1", headers={"Host": host}).text == "1\n"
