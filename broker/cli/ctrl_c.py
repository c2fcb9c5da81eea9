"""Ctrl-C, for commands that run until it is pressed."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended, as in shells."""


class CtrlC:
    """Whether Ctrl-C was pressed.

    No `threading.Event`: Python runs a signal's handler between any two instructions of the main
    thread, also while that thread holds the event's own lock inside `wait`; `set` would then wait
    for it for ever.
    """

    def __init__(self, pressed_fd: int) -> None:
        self._pressed_fd = pressed_fd

    def is_pressed(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        """Waits for Ctrl-C, at most for this time; whether it was pressed."""
        return bool(select.select([self._pressed_fd], [], [], seconds)[0])

    def sleep(self, seconds: float) -> None:
        """Waits for this time. Raises KeyboardInterrupt when Ctrl-C is pressed."""
        if self.wait(seconds):
            raise KeyboardInterrupt


@contextmanager
def ctrl_c() -> Iterator[CtrlC]:
    """The first Ctrl-C is noted and raises nothing; a second one raises.

    kafka-python's event loop would treat an exception raised inside it as the failure of a task,
    and continue.
    """
    pressed_fd, press_fd = os.pipe()
    former = signal.getsignal(signal.SIGINT)

    def press(*_: object) -> None:
        os.write(press_fd, b"\0")
        signal.signal(signal.SIGINT, former)

    signal.signal(signal.SIGINT, press)
    try:
        yield CtrlC(pressed_fd)
    finally:
        signal.signal(signal.SIGINT, former)
        os.close(pressed_fd)
        os.close(press_fd)
