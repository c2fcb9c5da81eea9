"""SQL and HTTP that are wrong.

Every test ends in a clear answer or a closed connection with one log line, while another client
works on undisturbed (`Bystander`).
"""

from __future__ import annotations

import contextlib
import socket

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from tests.faults.bystander import undisturbed
from tests.support.broker_process import BrokerProcess
from tests.support.sql_rows import SqlError
from tests.support.wire import frame, request_body

MIB = 1 << 20


class TestSql:
    def test_sql_that_fails_disturbs_no_producer(self, broker: BrokerProcess, topic: str) -> None:
        wrong = [
            "SELECT",
            "SELECT nothing FROM nowhere",
            "SELECT * FROM messages WHERE throwIf(1)",
            "SELECT toUInt8('x')",
            "SELECT sleep(4)",
            "INSERT INTO messages (topic) VALUES ('forged')",
            "DROP TABLE messages",
            "SELECT * FROM file('/etc/passwd', 'LineAsString')",
            "SELECT range(1000000000)",
            "SELECT '" + "x" * 300_000,
            "(" * 5000,
            "\x00\xff",
        ]
        with undisturbed(broker, topic):
            before_bytes = broker.rss_bytes()
            for _ in range(5):
                for query in wrong:
                    with pytest.raises(SqlError):
                        broker.sql(query)
            assert broker.rss_bytes() - before_bytes < 300 * MIB
        assert broker.sql("SELECT 1 AS one") == [{"one": 1}]

    def test_bytes_that_are_not_http_disturb_no_producer(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        host, port = broker.http.rsplit(":", 1)
        with undisturbed(broker, topic):
            for data in (
                b"\0" * 1000,
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET " + b"/" * 100_000,
                b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nSELECT 1",
                b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                frame(request_body(ApiVersionsRequest(), 0)),
            ):
                with socket.create_connection((host, int(port)), 10) as connection:
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(data)
                        connection.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionError):
                        while connection.recv(65536):
                            pass
        assert broker.sql("SELECT 1 AS one") == [{"one": 1}]
