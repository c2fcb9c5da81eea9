"""What people's SQL may use: memory, turns, time and disk; and that it ends with its client."""

import concurrent.futures
import http.client
import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import RunServer
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    ANSWER_LIMIT_S,
    MIB,
    PASSWORD,
    USER,
    WRITER,
    Answer,
    ask,
    connect,
    held_bytes,
    peak_bytes,
    raw_connection,
    read,
    running,
    send,
    write,
)
from tests.support.waiting import until

SMALL = 384 * MIB
"""The memory of the broker `small`."""
SMALL_TEMPORARY = 32 * MIB
PLACES = 12
"""How many queries of one address wait on the broker `one_turn`."""

# Each would take gigabytes.
HEAVY = [
    "SELECT uniqExact(number) FROM numbers(100000000)",
    "SELECT count() FROM (SELECT number FROM numbers(50000000) GROUP BY number)",
    "SELECT length(groupArray(toString(number))) FROM numbers(50000000)",
    "SELECT count() FROM numbers(100) AS a JOIN numbers(50000000) AS b ON a.number = b.number",
    "SELECT count() FROM (SELECT DISTINCT toString(number) FROM numbers(50000000))",
    "SELECT length(arraySort(x -> -x, range(50000000)))",
    "SELECT length(groupArray(number)) FROM numbers(400000000)",
    "SELECT length(groupConcat(toString(number))) FROM numbers(400000000)",
]
ENDLESS = "SELECT sum(cityHash64(number)) FROM system.numbers"
NO_SPILL: dict[str, Any] = {
    "max_bytes_ratio_before_external_group_by": 0,
    "max_bytes_before_external_group_by": 0,
}


@pytest.fixture(scope="module")
def small(run_server: RunServer) -> Iterator[BrokerProcess]:
    """A broker with little memory, and less room for results that wait."""
    with run_server(
        sql_memory_bytes=str(SMALL), sql_temporary_bytes=str(SMALL_TEMPORARY)
    ) as process:
        yield process


@pytest.fixture(scope="module")
def hurried_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "sql_user": USER,
        "sql_password": PASSWORD,
        "sql_max_execution_ms": "500",
        "http_max_connections": "3",
    }
    with BrokerProcess(tmp_path_factory.mktemp("hurried") / "data", settings) as process:
        yield process


@pytest.fixture
def hurried(hurried_process: BrokerProcess) -> BrokerProcess:
    """A broker that ends each statement after half a second, and has three connections.

    A test may kill it.
    """
    if not hurried_process.running:
        hurried_process.start()
    return hurried_process


def test_all_queries_together_stay_within_their_memory(small: BrokerProcess) -> None:
    server = small
    assert ask(server, "SELECT 1", max_memory_usage=SMALL).code == 452
    before = held_bytes(server)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda sql: ask(server, sql, **NO_SPILL), HEAVY))
    assert {answer.code for answer in answers} <= {241, 202}
    assert any("memory limit exceeded" in answer.text for answer in answers)
    # The allocator keeps what was freed for some seconds.
    assert peak_bytes(server) - before < 2 * SMALL


def test_what_does_not_fit_into_memory_goes_to_the_disk_up_to_a_total(
    small: BrokerProcess,
) -> None:
    server = small
    to_disk: dict[str, Any] = {
        f"max_bytes_{limit}before_external_{what}": value
        for what in ("sort", "group_by")
        for limit, value in (("", 8 * MIB), ("ratio_", 0))
    }
    strings = "SELECT hex(sipHash128(number)) AS s FROM numbers({})"
    sort = f"SELECT s FROM ({strings}) ORDER BY s LIMIT 1 OFFSET {{}}"
    group = f"SELECT count() FROM (SELECT s, count() FROM ({strings}) GROUP BY s)"
    assert len(read(server, sort.format(500_000, 499_999), **to_disk)) == 33
    for sql in (sort.format(60_000_000, 59_999_999), group.format(60_000_000)):
        answer = ask(server, sql, **to_disk)
        assert (answer.status, answer.code) == (500, 396), answer.text
        assert "Limit for temporary files size exceeded" in answer.text
    assert ask(server, "SELECT 1", min_free_disk_space_for_temporary_data=0).code == 452


def test_results_that_wait_for_their_reader_have_a_total_size(small: BrokerProcess) -> None:
    server = small
    held = connect(server)
    sql = "SELECT repeat('x', 1000000) FROM numbers(20)"
    first = send(held, sql, wait_end_of_query=1)  # held until it is read
    assert first.status == 200
    answer = ask(server, sql, wait_end_of_query=1)
    assert (answer.status, answer.code) == (500, 202), answer.text
    assert len(first.read()) == 20_000_020
    assert len(ask(server, sql, wait_end_of_query=1).body) == 20_000_020
    held.close()


