"""Requests that a web page of another site makes a visitor's browser send."""

import socket
from collections.abc import Callable

import pytest

from brokerhouse.common.text_table import word_set
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER, WRITER, ask, raw_connection

EVIL = "http://evil.example"


@pytest.mark.parametrize("credentials", [{}, WRITER], ids=["reader", "writer"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},  # a file, a sandboxed frame
        {"Origin": "http://localhost:3000"},  # another server of this machine
        {"Origin": "file://"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "CROSS-SITE"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
    ids=lambda headers: " ".join(headers.values()) or "empty",
)
def test_a_page_of_another_site_may_not_query(
    server: BrokerProcess, headers: dict[str, str], credentials: dict[str, str]
) -> None:
    sent = {**headers, **credentials}
    form = "--x\r\nContent-Disposition: form-data; name=query\r\n\r\nSELECT 1\r\n--x--\r\n"
    plain = {**sent, "Content-Type": "text/plain"}
    multipart = {**sent, "Content-Type": "multipart/form-data; boundary=x"}
    for answer in (
        ask(server, method="GET", query="SELECT 1", headers=sent),
        ask(server, "SELECT 1", headers=plain),
        ask(server, form, headers=multipart),
    ):
        assert (answer.status, answer.code) == (403, 497)
        assert "may not query this server" in answer.text
        assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_is_answered_without_permission(server: BrokerProcess) -> None:
    asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    answer = ask(server, method="OPTIONS", headers=asked)
    assert answer.status == 204
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},  # typed into the address bar
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
def test_programs_and_pages_of_this_server_may_query(
    server: BrokerProcess, headers: dict[str, str]
) -> None:
    assert ask(server, "SELECT 1", headers=headers).text == "1\n"
    own = {**headers, "Origin": f"http://{server.http}"}
    assert ask(server, "SELECT 1", headers=own).text == "1\n"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("credentials", ["", f"&user={USER}&password={PASSWORD}"])
def test_a_request_without_exactly_one_host_is_refused(
    server: BrokerProcess, version: str, credentials: str
) -> None:
    path = f"/?query=SELECT+1{credentials}".replace(" ", "+")
    for hosts in ("", "Host: localhost\r\nHost: localhost\r\n"):
        with raw_connection(server) as connection:
            request = f"GET {path} HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            while data := connection.recv(65536):
                answer += data
        assert answer.split(b" ")[1] == b"400", answer
    with raw_connection(server) as connection:
        request = f"GET {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(65536).startswith(f"HTTP/{version} 200".encode())


def test_a_name_that_is_not_this_servers_needs_credentials(
    own_server: Callable[..., BrokerProcess],
) -> None:
    server = own_server(
        sql_anonymous="always",
        http_hosts="sql.example.com, Other.example",
        advertised="kafka.test:1",
    )
    for host in (
        "evil.example",
        "evil.example:8123",
        "example.com",
        "localhost.evil.example",
    ):
        rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        for headers in ({"Host": host}, rebound):
            answer = ask(server, "SELECT 1", headers=headers)
            assert (answer.status, answer.code) == (403, 497)
            assert "http_hosts" in answer.text
            assert ask(server, "SELECT 1", headers={**headers, **WRITER}).text == "1\n"
    for host in {socket.gethostname()} | word_set("""
        localhost 127.0.0.1 [::1]:8123 192.0.2.7 broker broker:8123 a.localhost
        broker.team.svc.cluster.local db.internal SQL.example.com:80 other.example kafka.test
    """):
        assert ask(server, "SELECT 1", headers={"Host": host}).text == "1\n", host
