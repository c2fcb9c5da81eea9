"""Servers that the job `iceberg` writes to: an S3-compatible store, a REST catalog, Hive's."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import tools
from tests.support.server_process import ENDED_JAVA, ServerProcess, free_port

_ANSWER_LIMIT_S = 10.0
_JAVA_LIMIT_S = 60.0
BUCKET = "lake"


class S3Server(ServerProcess):
    """moto's server. Its objects are in memory."""

    clean_exit_codes = (0, -15)

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        super().__init__(directory / "s3.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def file_options(self) -> Mapping[str, str]:
        """Of a catalog whose files are here."""
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": "user",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]

    def is_ready(self) -> bool:
        return _answers(self.url)

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=_ANSWER_LIMIT_S).close()


class RestCatalog(ServerProcess):
    """Apache Iceberg's REST catalog for tests."""

    clean_exit_codes = ENDED_JAVA

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self.warehouse = directory / "warehouse"
        super().__init__(
            directory / "rest.log",
            {
                "CATALOG_REST_PORT": str(self._port),
                "CATALOG_URI": f"jdbc:sqlite:{directory}/rest.db",
                "CATALOG_WAREHOUSE": f"file://{self.warehouse}",
            },
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def command(self) -> Sequence[str]:
        return tools.iceberg_rest_command()

    def is_ready(self) -> bool:
        return _answers(f"{self.url}/v1/config")


class HiveMetastore(ServerProcess):
    """With a database of Derby."""

    clean_exit_codes = ENDED_JAVA

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._database = directory / "metastore"
        self._warehouse = directory / "warehouse"
        super().__init__(directory / "hive.log")

    @property
    def options(self) -> Mapping[str, str]:
        """Of PyIceberg's catalog."""
        return {
            "type": "hive",
            "uri": f"thrift://127.0.0.1:{self._port}",
            "warehouse": self._warehouse.as_uri(),
            "hive.hive2-compatible": "true",
        }

    def launch(self) -> None:
        if not self._database.exists():
            made = f"-Dij.database=jdbc:derby:{self._database};create=true"
            script = str(Path(__file__).parent / "hive" / "locks.sql")
            java = [*tools.hive_java(), made, self._derby_log]
            tools.run([*java, "org.apache.derby.tools.ij", script], limit_s=_JAVA_LIMIT_S)
        super().launch()

    @property
    def _derby_log(self) -> str:
        return f"-Dderby.stream.error.file={self._database}.log"

    def command(self) -> Sequence[str]:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self._database}",
            "datanucleus.schema.autoCreateAll": "true",
            "datanucleus.connectionPoolingType": "none",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": str(self._warehouse),
            "hive.async.log.enabled": "false",
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
        return [*tools.hive_java(), *given, self._derby_log, main, "-p", str(self._port)]

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), _ANSWER_LIMIT_S).close()
        except OSError:
            return False
        return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_LIMIT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
