"""`make bench-kafka`: Apache Kafka and brokerhouse beside each other, on one machine.

Each part runs in rounds. In a round one server after the other is started on a new directory,
and loaded; every second round begins with the other server. Directories are removed after the last
round of a part: what a server finds would else depend on what was removed before it (memory that
was given back, inodes that are not used again at once). The tables show the median of all rounds,
and the least and the greatest. Client and server share the machine's cores. Prints
Markdown; asserts nothing, but a load that fails ends the run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.kafka import parts
from bench.kafka.dashboards import dashboards
from bench.kafka.figures import Figure, Table
from bench.kafka.loads import Plan, run_tool
from bench.kafka.servers import BROKERHOUSE, KAFKA, Server, file_system, started, versions
from bench.kafka.soak import soak
from bench.kafka.visible import visible
from bench.machine import compiled_client, machine

Part = Callable[[Server, Plan], Iterator[Figure]]

PARTS: dict[str, tuple[str, Part]] = {
    "defaults": ("Java producer with its defaults, full speed", parts.java_defaults),
    "throttled": ("Java producer with its defaults, 100 B, throttled", parts.throttled),
    "single": ("One record at a time, librdkafka, linger.ms=0", parts.one_at_a_time),
    "large": ("Large batches, librdkafka", parts.large_batches),
    "cold": ("Consume what the broker has not in memory", parts.consume_cold),
    "partitions": ("Java producer with its defaults, 100 B, by partitions", parts.many_partitions),
    "producers": ("Many producers of one small record each", parts.many_producers),
    "transactions": ("Transactions, librdkafka, one after the other", parts.transactions),
    "visible": ("From send to row in SQL", visible),
    "dashboards": ("SQL beside 20,000 records/s of 100 B", dashboards),
    "idle": ("Idle", parts.idle),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    place = Path(tempfile.gettempdir())
    print(f"{machine()}, data on {file_system(place)}\n{versions()}", flush=True)
    if options.soak:
        print(f"\n### Soak: {options.soak:g} min at full speed, 100 B, Java defaults\n", flush=True)
        print(soak(options.soak), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as folder:
        client = compiled_client(Path(folder))
        print(f"client.c with librdkafka {run_tool((str(client), 'version')).strip()}", flush=True)
        plan = Plan(
            client=client,
            seconds=2.0 if options.quick else options.seconds,
            records=options.records,
            quiet_s=3.0 if options.quick else 20.0,
            quick=options.quick,
        )
        rounds = options.rounds or (1 if options.quick else 3)
        for name in options.only:
            title, part = PARTS[name]
            table = _run_rounds(name, part, plan, rounds)
            print(f"\n### {title}\n\n{table.markdown()}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__)
    parser.add_argument(
        "--only",
        type=_names,
        default=list(PARTS),
        metavar="NAME,...",
        help=f"these parts instead of all: {', '.join(PARTS)}",
    )
    parser.add_argument("--rounds", type=int, help="how often each part runs; 3, with --quick 1")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each load lasts")
    parser.add_argument(
        "--records", type=int, default=10_000_000, help="no load sends more records than this"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short loads, to see that every part works"
    )
    parser.add_argument(
        "--soak",
        type=float,
        metavar="MINUTES",
        help="instead of the parts: full speed on brokerhouse, and what grows meanwhile",
    )
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(unknown)}")
    return names


def _run_rounds(name: str, part: Part, plan: Plan, rounds: int) -> Table:
    table = Table((KAFKA, BROKERHOUSE))
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as place:
        for number in range(rounds):
            order = (KAFKA, BROKERHOUSE) if number % 2 == 0 else (BROKERHOUSE, KAFKA)
            for server_name in order:
                began = time.monotonic()
                with started(server_name, place=Path(place)) as server:
                    table.add(server_name, part(server, plan))
                print(
                    f"{name}: round {number + 1} of {rounds}, {server_name},"
                    f" {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return table


if __name__ == "__main__":
    main()
