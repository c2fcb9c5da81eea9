"""The command line as a person uses it, with a real broker where one is needed.

Each family of commands runs as a real process in at least one test.
"""

import json
import os
import pty
import queue
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from kafka import KafkaProducer

from brokerhouse.broker.settings import config, config_sources
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import (
    COMMAND,
    LIMIT_S,
    complaint,
    environment,
    in_a_process,
    output,
    run,
)
from tests.support.server_process import PROJECT


def on_a_terminal(*arguments: str, columns: int = 100) -> str:
    """What a command prints when its standard output is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env=environment(TERM="xterm", COLUMNS=str(columns)),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:
        # Linux ends a terminal whose other side is closed with EIO.
        pass
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, printed
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).replace("\r\n", "\n")


@pytest.fixture
def produce(broker: BrokerProcess) -> Iterator[Callable[..., None]]:
    """Stores one record and waits for the answer."""
    with KafkaProducer(bootstrap_servers=broker.kafka) as producer:

        def store(topic: str, value: bytes | None, **rest: object) -> None:
            producer.send(topic, value=value, **rest).get(timeout=LIMIT_S)

        yield store


# config


def test_config_prints_every_setting_with_default_unit_and_meaning() -> None:
    lines = output("config", how=in_a_process).splitlines()[1:]
    rows = list(config_sources.rows(config_sources.load(environ={})))
    for line, row in zip(lines, rows, strict=True):
        expected = [row.name, row.value, row.default, row.unit, row.description, row.source]
        assert line.split() == " ".join(expected).split()


def test_config_shows_values_and_where_they_were_set(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("lanes = 3\n")
    printed = output("config", "--config", str(path), "--json", BROKERHOUSE_LINGER_MS="5")
    rows = {row["name"]: row for row in json.loads(printed)}
    assert (rows["lanes"]["value"], rows["lanes"]["source"]) == ("3", str(path))
    assert (rows["linger_ms"]["value"], rows["linger_ms"]["source"]) == ("5", "env")
    assert (rows["node_id"]["value"], rows["node_id"]["source"]) == ("1", "default")


def test_config_as_toml_is_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(output("config", "--format", "toml", BROKERHOUSE_LANES="7"))
    again = json.loads(output("config", "--config", str(path), "--json"))
    values = {row["name"]: row["value"] for row in again}
    loaded = config_sources.load(environ={"BROKERHOUSE_LANES": "7"})
    assert values == {row.name: row.value for row in config_sources.rows(loaded)}


@pytest.mark.parametrize("form", ["--format=table", "--format=toml", "--json"])
def test_config_never_prints_a_password(form: str) -> None:
    printed = output("config", form, BROKERHOUSE_SQL_USER="me", BROKERHOUSE_SQL_PASSWORD="hunter2")
    assert "hunter2" not in printed


# serve


def test_serve_has_a_flag_for_every_setting_but_secrets() -> None:
    flags = set(re.findall(r"--([a-z][a-z-]+)", output("serve", "--help")))
    names = {name.replace("_", "-") for name in config.Settings.model_fields}
    assert names - flags == {"schema-registry", "sql-password"}


def test_serve_refuses_a_wrong_setting_in_one_sentence() -> None:
    assert complaint(2, "serve", "--kafka", "9092") == (
        "kafka = '9092' (flag --kafka) cannot be used: "
        "write HOST:PORT, for example 127.0.0.1:9092 or [::1]:9092"
    )
    assert "did you mean BROKERHOUSE_LANES?" in complaint(2, "serve", BROKERHOUSE_LANE="1")


def test_serve_refuses_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = complaint(2, "serve", "--data-dir", str(tmp_path / "file" / "data"))
    assert "cannot be written (Not a directory)" in text


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """The error message below the progress lines."""
    assert "Traceback" not in result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.mark.one_broker("a broker of a cluster has no data directory")
def test_serve_refuses_a_data_directory_in_use_and_the_owner_does_not_notice(
    broker: BrokerProcess,
) -> None:
    result = in_a_process(
        *shlex.split(f"serve --data-dir {broker.data_dir} --kafka 127.0.0.1:0 --http 127.0.0.1:0")
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{broker.data_dir} is in use by process {broker.pid}" in last_line(result)
    assert broker.sql("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.parametrize("listener", [pytest.param("kafka", marks=pytest.mark.test_all), "http"])
def test_serve_refuses_a_port_in_use(listener: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = {"kafka": "127.0.0.1:0", "http": "127.0.0.1:0", listener: address}
        flags = [f"--{name}={value}" for name, value in listeners.items()]
        result = in_a_process("serve", "--data-dir", str(tmp_path / "data"), *flags)
    assert (result.returncode, result.stdout) == (1, "")
    assert address in last_line(result)


@pytest.fixture(scope="module")
def from_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a password for SQL, and a file of settings."""
    directory = tmp_path_factory.mktemp("from-file")
    path = directory / "broker.toml"
    path.write_text("num_partitions = 5\n")
    # The variable BROKERHOUSE_CONFIG is what `--config` is.
    settings = {"config": str(path), "sql_user": "me", "sql_password": "hunter2"}
    process = BrokerProcess(directory / "data", settings)
    process.start()
    yield process
    process.stop()


