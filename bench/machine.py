"""What benchmarks share: the machine in words, the C client, a broker process, CPU seconds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.support.broker_process import BrokerProcess

LARGE_BATCHES = ("acks=all", "linger.ms=5", "batch.num.messages=10000", "batch.size=1000000")
LARGE_FETCHES = ("fetch.message.max.bytes=4000000", "queued.max.messages.kbytes=262144")
"""Properties of librdkafka for throughput."""


def machine() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{len(models)} x {models[0] if models else platform.machine()}, {memory_gib:.0f} GiB,"
        f" Linux {platform.release()}, Python {platform.python_version()},"
        f" chdb-core {version('chdb-core')}"
    )


@contextmanager
def running_broker(data_dir: Path, settings: Mapping[str, str]) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data_dir, settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compiled_client(folder: Path) -> Path:
    """`client.c`, compiled into the folder."""
    client = folder / "client"
    command = [
        "cc",
        "-O2",
        "-o",
        str(client),
        str(Path(__file__).with_name("client.c")),
        "-lrdkafka",
    ]
    if subprocess.run(command, check=False).returncode:
        sys.exit("bench: needs a C compiler and librdkafka's headers (Debian: librdkafka-dev)")
    return client


def run_client(
    client: Path,
    mode: str,
    kafka: str,
    topic: str,
    count: int,
    size: int,
    properties: Sequence[str],
) -> dict[str, float]:
    """The figures that `client.c` prints."""
    command = [str(client), mode, kafka, topic, str(count), str(size), *properties]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(result.stdout)
    return figures
