"""The two servers that are compared: Apache Kafka and brokerhouse, both with default settings.

Only one of them runs at a time, on a new directory, so that neither pays for the other's work.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.machine import cpu_seconds
from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.server_process import ServerProcess, free_port

KAFKA, BROKERHOUSE = "Kafka", "brokerhouse"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_ANSWER_LIMIT_S = 120.0

JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""As Kafka's start scripts (KAFKA_JVM_PERFORMANCE_OPTS in kafka-run-class.sh)."""

# What config/server.properties of Kafka's distribution sets otherwise than the code's defaults.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaProcess(ServerProcess):
    """Kafka in KRaft mode: one node, broker and controller, with the heap of its start script."""

    clean_exit_codes = (143,)

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir.with_name(data_dir.name + ".log"))
        self.data_dir = data_dir
        self._port, self._controller = free_port(), free_port()
        self.kafka = f"127.0.0.1:{self._port}"
        self._properties = data_dir.with_name(data_dir.name + ".properties")

    def format(self) -> None:
        self._properties.write_text(
            _PROPERTIES.format(
                port=self._port, controller=self._controller, directory=self.data_dir
            )
        )
        command = (*_java("-Xmx256M"), "kafka.tools.StorageTool", "format", "--standalone")
        arguments = ("--cluster-id", _CLUSTER_ID, "--config", str(self._properties))
        with self.log_path.open("ab") as log:
            subprocess.run((*command, *arguments), check=True, stdout=log, stderr=log)

    def command(self) -> Sequence[str]:
        return (*_java("-Xmx1G", "-Xms1G"), "kafka.Kafka", str(self._properties))

    def is_ready(self) -> bool:
        return "Kafka Server started" in self.printed()


Server = KafkaProcess | BrokerProcess


class Reachable(Protocol):
    @property
    def kafka(self) -> str:
        """Where clients connect."""


def _java(*options: str) -> tuple[str, ...]:
    return (tools.program("java"), *options, *JVM, "-cp", f"{tools.kafka_libraries()}/*")


def java_tool(name: str) -> tuple[str, ...]:
    """How to start one of Kafka's perf tools, as its script does: append its arguments."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return (*_java("-Xmx512M", quiet), f"org.apache.kafka.tools.{name}")


def versions() -> str:
    """Of both servers and of Java."""
    (jar,) = tools.kafka_libraries().glob("kafka-clients-*.jar")
    kafka = jar.stem.removeprefix("kafka-clients-")
    java = subprocess.run((tools.program("java"), "--version"), check=True, capture_output=True)
    return (
        f"brokerhouse {version('brokerhouse')}, Apache Kafka {kafka}"
        f" on {java.stdout.decode().splitlines()[0]}"
    )


@contextmanager
def started(
    name: str, settings: Mapping[str, str] | None = None, place: Path | None = None
) -> Iterator[Server]:
    """The server of this name on a new directory in `place`, or on one that is removed afterwards.

    The settings are brokerhouse's.
    """
    with ExitStack() as stack:
        if place is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-kafka-"))
        else:
            folder = tempfile.mkdtemp(dir=place)
        data_dir = Path(folder, "data")
        server: Server
        if name == KAFKA:
            server = KafkaProcess(data_dir)
            server.format()
        else:
            # 5 minutes are the default, which BrokerProcess changes for tests.
            server = BrokerProcess(
                data_dir, {"retention_check_interval_ms": "300000", **(settings or {})}
            )
        with server:
            yield server


def name_of(server: Server) -> str:
    return KAFKA if isinstance(server, KafkaProcess) else BROKERHOUSE


def create_topic(server: Server, topic: str, partitions: int = 1) -> None:
    """Returns when every partition can be used: Kafka answers before it has made a thousand."""
    admin = AdminClient({"bootstrap.servers": server.kafka, "log_level": 4})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(_ANSWER_LIMIT_S)
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "look"})
    asked = [TopicPartition(topic, number, 0) for number in range(partitions)]
    deadline = time.monotonic() + _ANSWER_LIMIT_S
    while not _are_there(consumer, asked):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not every partition of {topic} is there")
        time.sleep(0.1)
    consumer.close()


def _are_there(consumer: Consumer, partitions: list[TopicPartition]) -> bool:
    try:
        found = consumer.offsets_for_times(partitions, _ANSWER_LIMIT_S)
    except KafkaException:
        return False
    return all(one.error is None for one in found)


QUIET_CORES, _LOOK_S = 0.05, 1.0
_QUIET_LOOKS = 5
"""Merges of a load at full speed begin three seconds after it."""


def settle(server: Server, limit_s: float) -> None:
    """Wait until the server has done what follows a load, such as merges; at most `limit_s`."""
    deadline = time.monotonic() + limit_s
    quiet = 0
    while time.monotonic() < deadline and quiet < _QUIET_LOOKS:
        quiet = quiet + 1 if cores(server, _LOOK_S) <= QUIET_CORES else 0


def cores(server: Server, seconds: float) -> float:
    """Cores that the server uses in the next seconds."""
    before, began = cpu_seconds(server.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - before) / (time.monotonic() - began)


def file_system(path: Path) -> str:
    """The type of the file system that the path is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if os.path.commonpath([m[0], path.resolve()]) == m[0]]
    return max(inside, key=lambda mount: len(mount[0]))[1]
