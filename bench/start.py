"""`make bench-start`: how long a broker takes to its ready line, and a command to its --help.

Each start is timed from exec to the ready line, after which a client connects: on an empty
directory, and again on the same one. With `--beside DIR`, another checkout is measured in turn with
this one. CPU seconds count where other programs use the machine. Prints a Markdown table; asserts
nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kafka import KafkaAdminClient

from bench.machine import cpu_seconds, machine
from tests.support.server_process import PROJECT, free_port

_READY = "ready "
_COMMAND = (sys.executable, "-m", "brokerhouse")
_FIRST, _AGAIN = "start on an empty directory", "start on the same directory"


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    options = parser.parse_args()
    trees = [PROJECT] if options.beside is None else [options.beside.resolve(), PROJECT]
    print(machine(), flush=True)
    rows: dict[tuple[str, Path], list[Took]] = {}
    for number in range(options.rounds + 1):
        for tree in trees if number % 2 else reversed(trees):
            for what, took in _round(tree).items():
                if number > 0:  # the first one compiles Python's files
                    rows.setdefault((what, tree), []).append(took)
    print("\n| what | checkout | seconds | CPU seconds |")
    print("|---|---|---:|---:|")
    for (what, tree), found in sorted(rows.items(), key=lambda row: (row[0][0], str(row[0][1]))):
        wall, cpu = [one.wall_s for one in found], [one.cpu_s for one in found]
        print(f"| {what} | {tree.name} | {_range(wall)} | {_range(cpu)} |")


def _range(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _round(tree: Path) -> Mapping[str, Took]:
    found = {
        "`brokerhouse --help`": _help(tree),
        "`brokerhouse serve --help`": _help(tree, "serve"),
        "`brokerhouse topics --help`": _help(tree, "topics"),
    }
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        found[_FIRST] = _start(tree, data_dir)
        found[_AGAIN] = _start(tree, data_dir)
    return found


def _environment() -> Mapping[str, str]:
    """Python keeps its compiled files, as it does where the package is installed."""
    return {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | {"BROKERHOUSE_DISK_RESERVE_BYTES": "1"}


def _help(tree: Path, *command: str) -> Took:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run(
        [*_COMMAND, *command, "--help"],
        cwd=tree,
        env=_environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s, cpu_s)


def _start(tree: Path, data_dir: Path) -> Took:
    kafka, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [*_COMMAND, "serve", "--data-dir", str(data_dir), "--kafka", kafka, "--http", http]
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=tree,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        assert any(line.startswith(_READY) for line in broker.stdout), "the broker has ended"
        took = Took(time.monotonic() - began, cpu_seconds(broker.pid))
        KafkaAdminClient(bootstrap_servers=kafka).close()
        broker.terminate()
    return took


if __name__ == "__main__":
    main()
