"""Fixtures for every kind of test: broker processes, and their logs beside a failure."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support import broker_process, cluster_processes, examples, tokens
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_broker import ClusterBroker
from tests.support.cluster_network import network
from tests.support.cluster_processes import Cluster

LOG_SIZES = pytest.StashKey[dict[Path, int]]()
LOG_SHOWN_BYTES = 8000
RUNS = {
    "test_all": "proves more of what a cheaper test proves; only `make test-all` runs it",
    "slow": "takes minutes and prints figures; only `make test-all` and `pytest -m slow` run it",
    "fuzz": "a long run with random input; only `make test-all` and `make fuzz` run it",
}
"""A test with one of these markers is not in `make test`, and `make test-all` has all of them."""
ASKED_FOR = {"slow", "fuzz"}
"""These run only if -m names them, whatever else is asked for."""


class OwnBrokers:
    """Makes brokers that belong to one test: each with its own data directory and settings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brokers: list[BrokerProcess] = []

    def __call__(self, **settings: str) -> BrokerProcess:
        data_dir = self._directory / f"data{len(self._brokers)}"
        broker = BrokerProcess(data_dir, settings)
        self._brokers.append(broker)
        broker.start()
        return broker

    def stop_all(self) -> None:
        running = [broker for broker in self._brokers if broker.running]
        try:
            for broker in running:
                broker.stop()
        finally:
            for broker in running:
                if broker.running:
                    broker.kill()


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One cluster for all tests that leave it as it was: what they end they start again."""
    # A session ends when a broker is killed, and should not on a busy machine. With --cluster
    # nothing is killed.
    session_s = 20 if request.config.getoption("--cluster") else 10
    with network() as hosts:
        made = Cluster(
            tmp_path_factory.mktemp("cluster"),
            hosts,
            session_timeout_ms=session_s * 1000,
            request_timeout_ms=session_s * 500,
        )
        try:
            made.start()
            made.await_each_other()
            yield made
        finally:
            made.close()


RunBroker = Callable[..., AbstractContextManager[BrokerProcess]]


@pytest.fixture(scope="session")
def run_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RunBroker:
    """`with run_broker("name", linger_ms="5") as broker`: one for several tests.

    With --cluster it is the cluster, whose settings serve every test that can be run on it.
    """

    @contextmanager
    def run(name: str, **settings: str) -> Iterator[BrokerProcess]:
        if request.config.getoption("--cluster"):
            yield ClusterBroker(request.getfixturevalue("cluster"))
            return
        settings.setdefault("group_initial_rebalance_delay_ms", "0")
        process = BrokerProcess(tmp_path_factory.mktemp(name) / "data", settings)
        process.start()
        yield process
        process.stop()

    return run


@pytest.fixture(scope="session")
def broker(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """One broker for all tests that only use it as a client would, each with topics of its own."""
    # With this level every line is written, also those that clients cause again and again.
    with run_broker("shared", log_level="debug") as process:
        yield process


@pytest.fixture(autouse=True)
def any_broker(request: pytest.FixtureRequest) -> None:
    """With --cluster each test begins at another broker."""
    if request.config.getoption("--cluster"):
        for name in ("broker", "written"):
            if name in request.fixturenames:
                found = request.getfixturevalue(name)
                getattr(found, "broker", found).use(request.node.name)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBrokers]:
    """Call it for a broker that the test may stop, kill, configure: `own_broker(fsync="true")`."""
    brokers = OwnBrokers(tmp_path)
    yield brokers
    brokers.stop_all()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in request.node.name)[:200]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        action="store_true",
        help="run the client tests through any of the three brokers of a cluster",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_quick = "not test_all" in str(config.getoption("markexpr"))
    examples.choose_how_many(everything=not is_quick)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell: what is started from here would not hear Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, meaning in RUNS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line(
        "markers", "one_broker(reason): says nothing of a cluster, so --cluster leaves it out"
    )
    config.addinivalue_line(
        "markers", "each_change: the part of the client tests to run with --cluster at each change"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = str(config.getoption("markexpr"))
    unasked = {name for name in ASKED_FOR if name not in wanted}
    left_out = [item for item in items if run_of(item) & unasked]
    if config.getoption("--cluster"):
        left_out += [item for item in items if not is_for_any_broker(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # Without a client, too, a cluster takes a third of a core.
    items.sort(key=lambda item: "cluster" in getattr(item, "fixturenames", ()))


def run_of(item: pytest.Item) -> set[str]:
    """The marker that takes a test out of `make test`; empty for a test that always runs."""
    return {name for name in RUNS if item.get_closest_marker(name)}


def is_for_any_broker(item: pytest.Item) -> bool:
    """Whether a test uses a broker, and nothing of it that a cluster does not have."""
    clients = Path(__file__).with_name("clients")
    return (
        item.path.is_relative_to(clients)
        and "run_broker" in getattr(item, "fixturenames", ())
        and item.get_closest_marker("one_broker") is None
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not tokens.FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        tokens.take()
    try:
        return (yield)
    finally:
        tokens.give_back()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[LOG_SIZES] = {path: path.stat().st_size for path in logs()}


def logs() -> list[Path]:
    paths = [broker.log_path for broker in broker_process.started]
    paths += [part.log_path for part in cluster_processes.started]
    return [path for path in paths if path.exists()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what every broker, or part of a cluster, printed since a failed test began."""
    report = yield
    if report.failed:
        before = item.stash.get(LOG_SIZES, {})
        for path in logs():
            printed = path.read_bytes()[before.get(path, 0) :][-LOG_SHOWN_BYTES:]
            if printed:
                shown = printed.decode(errors="replace")
                report.sections.append((f"broker log {path}", shown))
    return report
