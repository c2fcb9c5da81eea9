"""A real Prometheus that scrapes brokers, and what a test asks it. `promtool` checks its files."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.support.server_process import ServerProcess, free_port
from tests.support.tools import program

LIMIT_S = 30.0

Series = dict[tuple[tuple[str, str], ...], float]
"""Numbers by their labels, in the order of the labels' names."""


class Page(NamedTuple):
    status: int
    text: str
    content_type: str


def get(base_url: str, path: str, headers: Mapping[str, str] | None = None) -> Page:
    """A page of an HTTP listener, whatever its status."""
    request = urllib.request.Request(f"{base_url}{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return Page(answer.status, answer.read().decode(), answer.headers["Content-Type"])
    except urllib.error.HTTPError as error:
        return Page(error.code, error.read().decode(), error.headers["Content-Type"])


def scraped(base_url: str) -> dict[str, Series]:
    """All series of `/metrics`, by the name of the sample."""
    page = get(base_url, "/metrics")
    assert page.status == 200, page.text
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series, f"{sample.name} {labels} comes twice"
            series[labels] = sample.value
    return found


def value(base_url: str, name: str, **labels: str) -> float:
    """The sum of the series with these labels."""
    wanted = set(labels.items())
    series = scraped(base_url)[name]
    matching = [number for found, number in series.items() if wanted <= set(found)]
    assert matching, f"{name} has no series with {labels}: {series}"
    return sum(matching)


class Prometheus(ServerProcess):
    """Scrapes every second."""

    def __init__(
        self, directory: Path, targets: Sequence[str], rule_files: Sequence[Path] = ()
    ) -> None:
        """`targets`: HOST:PORT of HTTP listeners."""
        super().__init__(directory / "prometheus.log")
        self._directory = directory
        self.url = f"http://127.0.0.1:{free_port()}"
        # JSON is YAML, too.
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rule_files],
            "scrape_configs": [
                {"job_name": "brokerhouse", "static_configs": [{"targets": list(targets)}]}
            ],
        }
        self._config = directory / "prometheus.yml"
        self._config.write_text(json.dumps(config))

    def command(self) -> Sequence[str]:
        return [
            program("prometheus"),
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._directory / 'tsdb'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]

    def is_ready(self) -> bool:
        try:
            return get(self.url, "/-/ready").status == 200
        except urllib.error.URLError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """What its HTTP API answers: https://prometheus.io/docs/prometheus/latest/querying/api/."""
        page = get(self.url, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert page.status == 200, page.text
        return json.loads(page.text)["data"]

    def query(self, expression: str) -> Series:
        """The value of each series of an expression now."""
        found = self.ask("query", query=expression)["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}

    def targets(self) -> list[tuple[str, str]]:
        """The health of each target, and why its last scrape failed."""
        active = self.ask("targets")["activeTargets"]
        return [(one["health"], one["lastError"]) for one in active]


@contextmanager
def prometheus(
    directory: Path, targets: Sequence[str], rule_files: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    with Prometheus(directory, targets, rule_files) as started:
        yield started


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs promtool; `given` goes to its standard input."""
    return subprocess.run(
        [program("promtool"), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