# --- turns


def test_readers_leave_a_turn_to_the_user_with_a_password(one_turn: BrokerProcess) -> None:
    server = one_turn
    until(lambda: not running(server))
    held = raw_connection(server)
    held.sendall(post(ENDLESS))
    until(lambda: len(running(server)) == 1)
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(ask, server, "SELECT 1") for _ in range(40)]
        some = concurrent.futures.as_completed(asked)
        refused = [next(some).result() for _ in range(40 - PLACES)]
        assert write(server, "SELECT 1") == "1\n"
        assert ask(server, method="GET", path="/ping").status == 200
        assert len(running(server)) == 1, "one has run all the time"
        held.close()
        answered = [future.result() for future in some]
    for answer in refused:
        assert (answer.status, answer.code) == (500, 202)
        assert "Too many simultaneous queries. Maximum: 2" in answer.text
        assert f"and {PLACES} wait for their turn" in answer.text
        assert "send the query again later" in answer.text
    assert [answer.text for answer in answered] == ["1\n"] * PLACES


# --- time


def test_a_query_is_ended_after_its_time(hurried: BrokerProcess) -> None:
    server = hurried
    for sql in (
        ENDLESS,
        "SELECT sleep(600) SETTINGS function_sleep_max_microseconds_per_block = 1000000000",
        "SELECT count() FROM numbers(1000000000) AS a, numbers(1000000000) AS b"
        " WHERE a.number + b.number = 7",
    ):
        answer = ask(server, sql)
        assert (answer.status, answer.code) == (408, 159), answer.text
        assert "TIMEOUT_EXCEEDED" in answer.text
    for setting in ("max_execution_time=0", "max_execution_time=2", "max_threads=2"):
        assert ask(server, "SELECT 1", path=f"/?{setting}").code == 452
    assert write(server, "SELECT sleep(0.7)", max_execution_time=10) == "0\n"


def test_a_result_that_is_read_slowly_ends_after_its_time(hurried: BrokerProcess) -> None:
    server = hurried
    connection = connect(server)
    while (response := send(connection, "SELECT number FROM system.numbers")).status != 200:
        assert response.status == 408, "its time has passed before its first MiB"
        response.read()
    response.read(MIB)
    until(lambda: not running(server))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()


# --- a client that leaves


def ends_with_its_client(
    server: BrokerProcess, connection: socket.socket, behind: bytes = b""
) -> None:
    """`behind` is sent when the query runs."""
    until(lambda: running(server))
    # The server stops reading, and ends a query by itself behind which much waits.
    with suppress(TimeoutError, ConnectionError):
        connection.sendall(behind)
    connection.close()
    until(lambda: not running(server), limit_s=10)


def post(sql: str, more: str = "", version: str = "1.1", path: str = "/", unsent: int = 0) -> bytes:
    """A request, of whose body so many bytes are left out."""
    length = len(sql) + unsent
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return f"{head}{more}\r\n{sql}".encode()


