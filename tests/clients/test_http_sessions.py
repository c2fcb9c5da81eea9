"""Sessions of the HTTP interface: what they keep, who else may use them, and when they end."""

import urllib.parse
from collections.abc import Callable

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    WRITER,
    ask,
    connect,
    read,
    running,
    write,
)
from tests.support.waiting import until


def test_a_session_keeps_settings_database_and_temporary_tables(server: BrokerProcess) -> None:
    def say(sql: str, **parameters: str) -> str:
        return write(server, sql, session_id="keeps", **parameters)

    say("SET max_block_size = 77")
    say("USE system")
    say("CREATE TEMPORARY TABLE t (a Int8)")
    say("INSERT INTO t VALUES (1), (2)")
    assert (
        say("SELECT sum(a), getSetting('max_block_size'), currentDatabase() FROM t")
        == "3\t77\tsystem\n"
    )
    assert read(server, "SELECT getSetting('max_block_size') != 77") == "1\n"
    assert ask(server, "SELECT * FROM t", session_id="other", headers=WRITER).code == 60
    assert ask(server, "SELECT * FROM t", session_id="keeps").code == 60, "another user's session"


def test_settings_of_one_request_do_not_become_the_sessions(server: BrokerProcess) -> None:
    sql = "SELECT getSetting('max_block_size'), currentDatabase()"
    for headers in ({}, WRITER):
        session = f"one-request-{len(headers)}"
        ask(server, "SET max_block_size = 77", session_id=session, headers=headers)
        told = ask(
            server, sql, session_id=session, headers=headers, max_block_size="5", database="system"
        )
        assert told.text == "5\tsystem\n"
        assert ask(server, sql, session_id=session, headers=headers).text == "77\tbrokerhouse\n"


def test_a_query_that_fails_leaves_its_session_clean(server: BrokerProcess) -> None:
    ask(server, "SET max_block_size = 100", session_id="clean")
    answer = ask(server, "SELECT throwIf(number = 5000) FROM numbers(10000)", session_id="clean")
    assert answer.code == 395
    assert ask(server, "SELECT 1", session_id="clean").text == "1\n"
    assert ask(server, "EXPLAIN AST SELECT nosuch(", session_id="clean").code == 62
    assert ask(server, "SELECT 1", session_id="clean").text == "1\n"


def test_a_session_takes_one_query_at_a_time(server: BrokerProcess) -> None:
    connection = connect(server)
    url = "/?" + urllib.parse.urlencode({"session_id": "busy"})
    connection.request("POST", url, "SELECT sum(number) AS in_busy FROM system.numbers")
    until(lambda: any("in_busy" in query for query in running(server)))
    answer = ask(server, "SELECT 1", session_id="busy")
    assert (answer.status, answer.code) == (500, 373)
    connection.close()
    until(lambda: ask(server, "SELECT 1", session_id="busy").text == "1\n")


def test_with_session_check_a_session_has_to_exist(server: BrokerProcess) -> None:
    assert ask(server, "SELECT 1", session_id="absent", session_check="1").code == 372
    ask(server, "SELECT 1", session_id="present")
    assert ask(server, "SELECT 1", session_id="present", session_check="1").status == 200
    ask(server, "SELECT 1", session_id="present", close_session="1")
    assert ask(server, "SELECT 1", session_id="present", session_check="1").code == 372
    ask(server, "SELECT 1", session_id="short", session_timeout="0")
    until(
        lambda: (
            ask(server, "SELECT 1", session_id="short", session_check="1", session_timeout="0").code
            == 372
        )
    )


@pytest.mark.parametrize("timeout", ["x", "-1", "3601", "", "9" * 30])
def test_a_wrong_session_timeout_is_refused(server: BrokerProcess, timeout: str) -> None:
    assert ask(server, "SELECT 1", session_id="t", session_timeout=timeout).code == 374


@pytest.mark.test_all
def test_sessions_with_settings_are_limited_in_number(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server()
    for n in range(210):
        assert ask(server, "SELECT 1", session_id=f"empty{n}").status == 200
    codes = [ask(server, "SET max_threads = 1", session_id=f"full{n}").code for n in range(201)]
    assert codes == [0] * 200 + [202]
