"""The handshake of ClickHouse's Go driver (clickhouse-go), spoken by hand.

The driver asks for blocks of the revision that it knows, and reads the first answer in that
revision. The first answer names the revision of all further answers.
"""

from __future__ import annotations

import gzip
import struct
from io import BytesIO
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import WRITER, Answer, ask, basic, read

REVISION = 54483  # what clickhouse-go 2.50 sends
CUSTOM_SERIALIZATION = 54454
HELLO = "SELECT displayName(), version(), revision(), timezone()"
NAMES = ["displayName()", "version()", "revision()", "timezone()"]
TYPES = ["String", "String", "UInt32", "String"]
FACTS = "SELECT displayName(), version(), timezone() FORMAT TSVRaw"


@pytest.fixture(scope="module")
def server(closed_server: BrokerProcess) -> BrokerProcess:
    return closed_server


def hello(
    server: BrokerProcess, body: str | None = HELLO, revision: object = REVISION, **parameters: Any
) -> Answer:
    """As the driver sends it, with what is given changed."""
    arguments = {
        "headers": WRITER,
        "default_format": "Native",
        "client_protocol_version": revision,
        **parameters,
    }
    return ask(server, body, **arguments)


def text(stream: BytesIO) -> str:
    """A string of the Native format; those here are shorter than 128 bytes."""
    return stream.read(stream.read(1)[0]).decode()


def block(data: bytes, revision: int) -> dict[str, list[object]]:
    """The columns of a block of String and UInt32, in the framing of this revision."""
    stream = BytesIO(data)
    if revision > 0:
        assert stream.read(2) == b"\x01\x00", "field 1: not the overflow row of totals"
        assert stream.read(5) == b"\x02" + struct.pack("<i", -1), "field 2: no bucket"
        assert stream.read(1) == b"\x00", "no more fields"
    columns, rows = stream.read(2)
    found: dict[str, list[object]] = {}
    for name, kind in zip(NAMES, TYPES, strict=True):
        assert (text(stream), text(stream)) == (name, kind)
        if revision >= CUSTOM_SERIALIZATION:
            assert stream.read(1) == b"\x00", "the default serialization"
        if kind == "String":
            found[name] = [text(stream) for _ in range(rows)]
        else:
            found[name] = list(struct.unpack(f"<{rows}I", stream.read(4 * rows)))
    assert len(found) == columns
    assert stream.read() == b""
    return found


def expected(server: BrokerProcess, revision: int = 0) -> dict[str, list[object]]:
    name, version, timezone = read(server, FACTS, headers=WRITER)[:-1].split("\t")
    return dict(zip(NAMES, [[name], [version], [revision], [timezone]], strict=True))


@pytest.mark.parametrize(
    ("body", "rest"), [(HELLO, {}), (None, {"method": "GET", "query": HELLO})], ids=["POST", "GET"]
)
def test_the_hello_is_answered_in_the_requested_framing_with_revision_0(
    server: BrokerProcess, body: str | None, rest: dict[str, str]
) -> None:
    answer = hello(server, body, **rest)
    assert answer.status == 200, answer.text
    assert block(answer.body, REVISION) == expected(server)
    assert answer.headers["x-clickhouse-format"] == "Native"
    assert answer.headers["content-type"] == hello(server, "SELECT 1").headers["content-type"]
    assert {"x-clickhouse-query-id", "x-clickhouse-summary"} <= set(answer.headers)


def test_the_hello_is_compressed_on_request(server: BrokerProcess) -> None:
    headers = {**WRITER, "Accept-Encoding": "gzip"}
    answer = hello(server, headers=headers, enable_http_compression=1)
    assert answer.headers["content-encoding"] == "gzip"
    assert block(gzip.decompress(answer.body), REVISION) == expected(server)


@pytest.mark.parametrize("revision", [1, CUSTOM_SERIALIZATION - 1, CUSTOM_SERIALIZATION, 10**9])
def test_older_and_newer_drivers_get_the_framing_of_their_revision(
    server: BrokerProcess, revision: int
) -> None:
    assert block(hello(server, revision=revision).body, revision) == expected(server)


def test_any_other_statement_is_answered_in_revision_0(server: BrokerProcess) -> None:
    sql = HELLO + " WHERE 1"
    followed = hello(server, sql)
    assert followed.body == hello(server, sql, revision=0).body
    (revision,) = block(followed.body, 0)["revision()"]
    assert revision == int(read(server, "SELECT revision()", headers=WRITER)) > 0


def test_the_hello_without_a_revision_is_an_ordinary_query(server: BrokerProcess) -> None:
    revision = int(read(server, "SELECT revision()", headers=WRITER))
    plain = ask(server, HELLO, headers=WRITER, default_format="Native")
    assert block(plain.body, 0) == expected(server, revision)
    assert hello(server, revision="").body == plain.body
    assert hello(server, revision=0).body == plain.body


def test_the_hello_in_another_format_is_an_ordinary_query(server: BrokerProcess) -> None:
    answer = hello(server, default_format="TSV")
    assert answer.body == ask(server, HELLO, headers=WRITER).body


@pytest.mark.parametrize("revision", ["new", "-1", "1.5", "1e3", " 1", "9" * 30, "\u0663"])
def test_a_revision_that_is_not_a_number_is_refused(server: BrokerProcess, revision: str) -> None:
    answer = hello(server, revision=revision)
    assert (answer.status, answer.code) == (400, 72)
    assert "client_protocol_version" in answer.text


def test_settings_apply_to_the_hello(server: BrokerProcess) -> None:
    moved = block(hello(server, session_timezone="Asia/Tokyo").body, REVISION)
    assert moved["timezone()"] == ["Asia/Tokyo"]
    none = block(hello(server, offset=1).body, REVISION)
    assert none == {name: [] for name in NAMES}


def test_the_hello_is_refused_to_clients_that_may_not_read(server: BrokerProcess) -> None:
    for headers in ({}, basic("admin", "wrong")):
        answer = hello(server, headers=headers)
        assert answer.code == 516
        assert answer.status >= 400
        assert b"displayName" not in answer.body


def test_a_reader_without_credentials_does_not_learn_the_hosts_name(
    shared_server: BrokerProcess,
) -> None:
    server = shared_server
    answer = ask(
        server, HELLO, default_format="Native", client_protocol_version=REVISION, headers={}
    )
    found = block(answer.body, REVISION)
    assert found == {**expected(server), "displayName()": ["brokerhouse"]}


def test_the_hello_is_checked_like_any_query(server: BrokerProcess) -> None:
    assert hello(server, database="nosuch").code == 81
    assert hello(server, no_such_setting=1).code == 115
    assert hello(server, session_id="s", session_check=1).code == 372