SLEEPS = [f"sleep(2.{n})" for n in range(10, 90)]  # three minutes; a call may not sleep so long
SLEEPING = ",".join(f"b{n}+UInt8+DEFAULT+{sleep}" for n, sleep in enumerate(SLEEPS))
AUTHORIZED = f"Authorization: {WRITER['Authorization']}\r\n"
REQUESTS = {
    "which computes": post(ENDLESS),
    "of HTTP/1.0": post(ENDLESS, version="1.0"),
    "whose result is not read": post("SELECT number FROM system.numbers"),
    # It sleeps so that its result is not too long before the end of the test.
    "whose result waits": post(
        "SELECT number FROM system.numbers WHERE NOT sleep(0.1)", path="/?wait_end_of_query=1"
    ),
    "that copies rows": post(f"INSERT INTO default.hole {ENDLESS}", AUTHORIZED),
    "of a session": post(ENDLESS, path="/?session_id=a"),
    "that loads a table": post(
        '--x\r\nContent-Disposition: form-data; name="t"; filename="t"\r\n\r\n'
        '{"a":1}\n'
        "\r\n--x--\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
        path=f"/?query=SELECT+1&t_structure=a+UInt8,{SLEEPING}&t_format=JSONEachRow",
    ),
}
BEHIND = {
    "which others wait": 200 * post("SELECT 1"),
    "which a long body waits": post(" " * MIB)[:-1],
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_a_query_ends_with_its_client(server: BrokerProcess, request_of: bytes) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.hole (n UInt64) ENGINE = Null")
    connection = raw_connection(server)
    connection.settimeout(2)
    with suppress(TimeoutError):  # the server has stopped reading
        connection.sendall(request_of)
    ends_with_its_client(server, connection)


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_a_query_with_requests_waiting_after_it_ends_with_its_client(
    server: BrokerProcess, behind: bytes
) -> None:
    connection = raw_connection(server)
    connection.settimeout(2)
    connection.sendall(post(ENDLESS))
    ends_with_its_client(server, connection, behind)


def test_an_insert_ends_with_its_client_while_the_engine_is_slow(server: BrokerProcess) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.slow (n UInt64) ENGINE = Null")
    write(server, "CREATE TABLE IF NOT EXISTS default.slow_to (n UInt64) ENGINE = Null")
    write(
        server,
        "CREATE MATERIALIZED VIEW IF NOT EXISTS default.slow_mv TO default.slow_to AS"
        f" SELECT n + {' + '.join(SLEEPS)} AS n FROM default.slow",
    )
    connection = raw_connection(server)
    path = "/?query=INSERT+INTO+default.slow+FORMAT+CSV&max_insert_block_size=1000000"
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)  # no piece has to wait
    connection.sendall(post("1\n", AUTHORIZED, path=path, unsent=1024 * MIB))

    def reads_no_more() -> bool:
        connection.sendall(b"1\n" * 64 * 1024)
        assert ask(server, method="GET", path="/ping").status == 200  # it has looked at both
        return unread_bytes(connection) > 0

    until(lambda: any(reads_no_more() for _ in range(50)))
    ends_with_its_client(server, connection)


def unread_bytes(connection: socket.socket) -> int:
    """What the system of the server has received from this client, and the server has not read."""
    ports = [connection.getpeername()[1], connection.getsockname()[1]]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, server, client, _, queues, *_ = line.split()
        if [int(address.split(":")[1], 16) for address in (server, client)] == ports:
            return int(queues.split(":")[1], 16)
    raise AssertionError("the connection is gone")


def test_a_query_that_waits_for_its_turn_leaves_with_its_client(one_turn: BrokerProcess) -> None:
    server = one_turn
    until(lambda: not running(server))
    first = raw_connection(server)
    first.sendall(post(ENDLESS))
    until(lambda: running(server))
    others = [raw_connection(server) for _ in range(PLACES - 1)]
    for connection in others:
        connection.sendall(post("SELECT 1"))
    assert write(server, "SELECT 1") == "1\n", "they wait"
    waiting = one_that_waits(server)
    assert len(waiting) == 1
    waiting[0].close()

    def another_waits() -> bool:
        waiting.extend(one_that_waits(server))
        return len(waiting) == 2

    until(another_waits, "the place of the one that has left is free")
    first.close()
    for connection in (*others, waiting[1]):
        assert answered(connection) == (200, 0, b"1\n")


def one_that_waits(server: BrokerProcess) -> list[socket.socket]:
    """Sends two queries, for which there is at most one place to wait; returns the one that waits.

    The other, or both, must be refused.
    """
    two = [raw_connection(server) for _ in range(2)]
    for connection in two:
        connection.sendall(post("SELECT 1"))
    assert any(select.select(two, [], [], ANSWER_LIMIT_S)), "no query is refused"
    # An answer to a query that came later, and that runs: by now both have been looked at.
    assert write(server, "SELECT 1") == "1\n"
    refused, _, _ = select.select(two, [], [], 0)
    for connection in refused:
        assert answered(connection)[:2] == (500, 202)
    return [connection for connection in two if connection not in refused]


