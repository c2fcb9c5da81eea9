"""A cluster for the test that asks for it, and the logs of its parts beside a failure."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import cluster_processes
from tests.support.cluster_network import network
from tests.support.cluster_processes import Cluster

LOG_SIZES = pytest.StashKey[dict[cluster_processes.Part, int]]()

SHOWN_BYTES = 8000

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """`make_cluster(tree=..., settings=...)`: not started yet; it ends with the test."""
    with ExitStack() as parts:

        def make(**options: object) -> Cluster:
            cluster = Cluster(tmp_path, parts.enter_context(network()), **options)  # type: ignore[arg-type]
            parts.callback(cluster.close)
            return cluster

        yield make


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[LOG_SIZES] = {part: _size(part) for part in cluster_processes.started}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what every part printed since a failed test began."""
    report = yield
    if report.failed:
        before = item.stash.get(LOG_SIZES, {})
        for part in cluster_processes.started:
            printed = _size(part) - before.get(part, 0)
            if printed:
                shown = part.log(limit=min(printed, SHOWN_BYTES))
                report.sections.append((f"log of {part}, {part.log_path}", shown))
    return report


def _size(part: cluster_processes.Part) -> int:
    return part.log_path.stat().st_size if part.log_path.exists() else 0
