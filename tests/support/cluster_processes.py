"""A cluster on one machine: Keeper, two engines as shards, three brokers.

Each part is a process on a host of its own (`cluster_network.py`) with fixed ports, so that it has
the same address after a restart. Debian's ZooKeeper is the Keeper. An engine has two HTTP
listeners, on two addresses, which stand for two replicas in sync: cutting off an address stands for
a replica that is away.

Each part can be stopped (SIGTERM), killed, paused (SIGSTOP) and started again at any time;
`Cluster.close` ends the parts that still run. Each part has one log file, also after restarts.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from tests.support import tokens
from tests.support.broker_process import NEVER_MS
from tests.support.cluster_network import Host, Loopback, Network
from tests.support.server_process import PROJECT, ServerProcess, ServerProcessError, free_port
from tests.support.sql_rows import bound, sql_rows
from tests.support.waiting import LIMIT_S, until
from tests.support.zookeeper import ANSWER_LIMIT_S, LOGGING_JAR, ZOOKEEPER_JAR

READY = "ready "
COMMAND_LIMIT_S = 120.0
REQUEST_TIMEOUT_MS = 2000
COMMAND_REQUEST_MS = 60_000

KEEPER_PORT, KAFKA_PORT, OUTSIDE_PORT, HTTP_PORT = 2181, 9092, 9094, 8123
SHARDS, BROKERS, REPLICAS, SLOTS = 2, 3, 2, 16
SESSION_TIMEOUT_MS = int(os.environ.get("CLUSTER_SESSION_TIMEOUT_MS") or 4000)
"""Short time-outs make tests short. Shorter ones would expire on a busy machine."""
DATABASE = "brokerhouse_shard"
SQL_USER, SQL_PASSWORD = "cluster", "of the tests"

started: list["Part"] = []
"""Every part of this test session: their logs are shown when a test fails."""


class Part(ServerProcess):
    """One process of a cluster, which can be restarted."""

    def __init__(
        self,
        name: str,
        host: Host,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(log_path, environment)
        self.name = name
        self.host = host
        self._command = [*host.prefix, *command]
        started.append(self)

    def __str__(self) -> str:
        return self.name

    def command(self) -> Sequence[str]:
        return self._command

    def is_ready(self) -> bool:
        return any(line.startswith(READY) for line in self.printed().splitlines())


class Keeper(Part):
    """ZooKeeper prints nothing when it is ready, so it has to be polled."""

    def __init__(self, host: Host, port: int, command: Sequence[str], log_path: Path) -> None:
        super().__init__("keeper", host, command, log_path)
        self._address = (host.address, port)

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(self._address, ANSWER_LIMIT_S) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


class Broker(Part):
    """One of the brokers; `kafka` is where clients reach it, `outside` its other listener."""

    def __init__(
        self,
        node_id: int,
        host: Host,
        ports: tuple[int, int],
        config: Path,
        tree: Path,
    ) -> None:
        self.node_id = node_id
        self.kafka, self.outside = (f"{host.address}:{port}" for port in ports)
        listeners = f"PLAINTEXT://{self.kafka},OUTSIDE://{self.outside}"
        # Python takes the packages of the directory that it runs in.
        command = ["env", "-C", str(tree), sys.executable, "-m", "brokerhouse", "serve"]
        command += ["--config", str(config)]
        command += ["--node-id", str(node_id), "--kafka", listeners, "--http", f"{host.address}:0"]
        log_path = config.with_name(f"broker{node_id}.log")
        name = f"broker {node_id}"
        super().__init__(name, host, command, log_path)

    @property
    def http_url(self) -> str:
        """Where it serves metrics, as its ready line says."""
        (line,) = (one for one in self.printed().splitlines() if one.startswith(READY))
        return f"http://{line.rpartition(' http=')[2]}"


class Engine(Part):
    """One shard; `urls` are its listeners, which stand for replicas in sync."""

    def __init__(
        self, name: str, hosts: Sequence[Host], ports: Sequence[int], keeper: str, directory: Path
    ) -> None:
        self.hosts = hosts
        addresses = [f"{host.address}:{port}" for host, port in zip(hosts, ports, strict=True)]
        self.urls = [f"http://{address}" for address in addresses]
        command = [sys.executable, "-m", "brokerhouse", "engine", "--shard", name]
        self.data_dir = directory / name
        command += ["--data-dir", str(self.data_dir), "--keeper", keeper]
        # Brokers on other hosts have to log in; see SQL_USER.
        command += ["--sql-user", SQL_USER]
        command += [word for address in addresses for word in ("--http", address)]
        environment = {"BROKERHOUSE_SQL_PASSWORD": SQL_PASSWORD}
        log_path = directory / f"{name}.log"
        super().__init__(name, hosts[0], command, log_path, environment=environment)

    def sql(self, query: str, parameters: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The rows of a query of this shard alone."""
        arguments = {"database": DATABASE, **bound(parameters)}
        return sql_rows(self.urls[0], query, arguments, user=SQL_USER, password=SQL_PASSWORD)


