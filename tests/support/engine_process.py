"""A real `brokerhouse engine` process for tests: a stand-in for the replicas of one shard."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.server_process import ServerProcess, free_port
from tests.support.sql_rows import sql_rows

READY = "ready http="


class EngineProcess(ServerProcess):
    """One data directory, and the process that serves it on `replicas` listeners."""

    def __init__(
        self,
        data_dir: Path,
        *,
        replicas: int = 1,
        keepers: Sequence[str] = (),
        shard: str = "1",
        settings: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`keepers`: HOST:PORT of each. `settings`: the command's own, by name.

        `config`: files for `engine.d/` in the data directory, name and XML.
        """
        environment = {f"BROKERHOUSE_{name.upper()}": v for name, v in (settings or {}).items()}
        super().__init__(data_dir.with_name(data_dir.name + ".log"), environment)
        self.data_dir = data_dir
        self.keepers = keepers
        self.shard = shard
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(replicas)]
        """HOST:PORT of each listener."""
        for name, xml in (config or {}).items():
            (data_dir / "engine.d").mkdir(parents=True, exist_ok=True)
            (data_dir / "engine.d" / name).write_text(xml)

    @property
    def http(self) -> str:
        """HOST:PORT of the first listener."""
        return self.addresses[0]

    @property
    def urls(self) -> list[str]:
        return [f"http://{address}" for address in self.addresses]

    def command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "brokerhouse", "engine", "--data-dir", str(self.data_dir)]
        for address in self.addresses:
            command += ["--http", address]
        for keeper in self.keepers:
            command += ["--keeper", keeper]
        return [*command, "--shard", self.shard]

    def is_ready(self) -> bool:
        for line in self.printed().splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                assert line.removeprefix(READY).rstrip() == ",".join(self.addresses)
                return True
        return False

    def sql(
        self,
        statement: str,
        parameters: Mapping[str, str] | None = None,
        *,
        database: str = "default",
        user: str | None = None,
        password: str = "",
        replica: int = 0,
    ) -> list[dict[str, Any]]:
        """The rows of a statement's result. `parameters` go into the URL: settings, param_NAME."""
        arguments = {"database": database, **(parameters or {})}
        return sql_rows(self.urls[replica], statement, arguments, user=user, password=password)
