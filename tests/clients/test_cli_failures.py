"""Whatever goes wrong, a command says it in one sentence, in time, and ends with an exit code.

One table of commands and one of faults, and every command meets every fault of its kind.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, complaint, environment, output, run
from tests.support.server_process import PROJECT

pytestmark = pytest.mark.one_broker("faults of addresses; the HTTP interface has SQL")

LIMIT_S = 10.0
KAFKA = {
    "topics list": [],
    "topics create": ["some"],
    "topics describe": ["some"],
    "topics delete": ["some"],
    "groups list": [],
    "groups describe": ["some"],
    "groups delete": ["some"],
    "groups reset-offsets": ["some", "--topic", "some", "--to-latest"],
    "produce": ["some"],
    "consume": ["some"],
    "tail": ["some"],
}
HTTP = {
    "sql": ["SELECT 1"],
    "views list": [],
    "views repair": ["some.view"],
    "views drop": ["some.view"],
    "tables create": ["some.table", "--topic", "some"],
    "tables list": [],
    "tables describe": ["some.table"],
    "tables pause": ["some.table"],
    "tables resume": ["some.table"],
    "tables replay": ["some.table"],
    "tables drop": ["some.table"],
}

Fault = Callable[[BrokerProcess, int], str]
"""The address with this fault, of a broker and a closed port."""


class Listening:
    """Listens, and answers each connection with these bytes; with none it never answers."""

    def __init__(self, greeting: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._greeting = greeting
        self._kept: list[socket.socket] = []
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.sendall(self._greeting)
            self._kept.append(connection)
            self._open.append(connection)

    def connected(self) -> bool:
        """Whether somebody has connected since this was asked last."""
        found, self._open = bool(self._open), []
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def silent() -> Iterator[Listening]:
    """As a broker that is stopped, or that hangs in its start."""
    listening = Listening(b"")
    yield listening
    listening.close()


@pytest.fixture(scope="module")
def other_protocol() -> Iterator[Listening]:
    listening = Listening(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")
    yield listening
    listening.close()


SILENT = "a port that never answers"
KAFKA_FAULTS = {
    "a host that does not exist": "name another with --bootstrap",
    "a closed port": "(Connection refused): start one with `brokerhouse serve`, or name another",
    SILENT: "(no answer within 1 s): look at the broker's log, wait longer",
    "the HTTP port": "speaks HTTP, not Kafka): name the address of the broker's setting `kafka`",
    "a port of another protocol": "(does not speak Kafka's protocol): name the address",
    "port 0": "nothing listens on port 0",
}
HTTP_FAULTS = {
    "a host that does not exist": "or name another with --http",
    "a closed port": "(Connection refused): start one with `brokerhouse serve`, or name another",
    SILENT: "has not answered within 1 s: look at the server's log, wait",
    "the Kafka port": "does not speak HTTP",
    "a port of another protocol": "does not speak HTTP",
    "port 0": "nothing listens on port 0",
}


@pytest.fixture(scope="module")
def addresses(
    broker: BrokerProcess, closed_port: int, silent: Listening, other_protocol: Listening
) -> dict[str, str]:
    return {
        "a host that does not exist": "nowhere.invalid:9092",
        "a closed port": f"127.0.0.1:{closed_port}",
        SILENT: silent.address,
        "the HTTP port": broker.http,
        "the Kafka port": broker.kafka,
        "a port of another protocol": other_protocol.address,
        "port 0": "127.0.0.1:0",
    }


def told(code: int, *arguments: str) -> str:
    """The last line of a failure, which is in time, one sentence, and no traceback."""
    began = time.monotonic()
    ended = run(*arguments)
    assert time.monotonic() - began < LIMIT_S
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    lines = ended.stderr.splitlines()
    # With exit code 2, click's two lines about the usage come first.
    assert len(lines) == (1 if code == 1 else 4), ended.stderr
    assert lines[-1].startswith("Error: ")
    return lines[-1]


WAITING = ("topics list", "groups describe", "produce", "consume", "sql", "tables create")
"""Commands that also wait a second for such a port in `make test`: one for each kind of client."""


def each_with_each(commands: Iterable[str], faults: Iterable[str]) -> list[ParameterSet]:
    return [
        pytest.param(
            command,
            fault,
            id=f"{command}-{fault}",
            marks=pytest.mark.test_all if fault == SILENT and command not in WAITING else (),
        )
        for command in commands
        for fault in faults
    ]


@pytest.mark.parametrize(("command", "fault"), each_with_each(KAFKA, KAFKA_FAULTS))
def test_a_kafka_command_names_what_is_wrong_with_an_address(
    addresses: dict[str, str], command: str, fault: str
) -> None:
    wrong = ("--bootstrap", addresses[fault], "--timeout", "1")
    code = 2 if fault == "port 0" else 1
    assert KAFKA_FAULTS[fault] in told(code, *command.split(), *KAFKA[command], *wrong)


@pytest.mark.parametrize(("command", "fault"), each_with_each(HTTP, HTTP_FAULTS))
def test_an_sql_command_names_what_is_wrong_with_an_address(
    addresses: dict[str, str], command: str, fault: str
) -> None:
    wrong = ("--http", addresses[fault], "--timeout", "1")
    code = 2 if fault == "port 0" else 1
    assert HTTP_FAULTS[fault] in told(code, *command.split(), *HTTP[command], *wrong)


def test_a_command_ends_within_its_timeout_when_no_broker_answers() -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(Listening(b""))).address for _ in range(3)]
        line = told(1, "topics", "list", "--bootstrap", ",".join(silent), "--timeout", "1")
    assert line.startswith("Error: no broker at ")
    for address in silent:
        assert f"{address} (no answer within 1 s)" in line


def test_a_command_uses_the_next_broker_when_the_first_does_not_answer(
    broker: BrokerProcess, silent: Listening, topic: str
) -> None:
    to = ("--bootstrap", f"{silent.address},{broker.kafka}")
    output("topics", "create", topic, *to)
    output("produce", topic, *to, stdin="one\n")
    assert output("consume", topic, "--exit-at-end", *to) == "one\n"
    silent.connected()  # forgets these


@pytest.mark.parametrize(
    ("code", "arguments", "sentence"),
    [
        (1, ["topics", "describe", "nosuch"], "topic nosuch does not exist"),
        (1, ["topics", "delete", "nosuch"], "topic nosuch does not exist"),
        (1, ["produce", "nosuch"], "topic nosuch does not exist"),
        (1, ["consume", "nosuch"], "topic nosuch does not exist"),
        (1, ["tail", "nosuch"], "topic nosuch does not exist"),
        (1, ["groups", "describe", "nosuch"], "group nosuch does not exist"),
        (1, ["groups", "delete", "nosuch"], "group nosuch does not exist"),
        (
            1,
            ["groups", "reset-offsets", "g", "--topic", "nosuch", "--to-latest"],
            "topic nosuch does not exist",
        ),
        (2, ["groups", "reset-offsets", "g", "--from-file", "no/such.csv"], "No such file"),
        (2, ["produce", "nosuch", "no/such.jsonl"], "does not exist"),
    ],
)
def test_a_command_names_the_topic_group_or_file_that_is_missing(
    broker: BrokerProcess, code: int, arguments: list[str], sentence: str
) -> None:
    assert sentence in told(code, *arguments, "--bootstrap", broker.kafka)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--config", "no/such.toml"],
        ["config", "--config", "no/such.toml"],
        ["migrate", "--config", "no/such.toml"],
        ["check", "--config", "no/such.toml"],
        ["slots", "show", "--config", "no/such.toml"],
        ["feed", "--config", "no/such.toml"],
        ["backup", "no/backup", "--config", "no/such.toml"],
        ["restore", "no/backup", "--config", "no/such.toml"],
    ],
    ids=" ".join,
)
def test_a_settings_file_that_is_missing_is_named(arguments: list[str]) -> None:
    assert complaint(2, *arguments) == "no/such.toml cannot be read: No such file or directory"


def test_produce_names_the_record_that_is_not_json(broker: BrokerProcess, topic: str) -> None:
    output("topics", "create", topic, "--bootstrap", broker.kafka)
    ended = run(
        *shlex.split(f"produce {topic} --input-format json --bootstrap {broker.kafka}"),
        stdin='{"value": "1"}\n{"value": \n',
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("Error: standard input, record 2 is not JSON: ")
    assert line.endswith("; 1 records are stored")


@contextmanager
def started(*arguments: str, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> str:
    name = "of-failures"
    output("topics", "create", name, "--bootstrap", broker.kafka)
    lines = ("x" * 1000 + "\n") * 2000
    output("produce", name, "--bootstrap", broker.kafka, stdin=lines)
    return name


def some_always(commands: Iterable[str], *always: str) -> list[ParameterSet]:
    """Commands that run as processes; those that begin with one of `always` in `make test`, too."""
    return [
        pytest.param(command, marks=() if command.split()[0] in always else pytest.mark.test_all)
        for command in commands
    ]


WRITING = {
    "config": [],
    "topics list": ["--bootstrap", "{kafka}"],
    "consume of-failures --exit-at-end": ["--bootstrap", "{kafka}"],
    "tail of-failures --exit-at-end --offset earliest": ["--bootstrap", "{kafka}"],
    "sql": ["SELECT * FROM messages", "--http", "{http}"],
}


@pytest.mark.parametrize("command", some_always(WRITING, "config", "consume", "sql"))
@pytest.mark.usefixtures("filled")
def test_output_to_a_full_disk_fails_with_a_sentence(broker: BrokerProcess, command: str) -> None:
    more = [word.format(kafka=broker.kafka, http=broker.http) for word in WRITING[command]]
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with started(*command.split(), *more, stdout=full) as process:
            assert said(process) == "Error: cannot write the output: No space left on device\n"
            assert process.wait(LIMIT_S) == 1
    finally:
        os.close(full)


@pytest.mark.parametrize(
    "command",
    some_always([name for name in WRITING if "failures" in name or name == "sql"], "tail", "sql"),
)
@pytest.mark.usefixtures("filled")
def test_a_closed_pipe_ends_a_command_without_a_message(
    broker: BrokerProcess, command: str
) -> None:
    more = [word.format(kafka=broker.kafka, http=broker.http) for word in WRITING[command]]
    with started(*command.split(), *more, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert said(process) == ""
        assert process.wait(LIMIT_S) == 1


@pytest.mark.parametrize(
    "command",
    some_always(["topics list", "produce some", "sql 1", "tables list"], "topics", "sql"),
)
def test_ctrl_c_ends_a_command_that_waits_for_a_server(silent: Listening, command: str) -> None:
    silent.connected()
    words = command.split()
    to = "--http" if words[0] in ("sql", "tables") else "--bootstrap"
    with started(*words, to, silent.address, stdout=subprocess.DEVNULL) as process:
        while not silent.connected():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert said(process) == "interrupted\n"
        assert process.wait(LIMIT_S) == 130


def test_a_wildcard_address_is_taken_for_this_machine(broker: BrokerProcess) -> None:
    """As where the variables of a broker in a container are those of the commands."""
    kafka, http = (address.rpartition(":")[2] for address in (broker.kafka, broker.http))
    listed = output("topics", "list", BROKERHOUSE_BOOTSTRAP=f"0.0.0.0:{kafka}")
    assert listed == output("topics", "list", "--bootstrap", broker.kafka)
    assert output("sql", "SELECT 1", BROKERHOUSE_HTTP=f"0.0.0.0:{http}") == "1\n1\n"
    for wildcard in ("0.0.0.0", "0"):
        (line,) = run(
            "topics", "list", "--bootstrap", f"{wildcard}:1", "--timeout", "1"
        ).stderr.splitlines()
        assert line.startswith("Error: no broker at 127.0.0.1:1 ")
    (line,) = run("topics", "list", "--bootstrap", "[::]:1", "--timeout", "1").stderr.splitlines()
    assert line.startswith("Error: no broker at [::1]:1 ")


def test_commands_ignore_the_variable_for_the_brokers_listeners(
    broker: BrokerProcess, closed_port: int
) -> None:
    listens = f"CONTAINERS://0.0.0.0:29092,MACHINE://127.0.0.1:{closed_port}"
    listed = output("topics", "list", BROKERHOUSE_KAFKA=listens, BROKERHOUSE_BOOTSTRAP=broker.kafka)
    assert listed == output("topics", "list", "--bootstrap", broker.kafka)


def test_settings_ignore_the_variable_for_the_commands_bootstrap(tmp_path: Path) -> None:
    assert "bootstrap" not in output("config", BROKERHOUSE_BOOTSTRAP=str(tmp_path))
