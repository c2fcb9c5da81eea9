"""Apicurio Registry, which keeps its schemas in a topic of a broker, as a process."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support import tools
from tests.support.server_process import ENDED_JAVA, ServerProcess, free_port

_ANSWER_LIMIT_S = 30.0
JOURNAL = "kafkasql-journal"
"""The topic with everything that it knows."""


class SchemaRegistryProcess(ServerProcess):
    clean_exit_codes = ENDED_JAVA

    def __init__(self, directory: Path, bootstrap: str, port: int = 0) -> None:
        """`port`: where it listens; any free one if it is 0."""
        self._port = port or free_port()
        super().__init__(
            directory / "registry.log",
            {
                "APICURIO_STORAGE_KIND": "kafkasql",
                "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
                # How long it waits for more of its topics when it starts.
                "APICURIO_KAFKASQL_CONSUMER_POLL_TIMEOUT": "500",
                "QUARKUS_HTTP_HOST": "127.0.0.1",
                "QUARKUS_HTTP_PORT": str(self._port),
            },
        )

    @property
    def url(self) -> str:
        """Where it speaks Confluent's HTTP API."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def command(self) -> Sequence[str]:
        return tools.schema_registry_command()

    def is_ready(self) -> bool:
        """Whether it has read its topic."""
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ANSWER_LIMIT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
