"""A real `brokerhouse serve` process for tests. Its ports are free ones."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.server_process import PROJECT, ServerProcess, free_port
from tests.support.sql_rows import bound, sql_rows

READY = "ready "
NEVER_MS = str(10 * 86_400_000)
"""For the setting of an interval: longer than any test runs."""

started: list["BrokerProcess"] = []
"""Every broker of this test session: their logs are shown when a test fails."""


class BrokerProcess(ServerProcess):
    """One data directory and the process that serves it.

    `settings`: the broker's settings by name, passed in its environment. Unless they say otherwise
    nothing is deleted by age: the records of many tests have timestamps of 2023. `tree`: where its
    code is.
    """

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] | None = None, *, tree: Path = PROJECT
    ) -> None:
        super().__init__(data_dir.with_name(data_dir.name + ".log"))
        self.data_dir = data_dir
        self._tree = tree
        self.settings = {
            "retention_check_interval_ms": NEVER_MS,
            "disk_reserve_bytes": "1",  # hundreds of brokers would take the machine's disk
            **(settings or {}),
        }
        self.kafka = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self.start_s = 0.0
        """How long the last start took, from exec to the ready line."""
        self._launched = 0.0
        started.append(self)

    @property
    def http_url(self) -> str:
        return f"http://{self.http}"

    def command(self) -> Sequence[str]:
        # Python takes the packages of the directory that it runs in.
        command = ["env", "-C", str(self._tree), sys.executable, "-m", "brokerhouse", "serve"]
        command += ["--data-dir", str(self.data_dir)]
        return [*command, "--kafka", self.kafka, "--http", self.http]

    def environment(self) -> Mapping[str, str]:
        return {f"BROKERHOUSE_{name.upper()}": value for name, value in self.settings.items()}

    def launch(self) -> None:
        self._launched = time.monotonic()
        super().launch()

    def is_ready(self) -> bool:
        for line in self.printed().splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                self.start_s = time.monotonic() - self._launched
                addresses = dict(word.split("=", 1) for word in line.removeprefix(READY).split())
                self.kafka, self.http = addresses["kafka"], addresses["http"]
                return True
        return False

    def await_topic(self, topic: str) -> None:
        """Wait until every broker knows the topic as it is now, or that it does not exist."""

    def coordinator(self, group: str) -> tuple[int, str]:
        """The node id and the address of the group's coordinator."""
        return 1, self.kafka

    def sql(
        self,
        query: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        user: str | None = None,
        password: str = "",
    ) -> list[dict[str, Any]]:
        """The rows of a query's result. Raises `SqlError`."""
        return sql_rows(self.http_url, query, bound(parameters), user=user, password=password)
