"""KILL QUERY by the id of a statement: only a client's own, from another connection."""

import http.client
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import ANSWER_LIMIT_S, WRITER, Answer, ask, running, send
from tests.support.waiting import until

LONG = "SELECT count() AS {mark} FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"


def kill(server: BrokerProcess, query_id: str, **arguments: object) -> Answer:
    sql = f"KILL QUERY WHERE query_id = '{query_id}'"
    return ask(server, sql, default_format="TSV", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "by"), [({}, {}), (WRITER, WRITER), ({}, WRITER)], ids=["reader", "writer", "both"]
)
def test_a_running_statement_is_ended_by_its_id(
    server: BrokerProcess, of: dict[str, str], by: dict[str, str]
) -> None:
    mark = f"killed_{len(of)}_{len(by)}"
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, server, LONG.format(mark=mark), headers=of, query_id=mark)
        until(lambda: any(mark in query for query in running(server)))
        answer = kill(server, mark, headers=by)
        assert answer.text == f"waiting\t{mark}\tdefault\t\n"
        killed = asked.result()
    assert killed.code == 394
    assert "QUERY_WAS_CANCELLED" in killed.text


def test_a_statement_that_waits_for_its_turn_is_ended_too(one_turn: BrokerProcess) -> None:
    server = one_turn
    until(lambda: not running(server))
    with ThreadPoolExecutor(2) as threads:
        first, second = (
            threads.submit(ask, server, LONG.format(mark=mark), query_id=mark)
            for mark in ("first", "second")
        )
        until(lambda: len(running(server)) == 1)
        until(lambda: kill(server, "first", headers=WRITER).text != "")
        until(lambda: kill(server, "second", headers=WRITER).text != "")
        assert (first.result().code, second.result().code) == (394, 394)


def test_the_statement_of_a_writer_is_not_ended_by_a_reader(server: BrokerProcess) -> None:
    with ThreadPoolExecutor(1) as thread:
        sql = LONG.format(mark="of_writer")
        asked = thread.submit(ask, server, sql, headers=WRITER, query_id="of_writer")
        until(lambda: any("of_writer" in query for query in running(server)))
        assert kill(server, "of_writer").text == ""
        assert any("of_writer" in query for query in running(server))
        kill(server, "of_writer", headers=WRITER)
        assert asked.result().code == 394


def test_a_reader_ends_no_statement_of_another_address(server: BrokerProcess) -> None:
    host, port = server.http.split(":")
    with ThreadPoolExecutor(1) as thread:
        sql = LONG.format(mark="of_here")
        asked = thread.submit(ask, server, sql, query_id="of_here")
        until(lambda: any("of_here" in query for query in running(server)))
        elsewhere = http.client.HTTPConnection(
            host, int(port), timeout=ANSWER_LIMIT_S, source_address=("127.0.0.2", 0)
        )
        response = send(elsewhere, "KILL QUERY WHERE query_id = 'of_here'")
        assert (response.status, response.read()) == (200, b"")
        elsewhere.close()
        assert any("of_here" in query for query in running(server))
        assert kill(server, "of_here").text != ""
        assert asked.result().code == 394


@pytest.mark.parametrize(
    "sql",
    [
        "KILL QUERY WHERE 1",
        "KILL QUERY WHERE query_id = 'x' OR 1",
        "KILL QUERY WHERE query_id != 'x'",
        "KILL QUERY WHERE query_id = 'x'; KILL QUERY WHERE 1",
        "KILL MUTATION WHERE mutation_id = 'x'",
    ],
)
@pytest.mark.parametrize("headers", [{}, WRITER], ids=["reader", "writer"])
def test_any_other_kill_is_refused(
    server: BrokerProcess, sql: str, headers: dict[str, str]
) -> None:
    assert ask(server, sql, headers=headers).code in (497, 62)


def test_a_kill_of_an_unknown_id_ends_nothing(server: BrokerProcess) -> None:
    answer = kill(server, "nosuch")
    assert (answer.status, answer.text) == (200, "")
    get = ask(server, method="GET", query="KILL QUERY WHERE query_id = 'nosuch'")
    assert get.code == 497
