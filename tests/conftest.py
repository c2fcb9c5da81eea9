"""Fixtures for every kind of test: broker processes, and their logs beside a failure."""

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import broker_process
from tests.broker_process import BrokerProcess

LOG_SIZES = pytest.StashKey[dict[BrokerProcess, int]]()


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
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that only use it as a client would, each with topics of its own."""
    settings = {"group_initial_rebalance_delay_ms": "0"}
    process = BrokerProcess(tmp_path_factory.mktemp("shared") / "data", settings)
    process.start()
    yield process
    process.stop()


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


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell: what is started from here would not hear Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "slow: takes minutes and prints figures; run with `pytest -m slow`"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in str(config.getoption("markexpr")):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[LOG_SIZES] = {broker: broker.log_size() for broker in broker_process.started}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what every broker printed since a failed test began."""
    report = yield
    if report.failed:
        before = item.stash.get(LOG_SIZES, {})
        for broker in broker_process.started:
            printed = broker.log(before.get(broker, 0))
            if printed:
                report.sections.append((f"broker log {broker.log_path}", printed))
    return report
