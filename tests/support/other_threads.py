"""Whether compiled code lets other threads run while it works."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def take_a_turn(gate: threading.Event, turns: list[int]) -> None:
    gate.wait()
    turns.append(1)


def runs_beside(work: Callable[[], object]) -> bool:
    """Whether another thread gets a turn during `work`.

    No turn is ever forced, since the switch interval is far longer than the test: only a released
    GIL gives one.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        for _ in range(200):
            gate, turns = threading.Event(), list[int]()
            thread = threading.Thread(target=take_a_turn, args=(gate, turns))
            thread.start()
            gate.set()
            work()
            had_a_turn = bool(turns)
            thread.join()
            if had_a_turn:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
