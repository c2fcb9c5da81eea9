"""The clients, each made when the first test asks for it."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.adapters import (
    Aiokafka,
    Client,
    ConfluentKafka,
    GetClient,
    Java,
    Kafkajs,
    KafkaPython,
    Kcat,
)
from tests.support.broker_process import BrokerProcess
from tests.support.console_tools import Tools
from tests.support.helper_process import HelperProcess
from tests.support.sql_client import PASSWORD, USER, broker_with_writer, write


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetClient]:
    """`client("kcat")`: the client of that name. The JVM and node start once for all tests."""
    logs = tmp_path_factory.mktemp("helpers")
    clients: dict[str, Client] = {}
    missing: dict[str, BaseException] = {}
    with ExitStack() as helpers:

        def helper(command: list[str], log: Path) -> HelperProcess:
            process = HelperProcess(command, log)
            helpers.callback(process.close)
            return process

        makers: dict[str, Callable[[], Client]] = {
            "kafka-python": KafkaPython,
            "aiokafka": Aiokafka,
            "confluent-kafka": ConfluentKafka,
            "kcat": Kcat,
            "kafkajs": lambda: Kafkajs(helper(tools.node_command(), logs / "node.log")),
            "java": lambda: Java(helper([*tools.java_command(), "Helper"], logs / "java.log")),
        }

        def get(name: str) -> Client:
            if name in missing:
                raise missing[name]
            if name not in clients:
                try:
                    clients[name] = makers[name]()
                except pytest.fail.Exception as failure:
                    missing[name] = failure
                    raise
            return clients[name]

        yield get


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelperProcess]:
    """A JVM in which Kafka's tools run, one after the other."""
    log = tmp_path_factory.mktemp("tools") / "java.log"
    process = HelperProcess([*tools.java_command(), "Tools"], log)
    yield process
    process.close()


@pytest.fixture(scope="module")
def run(broker: BrokerProcess, jvm: HelperProcess) -> Tools:
    """Kafka's tools against the shared broker."""
    return Tools(broker, jvm)


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port that refuses connections: taken by this process, which does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


SQL_MEMORY_BYTES = str(1 << 30)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that only ask it by SQL, each with tables of its own."""
    process = broker_with_writer(
        tmp_path_factory.mktemp("sql") / "data", sql_max_memory_bytes=SQL_MEMORY_BYTES
    )
    yield process
    process.stop()


@pytest.fixture(scope="module")
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A `server` for tests that measure its memory, which grew for no other file's tests."""
    process = broker_with_writer(
        tmp_path_factory.mktemp("sql") / "data", sql_max_memory_bytes=SQL_MEMORY_BYTES
    )
    yield process
    process.stop()


@pytest.fixture
def own_server(own_broker: Callable[..., BrokerProcess]) -> Callable[..., BrokerProcess]:
    """A broker for one test alone, with these settings."""
    return partial(own_broker, sql_user=USER, sql_password=PASSWORD)


@pytest.fixture
def table(server: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "of_" + re.sub(r"\W", "_", f"{request.path.stem}_{request.node.name}")[-120:]
    write(server, f"CREATE TABLE default.{name} (a Int64, b String) ENGINE = MergeTree ORDER BY a")
    return f"default.{name}"