def answered(connection: socket.socket) -> tuple[int, int, bytes]:
    """The status, ClickHouse's code and the body of the next answer, and the connection's end."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    code = int(response.getheader("X-ClickHouse-Exception-Code", "0"))
    body = response.read()
    connection.close()
    return response.status, code, body


# --- statements that are long


def test_a_statement_that_comes_byte_by_byte_costs_no_more_than_another(
    server: BrokerProcess,
) -> None:
    sql = "INSERT INTO t (" + "a, " * 30_000
    with raw_connection(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(post(sql + " " * 3000)[:-3000])
        before = cpu_s(server)
        for _ in range(300):
            connection.sendall(b"a")
            assert ask(server, method="GET", path="/ping").status == 200
        assert cpu_s(server) - before < 300 * 0.02


def cpu_s(server: BrokerProcess) -> float:
    """The processor time that the process has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_incomplete_statements_have_a_total_size(small: BrokerProcess) -> None:
    server = small
    part = post("SELECT 1" + " " * 3_000_000, path="/?max_query_size=4000000")[:-1000]
    connections = []
    for _ in range(20):
        connection = raw_connection(server)
        connection.sendall(part)
        connections.append(connection)
    until(lambda: select.select(connections, [], [], 0)[0], "one is refused")
    refused, _, _ = select.select(connections, [], [], 0)
    assert len(refused) < 20
    for connection in refused:
        assert b"202" in connection.recv(65536)
    assert write(server, "SELECT 1") == "1\n"
    for connection in connections:
        connection.close()
    until(lambda: ask(server, "SELECT 1").status == 200)


def test_a_session_that_holds_too_much_refuses_more(server: BrokerProcess) -> None:
    value = "x" * 100_000
    for n in range(2):
        read(server, f"SET param_a{n} = '{value}'", session_id="held")
    answer = ask(server, f"SET param_a2 = '{value}'", session_id="held")
    assert answer.code == 241, answer.text
    assert "begin a new session" in answer.text
    read(server, f"SET param_a = '{value}'", session_id="another")


def test_a_statement_with_a_very_large_tree_is_refused(server: BrokerProcess) -> None:
    deep = "+".join("1" for _ in range(400))
    sql = f"SELECT {', '.join([deep] * 100)}"
    assert ask(server, sql, max_query_size=2_000_000).status == 400
    assert read(server, f"SELECT {deep}") == "400\n"


def test_tables_sent_with_a_query_count_as_its_memory(one_turn: BrokerProcess) -> None:
    server = one_turn

    def count(size: int) -> Answer:
        part = '--x\r\nContent-Disposition: form-data; name="{}"; filename="t"\r\n\r\n{}\r\n'
        rows = "x" * 999 + "\n"
        tables = [part.format(name, rows * (size // 2000)) for name in ("a", "b")]
        return ask(
            server,
            "".join(tables) + "--x--\r\n",
            headers={"Content-Type": "multipart/form-data; boundary=x"},
            query="SELECT (SELECT count() FROM a) + (SELECT count() FROM b)",
            a_structure="s String",
            b_structure="s String",
        )

    assert count(2 * MIB).text == "2096\n"
    assert count(7 * MIB).code == 241


# --- connections


def test_a_connection_above_the_limit_closes_the_one_idle_longest(hurried: BrokerProcess) -> None:
    server = hurried
    connections = [raw_connection(server) for _ in range(3)]
    for connection in connections:
        connection.sendall(post("SELECT 1"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert read(server, "SELECT 1") == "1\n"
    assert _is_closed(connections[0]), "the one that has waited longest has lost its place"
    for connection in connections[1:]:
        connection.sendall(post("SELECT 1"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    for connection in connections:
        connection.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_client_does_not_wait_for_a_function_that_cannot_be_ended(hurried: BrokerProcess) -> None:
    server = hurried

    def long_call(size: int) -> Answer:
        two = f"range({size}), arrayMap(x -> x + 7, range({size}))"
        return ask(server, f"SELECT arrayLevenshteinDistance({two})")

    def leaves_it() -> bool:
        """Whether the function still runs when its client has its answer."""
        assert long_call(200_000).code == 159
        return bool(running(server))

    # Either may be ended before the function has begun, by a machine that stands still.
    until(lambda: long_call(20).code == 0, "a short one is answered")
    until(leaves_it, "the client of a long one does not wait for it")
    server.kill()  # it would wait for the function, and no test comes behind this one


def test_requests_that_are_sent_ahead_take_little_memory(fresh_server: BrokerProcess) -> None:
    server = fresh_server
    ahead = f"GET /ping?{'x' * 900_000} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with raw_connection(server) as connection:
        connection.sendall(post("SELECT sleep(2)"))
        until(lambda: any("sleep(2)" in query for query in running(server)))
        before = held_bytes(server)
        connection.settimeout(1)
        with suppress(TimeoutError, ConnectionError):  # it is closed
            for _ in range(40):
                connection.sendall(ahead)
        assert peak_bytes(server) - before < 12 * MIB
    with raw_connection(server) as connection:
        connection.sendall(50 * post("SELECT 7"))
        answers = b""
        while answers.count(b"\r\n\r\n7\n") < 50:
            answers += connection.recv(65536)