def test_serve_takes_its_settings_from_a_file(from_file: BrokerProcess) -> None:
    created = output("topics", "create", "a", "--bootstrap", from_file.kafka, how=in_a_process)
    assert created == "created a with 5 partitions\n"


# topics


def test_a_topic_is_created_listed_described_and_deleted(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    to = ("--bootstrap", broker.kafka)
    created = output(
        *shlex.split(f"topics create {topic} --partitions 3 --config retention.ms=86400000"), *to
    )
    assert created == f"created {topic} with 3 partitions\n"

    listed = [line.split() for line in output("topics", "list", *to).splitlines()]
    assert listed[0] == ["topic", "partitions", "id"]
    [(_, partitions, topic_id)] = [columns for columns in listed if columns[0] == topic]
    assert partitions == "3"

    for number in range(2):
        produce(topic, f"{number}".encode(), partition=1)
    described = output("topics", "describe", topic, *to)
    assert described.splitlines()[0].split() == [topic, topic_id]
    rows = {line.split()[0]: line.split()[1:] for line in described.splitlines() if line}
    assert [rows["0"][1:], rows["1"][1:]] == [["0", "0", "0"], ["0", "2", "2"]]
    assert rows["retention.ms"] == ["86400000"]

    assert output("topics", "delete", topic, *to) == f"deleted {topic}\n"
    assert topic not in output("topics", "list", *to)


def test_topics_create_without_partitions_takes_the_number_of_the_broker(
    broker: BrokerProcess, topic: str
) -> None:
    created = output("topics", "create", topic, BROKERHOUSE_BOOTSTRAP=broker.kafka)
    assert created == f"created {topic} with 1 partition\n"


@pytest.mark.parametrize("arguments", [["describe"], ["delete"]])
def test_describing_or_deleting_an_unknown_topic_names_it_and_does_not_create_it(
    broker: BrokerProcess, arguments: list[str], topic: str
) -> None:
    to = ("--bootstrap", broker.kafka)
    text = complaint(1, "topics", *arguments, topic, *to)
    assert text == f"topic {topic} does not exist"
    assert topic not in output("topics", "list", *to)


def test_topics_create_prints_why_the_broker_refuses(broker: BrokerProcess, topic: str) -> None:
    to = ("--bootstrap", broker.kafka)
    output("topics", "create", topic, *to)
    assert f"topic {topic}: " in complaint(1, "topics", "create", topic, *to)
    bad_config = complaint(1, "topics", "create", topic + "2", "--config", "retention.ms=x", *to)
    assert "retention.ms" in bad_config
    assert "topic a b: " in complaint(1, "topics", "create", "a b", *to)


# tail


def test_tail_with_exit_at_end_prints_the_records_and_ends(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"plain", timestamp_ms=1_750_000_000_123)
    produce(topic, "tab\tand \x1b[31m and \\ and ü".encode(), key=b"\xff", timestamp_ms=0)
    produce(topic, None, key=b"", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=0)
    printed = output(
        "tail", topic, "--offset", "earliest", "--exit-at-end", "--bootstrap", broker.kafka
    )
    assert printed.splitlines() == [
        "0:0\t2025-06-15T15:06:40.123Z\t\\N\tplain",
        "0:1\t1970-01-01T00:00:00.000Z\t\\xff\ttab\\tand \\x1b[31m and \\\\ and ü",
        "0:2\t1970-01-01T00:00:00.000Z\t\t\\N\th=1,h=2",
    ]


def test_tail_as_json_loses_nothing(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    produce(
        topic, b"\xff\x00", key="ü".encode(), headers=[("h", b"1"), ("h", b"\xfe")], timestamp_ms=5
    )
    produce(topic, b"", timestamp_ms=6)
    produce(topic, None, key=b"", timestamp_ms=7)
    printed = output(
        *shlex.split(
            f"tail {topic} --offset earliest --exit-at-end --json --bootstrap {broker.kafka}"
        )
    )
    first, second, third = map(json.loads, printed.splitlines())
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 5,
        "key": "ü",
        "value": {"base64": "/wA="},
        "headers": [["h", "1"], ["h", {"base64": "/g=="}]],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, "", [])
    assert (third["key"], third["value"]) == ("", None)


def test_tail_starts_at_the_given_offset(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    to = ("--exit-at-end", "--bootstrap", broker.kafka)
    for number in range(5):
        produce(topic, f"{number}".encode())
    printed = output("tail", topic, "--offset", "3", *to)
    assert [line.split("\t")[3] for line in printed.splitlines()] == ["3", "4"]
    assert output("tail", topic, *to) == ""
    assert output("tail", topic, "--offset", "5", *to) == ""
    assert complaint(1, "tail", topic, "--offset", "6", *to) == (
        f"offset 6 is out of range: partition 0 of {topic} starts at 0 and ends at 5"
    )
    assert complaint(1, "tail", topic, "--partition", "7", *to) == (
        f"topic {topic} has no partition 7"
    )


def test_tail_reads_all_partitions_or_one(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    to = ("--exit-at-end", "--bootstrap", broker.kafka)
    output("topics", "create", topic, "--partitions", "3", "--bootstrap", broker.kafka)
    for partition in range(3):
        produce(topic, b"x", partition=partition)
    every = output("tail", topic, "--offset", "earliest", *to)
    assert sorted(line.split("\t")[0] for line in every.splitlines()) == ["0:0", "1:0", "2:0"]
    one = output("tail", topic, "--offset", "0", "--partition", "1", *to)
    assert [line.split("\t")[0] for line in one.splitlines()] == ["1:0"]
    last = output("tail", topic, "--offset", "-1", "--partition", "0", "--partition", "2", *to)
    assert sorted(line.split("\t")[0] for line in last.splitlines()) == ["0:0", "2:0"]


def pass_on(source: IO[str], sink: "queue.SimpleQueue[str]") -> None:
    for line in source:
        sink.put(line)


def test_tail_prints_records_as_they_come_until_ctrl_c(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"before")
    process = subprocess.Popen(
        [*COMMAND, "tail", topic, "--offset", "0", "--bootstrap", broker.kafka],
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    reader = threading.Thread(target=pass_on, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        assert lines.get(timeout=LIMIT_S).endswith("\tbefore\n")
        for word in ("one", "two"):
            produce(topic, word.encode())
            assert lines.get(timeout=LIMIT_S).endswith(f"\t{word}\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        reader.join(LIMIT_S)
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_tail_ends_when_its_topic_is_deleted(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"last words")
    process = subprocess.Popen(
        [*COMMAND, "tail", topic, "--offset", "earliest", "--bootstrap", broker.kafka],
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("\tlast words\n")
        output("topics", "delete", topic, "--bootstrap", broker.kafka)
        rest, complaints = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, rest) == (1, "")
    assert complaints == f"Error: topic {topic} does not exist\n"


def test_tail_of_an_unknown_topic_fails_and_does_not_create_it(
    broker: BrokerProcess, topic: str
) -> None:
    to = ("--bootstrap", broker.kafka)
    assert complaint(1, "tail", topic, *to) == f"topic {topic} does not exist"
    assert topic not in output("topics", "list", *to)


# sql


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_without_a_terminal_prints_tab_separated_lines(broker: BrokerProcess) -> None:
    query = "SELECT number AS n, 'it''s' AS text, NULL AS nothing FROM numbers(2)"
    printed = output("sql", query, "--http", broker.http_url, how=in_a_process)
    assert printed == "n\ttext\tnothing\n0\tit\\'s\t\\N\n1\tit\\'s\t\\N\n"


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_draws_a_table_on_a_terminal(broker: BrokerProcess) -> None:
    query = "SELECT number AS n, 'it''s' AS text, NULL AS nothing FROM numbers(2)"
    printed = on_a_terminal("sql", query, "--http", broker.http_url)
    rows = [re.findall(r"[^\s│┃]+", line) for line in printed.splitlines()]
    assert ["n", "text", "nothing"] in rows
    assert ["0", "it's", "NULL"] in rows
    assert ["1", "it's", "NULL"] in rows


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_on_a_terminal_prints_only_the_first_1000_rows(broker: BrokerProcess) -> None:
    query = "SELECT number FROM numbers(1000000000)"
    printed = on_a_terminal("sql", query, "--http", broker.http_url)
    assert len(printed.splitlines()) < 1100
    assert "only the first 1000 rows" in printed


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
@pytest.mark.parametrize(
    ("form", "expected"),
    [("JSONEachRow", '{"one":1}\n'), ("CSV", "1\n"), ("RowBinary", "\x01")],
)
def test_sql_prints_any_format_of_clickhouse(
    broker: BrokerProcess, form: str, expected: str
) -> None:
    assert output("sql", "SELECT 1 AS one", "--format", form, "--http", broker.http_url) == expected


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_prints_the_format_that_the_query_names(broker: BrokerProcess) -> None:
    query = "SELECT 1 AS one FORMAT CSV"
    assert output("sql", query, "--http", broker.http_url) == "1\n"
    assert on_a_terminal("sql", query, "--http", broker.http_url) == "1\n"


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_reads_the_query_from_standard_input(broker: BrokerProcess) -> None:
    printed = output("sql", "-", "--format", "CSV", "--http", broker.http_url, stdin="SELECT 1")
    assert printed == "1\n"


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_finds_the_log_without_a_database_name(
    broker: BrokerProcess, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"hello")
    query = f"SELECT value FROM messages WHERE topic = '{topic}'"
    assert output("sql", query, BROKERHOUSE_HTTP=broker.http) == "value\nhello\n"


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
def test_sql_prints_an_error_as_one_sentence(broker: BrokerProcess) -> None:
    text = complaint(1, "sql", "SELECT * FROM nowhere", "--http", broker.http_url)
    assert "UNKNOWN_TABLE" in text
    assert "nowhere" in text


@pytest.mark.one_broker("a cluster has its SQL interface in its shards")
@pytest.mark.parametrize("form", ["CSV", "RowBinary"])
def test_sql_prints_an_error_halfway_through_an_answer_as_one_sentence(
    broker: BrokerProcess, form: str
) -> None:
    query = "SELECT throwIf(number = 3000000, 'three million') FROM numbers(4000000)"
    result = run("sql", query, "--format", form, "--http", broker.http_url)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert "three million" in line
    assert set(result.stdout) <= set("0\n\0")


def test_sql_writes_with_a_password_and_only_reads_without(from_file: BrokerProcess) -> None:
    own = from_file
    create = "CREATE DATABASE mine"
    refused = complaint(1, "sql", create, "--http", own.http_url)
    assert "Not enough privileges" in refused
    wrong = complaint(1, "sql", create, "--http", own.http_url, "--user", "me", "--password", "x")
    assert "password" in wrong.lower()
    for query in (
        create,
        "CREATE TABLE mine.numbers (x UInt8) ENGINE = MergeTree ORDER BY x",
        "INSERT INTO mine.numbers VALUES (7)",
    ):
        written = output(
            "sql",
            query,
            "--http",
            own.http_url,
            BROKERHOUSE_SQL_USER="me",
            BROKERHOUSE_SQL_PASSWORD="hunter2",
        )
        assert written == ""
    assert output("sql", "SELECT x FROM mine.numbers", "--http", own.http_url) == "x\n7\n"


def test_sql_names_a_server_that_refuses_connections(closed_port: int) -> None:
    text = complaint(1, "sql", "SELECT 1", "--http", f"127.0.0.1:{closed_port}")
    assert text.startswith(f"no SQL server at http://127.0.0.1:{closed_port}")
    assert "Connect call failed" not in text


def test_the_command_prints_its_version() -> None:
    assert output("--version").startswith("brokerhouse, version ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["tail"],
        ["tail", "t", "--offset", "x"],
        ["topics", "create", "t", "--config", "x"],
    ],
)
def test_a_wrong_command_line_ends_with_exit_code_2(arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2


def test_a_wrong_command_line_shows_no_traceback() -> None:
    result = in_a_process("nosuch")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
