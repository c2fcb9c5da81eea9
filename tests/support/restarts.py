"""Brokers and applications that are killed and come back while a topic grows.

Each happens after a random number of records, in the middle of a transaction. A seed decides
everything but the time that processes take.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

from tests.support.cluster_processes import Cluster
from tests.support.committed import EndOffsets
from tests.support.server_process import ServerProcess

Restart = Callable[[EndOffsets], None]
"""Returns when what it killed is ready again."""

RECORDS_BETWEEN = (1, 600)
_RECORDS_WHILE_AWAY = 200

BROKER_SETTINGS = {"group_min_session_timeout_ms": "500", "group_initial_rebalance_delay_ms": "0"}
"""For short tests: members that were killed leave their groups soon."""


def seeded() -> random.Random:
    """Chance by the seed APPS_SEED, which is random if it is not set. Prints it."""
    seed = int(os.environ.get("APPS_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    return random.Random(seed)


def long_s() -> float:
    """How long a long test kills: APPS_MINUTES, or two."""
    return 60 * float(os.environ.get("APPS_MINUTES") or 2)


def each_once(
    broker: ServerProcess, apps: Sequence[ServerProcess], chance: random.Random
) -> Iterator[Restart]:
    """The broker, each application, and all of them together, in a random order."""
    restarts = [_killed(broker), *map(_killed, apps), _killed(broker, *apps)]
    chance.shuffle(restarts)
    yield from restarts


def each_twice(
    broker: ServerProcess, apps: Sequence[ServerProcess], chance: random.Random
) -> Iterator[Restart]:
    for _ in range(2):
        yield from each_once(broker, apps, chance)


def for_long(
    broker: ServerProcess, apps: Sequence[ServerProcess], chance: random.Random
) -> Iterator[Restart]:
    deadline = time.monotonic() + long_s()
    while time.monotonic() < deadline:
        yield from each_once(broker, apps, chance)


def of_a_cluster(
    cluster: Cluster, apps: Sequence[ServerProcess], chance: random.Random
) -> Iterator[Restart]:
    """One broker after the other, and after each an application, in turns, for long."""
    deadline = time.monotonic() + long_s()
    turn = 0
    while time.monotonic() < deadline:
        yield _away(cluster.brokers[turn % len(cluster.brokers)], killed=chance.random() < 0.7)
        yield _killed(apps[turn % len(apps)])
        turn += 1


def play(
    restarts: Iterator[Restart],
    ends: EndOffsets,
    chance: random.Random,
    between: tuple[int, int] = RECORDS_BETWEEN,
) -> None:
    """Each comes in a transaction, after `between` records. Prints how many there were."""
    began = time.monotonic()
    count = 0
    for restart in restarts:
        ends.await_more(chance.randint(*between))
        ends.await_open()
        restart(ends)
        count += 1
    ends.await_more(1)
    print(f"{count} times in {time.monotonic() - began:.0f} s, {ends.total()} offsets")


def _killed(*processes: ServerProcess) -> Restart:
    """All are killed, then started in this order."""

    def restart(_: EndOffsets) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.start()

    return restart


def _away(broker: ServerProcess, *, killed: bool) -> Restart:
    """The other brokers go on without it."""

    def restart(ends: EndOffsets) -> None:
        if killed:
            broker.kill()
        else:
            broker.stop()
        ends.await_more(_RECORDS_WHILE_AWAY)
        broker.start()

    return restart
