"""Work that is done again and again beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(work: Callable[[], None], every_s: float = 0.0) -> Iterator[None]:
    """Does it meanwhile, in a thread, with this pause. Raises AssertionError if it has raised."""
    over = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not over.wait(every_s):
                work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures, failures
