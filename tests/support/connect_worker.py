"""A worker of Kafka Connect in distributed mode, as a process that a test may kill."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import tools
from tests.support.java_app import JavaApp
from tests.support.server_process import free_port
from tests.support.waiting import until

_ANSWER_LIMIT_S = 30.0
_ATTEND_EVERY_S = 0.5
_ONLY_FAILED = "includeTasks=true&onlyFailed=true"
_CONFLICT = 409
"""The REST interface's answer while the workers rebalance."""


class ConnectWorker(JavaApp):
    """One worker; those with the same brokers are one Connect cluster. It keeps its port.

    `settings`: those of the worker, which go before the ones that are here.
    """

    stop_limit_s = 120.0
    """Its REST server alone waits 60 s for a request that is still worked on."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "worker",
    ) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        every_setting = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": self._url,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "status.storage.topic": "connect-status",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "plugin.discovery": "service_load",
            # Short time-outs make tests short: a worker that was killed leaves its group.
            "session.timeout.ms": "2000",
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "0",
            # A worker first reads what was committed before, and waits for transactions of tasks
            # that were killed.
            "producer.transaction.timeout.ms": "4000",
            **(settings or {}),
        }
        super().__init__(directory, name, tools.connect_command(), every_setting)

    def is_ready(self) -> bool:
        """Whether it is a member of its group and has read the configs (KIP-1017)."""
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=_ANSWER_LIMIT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def configure(self, connector: str, config: Mapping[str, str]) -> None:
        """Make a connector, or change its config."""
        path = f"/connectors/{connector}/config"
        until(lambda: self._accepts("PUT", path, config), f"{connector} is configured")

    @contextmanager
    def attended(
        self, connector: str, repair: Callable[[str], object] = lambda _: None
    ) -> Iterator[list[str]]:
        """Restarts what fails, as an operator does: Connect leaves a failed task as it is.

        The list has the stack traces of the failures. `repair` gets each before its restart.
        """
        failures: list[str] = []
        stopped = threading.Event()

        def attend() -> None:
            while not stopped.wait(_ATTEND_EVERY_S):
                try:
                    failed = self._failures(connector)
                    if failed:
                        for trace in failed:
                            repair(trace)
                        self._ask("POST", f"/connectors/{connector}/restart?{_ONLY_FAILED}")
                        failures.extend(failed)
                except (OSError, http.client.HTTPException):
                    continue  # the worker was killed, or is not ready

        thread = threading.Thread(target=attend, daemon=True)
        thread.start()
        try:
            yield failures
        finally:
            stopped.set()
            thread.join()

    def _failures(self, connector: str) -> list[str]:
        status = self._ask("GET", f"/connectors/{connector}/status")
        parts = [status["connector"], *status["tasks"]]
        return [part.get("trace", "") for part in parts if part["state"] == "FAILED"]

    def _accepts(self, method: str, path: str, body: object = None) -> bool:
        try:
            self._ask(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code != _CONFLICT:
                raise
            return False
        return True

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(f"{self._url}{path}", method=method)
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=_ANSWER_LIMIT_S) as answer:
            content = answer.read()
        return json.loads(content) if content else None