class Cluster:
    """All parts, made on a `network` below `directory`. Nothing runs before `start`.

    `tree`: where the brokers' code is; `settings` are theirs, by name.
    """

    def __init__(
        self,
        directory: Path,
        network: Network | None = None,
        *,
        tree: Path = PROJECT,
        settings: Mapping[str, str] | None = None,
        brokers: int = BROKERS,
        shards: int = SHARDS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.session_timeout_s = session_timeout_ms / 1000
        self.directory = directory
        self.network = network or Loopback()
        self.settings = {
            "broker_session_timeout_ms": str(session_timeout_ms),
            "group_min_session_timeout_ms": "500",
            "group_initial_rebalance_delay_ms": "0",
            "retention_check_interval_ms": NEVER_MS,  # the records of many tests are of 2023
            **(settings or {}),
        }
        self.keeper = self._keeper()
        self.engines = [self._engine(number) for number in range(1, shards + 1)]
        self.config_path = self.write_config("cluster.toml", request_timeout_ms=request_timeout_ms)
        self.commands_path = self.write_config(
            "commands.toml", request_timeout_ms=COMMAND_REQUEST_MS
        )
        """For commands of an administrator: they wait for a busy engine, which is not at fault."""
        self.brokers = [
            self.make_broker(node_id, self.config_path, tree=tree)
            for node_id in range(1, brokers + 1)
        ]

    @property
    def parts(self) -> list[Part]:
        return [self.keeper, *self.engines, *self.brokers]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.kafka for broker in self.brokers)

    def start(self) -> None:
        """Returns when every broker is ready. Each broker creates missing tables."""
        tokens.take()
        self.keeper.start()
        _together(self.engines)
        _together(self.brokers)

    def await_each_other(self) -> None:
        """Returns when each broker names all, 0.3 s after the last one is ready on a quiet machine.

        librdkafka closes its connection to a broker that another one does not name, and an admin
        request that waits there fails.
        """

        def named(broker: Broker) -> int:
            admin = AdminClient({"bootstrap.servers": broker.kafka})
            return len(admin.list_topics(timeout=LIMIT_S).brokers)

        until(
            lambda: all(named(broker) == len(self.brokers) for broker in self.brokers),
            "each broker names all",
        )

    def migrate(self) -> None:
        """`brokerhouse migrate`, as an operator would run it on the first broker's host."""
        command = [
            sys.executable,
            "-m",
            "brokerhouse",
            "migrate",
            "--config",
            str(self.config_path),
        ]
        broker = self.brokers[0]
        done = subprocess.run(
            [*broker.host.prefix, *command],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        if done.returncode:
            raise ServerProcessError(f"brokerhouse migrate failed\n{done.stdout}{done.stderr}")

    def close(self) -> None:
        """Ends every part that still runs, in whatever state it is."""
        for part in self.parts:
            part.kill()

    def write_config(
        self,
        name: str,
        *,
        replace: Mapping[str, str] | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Path:
        """A settings file for brokers. `replace`: other URLs for some of the engines' own."""
        replace = replace or {}
        lines = [f"{setting} = {json.dumps(value)}" for setting, value in self.settings.items()]
        lines += [
            "[cluster]",
            'name = "test"',
            f"slots = {SLOTS}",
            "replicated = false",
            "distributed = false",
            f'user = "{SQL_USER}"',
            f'password = "{SQL_PASSWORD}"',
            "connect_timeout_ms = 500",
            f"request_timeout_ms = {request_timeout_ms}",
        ]
        per_shard = SLOTS // len(self.engines)
        for number, engine in enumerate(self.engines):
            urls = [replace.get(url, url) for url in engine.urls]
            lines += [
                "[[cluster.shards]]",
                f'name = "{engine.name}"',
                f'slots = "{number * per_shard}-{(number + 1) * per_shard - 1}"',
                f"replicas = {json.dumps(urls)}",
            ]
        path = self.directory / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def make_broker(self, node_id: int, config: Path, *, tree: Path = PROJECT) -> Broker:
        host = self.network.host(f"broker{node_id}")
        ports = _port(host, KAFKA_PORT), _port(host, OUTSIDE_PORT)
        return Broker(node_id, host, ports, config, tree)

    def _engine(self, number: int) -> Engine:
        name = f"shard{number}"
        hosts = [self.network.host(name)]
        hosts += [self.network.host(f"{name}.{n}", beside=name) for n in range(2, REPLICAS + 1)]
        ports = [_port(host, HTTP_PORT) for host in hosts]
        return Engine(name, hosts, ports, self.keeper_address, self.directory)

    def _keeper(self) -> Part:
        host = self.network.host("keeper")
        port = _port(host, KEEPER_PORT)
        self.keeper_address = f"{host.address}:{port}"
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={self.directory / 'keeper'}\nclientPort={port}\n"
            f"clientPortAddress={host.address}\nadmin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=ruok\n"
        )
        command = ["java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", f"{LOGGING_JAR}:{ZOOKEEPER_JAR}"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        log_path = self.directory / "keeper.log"
        return Keeper(host, port, command, log_path)


def _together(parts: Iterable[Part]) -> None:
    parts = list(parts)
    for part in parts:
        part.launch()
    for part in parts:
        part.await_ready()


def _port(host: Host, usual: int) -> int:
    """The usual port if the host has all ports to itself, else a free one."""
    return usual if host.prefix else free_port()
