"""A plain HTTP client for the broker's SQL interface, and a broker to use it on."""

import base64
import http.client
import re
import socket
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from tests.support.broker_process import BrokerProcess

USER, PASSWORD = "admin", "correct horse"
ANSWER_LIMIT_S = 310.0
"""It only ends a hang: a server ends a query of a reader after 302 s by itself."""
MIB = 1024 * 1024


def broker_with_writer(data_dir: Path, **settings: str) -> BrokerProcess:
    """A running broker whose SQL may be written by USER, with ten records in the topic `kept`."""
    broker = BrokerProcess(data_dir, {"sql_user": USER, "sql_password": PASSWORD, **settings})
    broker.start()
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for n in range(10):
        producer.send("kept", b"%d" % n, partition=0)
    producer.close()
    return broker


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes

    @property
    def code(self) -> int:
        """ClickHouse's error code; 0 where there is none."""
        return int(self.headers.get("x-clickhouse-exception-code", "0"))

    @property
    def text(self) -> str:
        return self.body.decode()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


WRITER = basic(USER, PASSWORD)


def connect(server: BrokerProcess) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.http, timeout=ANSWER_LIMIT_S)


def send(
    connection: http.client.HTTPConnection,
    body: bytes | str | Iterable[bytes] | None = None,
    *,
    method: str = "POST",
    path: str = "/",
    headers: Mapping[str, str] | None = None,
    **parameters: Any,
) -> http.client.HTTPResponse:
    query = urllib.parse.urlencode(parameters)
    content = body.encode() if isinstance(body, str) else body
    connection.request(
        method, f"{path}?{query}" if query else path, body=content, headers=dict(headers or {})
    )
    return connection.getresponse()


def ask(
    server: BrokerProcess,
    body: bytes | str | Iterable[bytes] | None = None,
    *,
    method: str = "POST",
    path: str = "/",
    headers: Mapping[str, str] | None = None,
    **parameters: Any,
) -> Answer:
    """One request on a connection of its own; `parameters` go into the URL."""
    connection = connect(server)
    try:
        response = send(connection, body, method=method, path=path, headers=headers, **parameters)
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def write(server: BrokerProcess, sql: bytes | str, **parameters: Any) -> str:
    """Run a statement as the user who may write; it must succeed."""
    answer = ask(server, sql, headers=WRITER, **parameters)
    assert answer.status == 200, answer.text
    return answer.text


def read(server: BrokerProcess, sql: str, **parameters: Any) -> str:
    """The result of a query without credentials; it must succeed."""
    answer = ask(server, sql, **parameters)
    assert answer.status == 200, answer.text
    return answer.text


def raw_connection(server: BrokerProcess) -> socket.socket:
    host, port = server.http.split(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_LIMIT_S)


def running(server: BrokerProcess) -> list[str]:
    """The statements of clients that run now, without this query itself."""
    text = write(
        server,
        "SELECT query FROM system.processes WHERE startsWith(query, '/* brokerhouse ')"
        " AND query NOT LIKE '%system.processes%' FORMAT TSV",
        max_execution_time=ANSWER_LIMIT_S,  # of a test's server it may be one second
    )
    return text.splitlines()


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def held_bytes(server: BrokerProcess) -> int:
    """What the process holds; from now on `peak_bytes` is the most since now."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    return peak_bytes(server)


def peak_bytes(server: BrokerProcess) -> int:
    """The most memory that the process ever held, or since `held_bytes` was asked."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024
