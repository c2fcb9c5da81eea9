"""Many queries at once: how many run, how the others wait, and that producers and consumers are not
slowed down.
"""

import concurrent.futures
import http.client
from collections.abc import Callable

from tests.support.adapters import KafkaPython
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.sql_client import (
    MIB,
    WRITER,
    ask,
    connect,
    read,
    running,
    send,
    write,
)
from tests.support.waiting import until


def test_permits_are_given_back_however_a_query_ends(one_turn: BrokerProcess) -> None:
    server = one_turn
    for _ in range(6):
        assert ask(server, "SELECT nosuch").status == 404
        assert ask(server, "SELECT throwIf(1)").status == 500
        assert ask(server, "x", headers={"Content-Encoding": "gzip"}).status == 400
        assert ask(server, "INSERT INTO default.nosuch VALUES (1)", headers=WRITER).status == 404
        assert ask(server, "SELECT 1", database="nosuch").status == 404
        connection = connect(server)
        send(connection, "SELECT number FROM system.numbers").read(10)
        connection.close()
        connection = connect(server)
        connection.request("POST", "/", "SELECT sum(number) FROM system.numbers")
        connection.close()
    assert read(server, "SELECT 1") == "1\n"


def test_a_client_that_leaves_is_not_counted_as_a_failed_disk_write(
    server: BrokerProcess,
) -> None:
    for _ in range(5):
        connection = connect(server)
        send(connection, "SELECT number FROM system.numbers").read(10)
        connection.close()
    until(lambda: not running(server), "the queries have ended")
    failed = "WriteBufferFromFileDescriptorWriteFailed"
    assert write(server, f"SELECT sum(value) FROM system.events WHERE event = '{failed}'") == "0\n"


def test_more_queries_than_permits_wait_for_their_turn(one_turn: BrokerProcess) -> None:
    server = one_turn
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: ask(server, f"SELECT {n} + sleep(0.05)"), range(12)))
    assert [answer.text for answer in answers] == [f"{n}\n" for n in range(12)]


def test_producers_and_consumers_go_on_while_heavy_queries_run(
    own_server: Callable[..., BrokerProcess], topic: str
) -> None:
    server = own_server(sql_max_queries="5")  # three of them for readers from this address
    connections = [connect(server) for _ in range(3)]
    heavy = [
        "SELECT number FROM system.numbers FORMAT RowBinary",
        "SELECT sum(sipHash64(number)) FROM system.numbers",
        "SELECT number, toString(number) FROM system.numbers FORMAT JSONEachRow",
    ]
    records = [Record(b"key", b"%d" % n, timestamp_ms=n) for n in range(300)]
    client = KafkaPython()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for connection, sql in zip(connections, heavy, strict=True):
            connection.request(
                "POST", "/?enable_http_compression=1", sql, {"Accept-Encoding": "zstd"}
            )
        readers = [pool.submit(_read_much, connections[n]) for n in (0, 2)]
        client.produce(server.kafka, topic, records)
        read_back = client.read_from_offset(server.kafka, topic, 0, len(records))
        assert [record.value for record in read_back] == [record.value for record in records]
        for reader in readers:
            reader.result()
        assert len(running(server)) == len(heavy), "they have run all the time"
        for connection in connections:
            connection.close()
    until(lambda: not running(server))


def _read_much(connection: http.client.HTTPConnection) -> None:
    response = connection.getresponse()
    for _ in range(4):
        assert response.read(MIB)


def test_each_of_many_clients_at_once_gets_its_own_answers(server: BrokerProcess) -> None:
    def client(n: int) -> bool:
        connection = connect(server)
        good = True
        for k in range(4):
            response = send(connection, f"SELECT {n}, {k}, number FROM numbers(1000) FORMAT CSV")
            lines = response.read().decode().splitlines()
            good &= lines == [f"{n},{k},{i}" for i in range(1000)]
        connection.close()
        return good

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert all(pool.map(client, range(20)))


def test_a_stop_ends_queries_that_run_and_readers_that_are_slow(
    own_server: Callable[..., BrokerProcess],
) -> None:
    # The time is far longer than `stop` waits.
    server = own_server(shutdown_timeout_ms="600000", sql_max_queries="8")
    write(server, "CREATE TABLE default.hole (n UInt64) ENGINE = Null")
    connections = [connect(server) for _ in range(5)]
    for connection, sql in zip(
        connections,
        (
            "SELECT sum(cityHash64(number)) FROM system.numbers",
            "SELECT number FROM system.numbers",
            "SELECT number FROM system.numbers",
            "SELECT 1",
            "INSERT INTO default.hole SELECT number FROM system.numbers",
        ),
        strict=True,
    ):
        session = connections.index(connection)
        connection.request("POST", f"/?session_id={session}", sql, headers=WRITER)
    connections[1].getresponse().read(100)
    assert connections[3].getresponse().read() == b"1\n"
    insert = connect(server)
    insert.putrequest("POST", "/?query=INSERT+INTO+default.hole+FORMAT+CSV")
    insert.putheader("Authorization", WRITER["Authorization"])
    insert.putheader("Content-Length", "1000")
    insert.endheaders(b"1,2\n")
    until(lambda: len(running(server)) >= 5)
    server.stop()
    for connection in connections:
        connection.close()
