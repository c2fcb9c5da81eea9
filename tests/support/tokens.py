"""No more heavy work at once than the machine has cores, whatever number of lanes runs.

Heavy is what keeps a core busy for seconds: a JVM, a Spark session, a cluster of five processes.
A test waits for a token before it starts or uses one, and gives the token back at its end. A test
process never holds two, so two cannot wait for each other. `tools/run-tests` makes the tokens,
files in a folder; without it, as when one test is run by hand, there is nothing to wait for.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

FOLDER = "TEST_TOKENS"
"""The environment variable that names the folder of tokens."""
FIXTURES = frozenset({"cluster", "spark"})
"""Who uses one of these is heavy: they live on between tests."""
_LOOK_AGAIN_S = 0.05
_held: list[IO[bytes]] = []


def take() -> None:
    """Returns when this process has a token."""
    folder = os.environ.get(FOLDER)
    if folder is None or _held:
        return
    *tokens, queue = sorted(Path(folder).iterdir())
    with queue.open("rb") as turn:  # or who gives a token back would always be the next to take it
        fcntl.flock(turn, fcntl.LOCK_EX)
        while not any(_taken(token) for token in tokens):
            time.sleep(_LOOK_AGAIN_S)  # the kernel wakes who waits for one lock, not for several


def take_for(command: Sequence[str]) -> None:
    """A token, if the command starts a JVM."""
    if Path(command[0]).name == "java":
        take()


def give_back() -> None:
    while _held:
        _held.pop().close()


def _taken(token: Path) -> bool:
    lock = token.open("rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _held.append(lock)
    return True
