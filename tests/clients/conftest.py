"""The clients, each made when the first test asks for it."""

import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
from tests.support.pairwise import Combination, pairwise
from tests.support.sql_client import PASSWORD, USER, broker_with_writer, write


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "pairwise: each pair of two parameters runs once; the rest is for `make test-all`",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark with test_all what adds no pair to a test that is marked as pairwise."""
    of_a_test: dict[str, dict[Combination, pytest.Item]] = defaultdict(dict)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise"):
            values = tuple(map(repr, item.callspec.params.values()))
            of_a_test[item.nodeid.partition("[")[0]][values] = item
    for combinations in of_a_test.values():
        for combination in combinations.keys() - pairwise(combinations):
            combinations[combination].add_marker(pytest.mark.test_all)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelperProcess]:
    """Kafka's own client in a JVM."""
    yield from _helper([*tools.java_command(), "Helper"], tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelperProcess]:
    """kafkajs in a process of Node.js."""
    yield from _helper(tools.node_command(), tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelperProcess]:
    """A JVM in which Kafka's tools run, one after the other."""
    yield from _helper([*tools.java_command(), "Tools"], tmp_path_factory.mktemp("tools"))


def _helper(command: list[str], folder: Path) -> Iterator[HelperProcess]:
    process = HelperProcess(command, folder / "helper.log")
    yield process
    process.close()


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> GetClient:
    """`client("kcat")`: the client of that name. The JVM and node start once for all tests."""
    makers: dict[str, Callable[[], Client]] = {
        "kafka-python": KafkaPython,
        "aiokafka": Aiokafka,
        "confluent-kafka": ConfluentKafka,
        "kcat": Kcat,
        "kafkajs": lambda: Kafkajs(request.getfixturevalue("node")),
        "java": lambda: Java(request.getfixturevalue("java")),
    }
    clients: dict[str, Client] = {}

    def get(name: str) -> Client:
        if name not in clients:
            clients[name] = makers[name]()
        return clients[name]

    return get


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


SQL_MEMORY_BYTES = 1 << 30


RunServer = Callable[..., AbstractContextManager[BrokerProcess]]


@pytest.fixture(scope="session")
def run_server(tmp_path_factory: pytest.TempPathFactory) -> RunServer:
    """`with run_server(sql_max_queries="2") as server`: a broker for several tests."""

    @contextmanager
    def run(**settings: str) -> Iterator[BrokerProcess]:
        process = broker_with_writer(tmp_path_factory.mktemp("sql") / "data", **settings)
        yield process
        process.stop()

    return run


@pytest.fixture(scope="session")
def shared_server(run_server: RunServer) -> Iterator[BrokerProcess]:
    """One broker for all tests that only ask it by SQL, each with tables of its own."""
    settings = {"sql_memory_bytes": str(5 * SQL_MEMORY_BYTES), "sql_max_queries": "5"}
    with run_server(sql_max_memory_bytes=str(SQL_MEMORY_BYTES), **settings) as process:
        yield process


@pytest.fixture(scope="session")
def server(shared_server: BrokerProcess) -> BrokerProcess:
    """`shared_server`; a file may have another one by this name."""
    return shared_server


@pytest.fixture(scope="session")
def fresh_server(run_server: RunServer) -> Iterator[BrokerProcess]:
    """One broker for the tests that measure its memory, which grows for no others."""
    with run_server(sql_max_memory_bytes=str(SQL_MEMORY_BYTES)) as process:
        yield process


@pytest.fixture(scope="session")
def one_turn(run_server: RunServer) -> Iterator[BrokerProcess]:
    """One broker where a reader's queries run one by one, twelve of an address wait, and each has
    little memory.
    """
    turns = {"sql_max_queries": "2", "sql_max_waiting": "16", "sql_wait_ms": "600000"}
    with run_server(sql_max_memory_bytes=str(32 << 20), **turns) as process:
        yield process


@pytest.fixture(scope="session")
def closed_server(run_server: RunServer) -> Iterator[BrokerProcess]:
    """One broker that answers nobody without credentials."""
    with run_server(sql_anonymous="never") as process:
        yield process


@pytest.fixture
def own_server(own_broker: Callable[..., BrokerProcess]) -> Callable[..., BrokerProcess]:
    """A broker for one test alone, with these settings."""
    return partial(own_broker, sql_user=USER, sql_password=PASSWORD)


@pytest.fixture
def table(server: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "of_" + re.sub(r"\W", "_", f"{request.path.stem}_{request.node.name}")[-120:]
    write(server, f"CREATE TABLE default.{name} (a Int64, b String) ENGINE = MergeTree ORDER BY a")
    return f"default.{name}"
