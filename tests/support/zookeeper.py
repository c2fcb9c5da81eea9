"""A Keeper for tests: ClickHouse Keeper where it is installed, else Debian's ZooKeeper.

One node on the loopback, with its data in a directory of the test. A kill loses nothing: it writes
before it answers, and the operating system keeps what a process has written.
"""

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.support.server_process import ENDED_JAVA, ServerProcess, free_port

ANSWER_LIMIT_S = 1.0
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
LOGGING_JAR = Path("/usr/share/java/slf4j-simple.jar")
"""The other names the jars that it needs; this one makes it print errors and nothing else."""


class Keeper(ServerProcess):
    """Speaks ZooKeeper's protocol on `address`, which stays the same after a restart."""

    clean_exit_codes = ENDED_JAVA

    def __init__(self, directory: Path) -> None:
        """Raises FileNotFoundError where there is none to be started."""
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory.with_name(directory.name + ".log"))
        self.port = free_port()
        binary = shutil.which("clickhouse-keeper") or shutil.which("clickhouse")
        self._command = (
            _clickhouse_keeper(binary, directory, self.port)
            if binary
            else _zookeeper(directory, self.port)
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return self._command

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_LIMIT_S) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def _zookeeper(directory: Path, port: int) -> Sequence[str]:
    java = shutil.which("java")
    if java is None or not ZOOKEEPER_JAR.exists():
        raise FileNotFoundError("there is no Keeper: run tools/require tests")
    config = directory / "zoo.cfg"
    config.write_text(
        "tickTime=500\n"  # sessions of 1 to 10 s
        f"dataDir={directory}\n"
        f"clientPort={port}\n"
        "clientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\n"
        "admin.enableServer=false\n"
        "4lw.commands.whitelist=ruok\n"
    )
    return (
        java,
        "-Xmx64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{LOGGING_JAR}:{ZOOKEEPER_JAR}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.preAllocSize=1024",
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        str(config),
    )


def _clickhouse_keeper(binary: str, directory: Path, port: int) -> Sequence[str]:
    config = directory / "keeper.xml"
    config.write_text(
        f"""<clickhouse>
    <logger><level>warning</level><console>1</console></logger>
    <listen_host>127.0.0.1</listen_host>
    <keeper_server>
        <tcp_port>{port}</tcp_port>
        <server_id>1</server_id>
        <log_storage_path>{directory}/log</log_storage_path>
        <snapshot_storage_path>{directory}/snapshots</snapshot_storage_path>
        <four_letter_word_white_list>ruok</four_letter_word_white_list>
        <coordination_settings>
            <min_session_timeout_ms>1000</min_session_timeout_ms>
            <session_timeout_ms>10000</session_timeout_ms>
            <force_sync>false</force_sync>
        </coordination_settings>
        <raft_configuration>
            <server><id>1</id><hostname>127.0.0.1</hostname><port>{free_port()}</port></server>
        </raft_configuration>
    </keeper_server>
</clickhouse>
"""
    )
    command = [binary] if Path(binary).name == "clickhouse-keeper" else [binary, "keeper"]
    return [*command, f"--config-file={config}"]
