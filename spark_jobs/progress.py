"""How far a running job is: one line for a person, on stderr.

A job is a series of steps. A step may know how many rows it has to do; how many are done is counted
by whoever does them: Spark's workers, whose accumulators reach the driver when a task ends, or the
broker. Beside the rows stand the finished tasks of the Spark stages that run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from pyspark import SparkContext
    from rich.progress import Task

EVERY_S = 5.0
"""How often a line is written where stderr is not a terminal."""


class JobProgress:
    """The step that a job is at. Another thread reads it while the job works."""

    def __init__(self, name: str, tell: Callable[[str], None] = lambda _line: None) -> None:
        """`tell` gets a line when a step begins, and one when its rows are done."""
        self._name = name
        self._tell = tell
        self._text = ""
        self._total = 0
        self._done: Callable[[], int] = lambda: 0
        self._began = time.monotonic()
        self._told = ""
        self._lock = threading.RLock()
        """Held while a step begins and is told, so that nothing is told of it before."""
        self.context: SparkContext | None = None
        """Set when Spark has started."""

    def step(self, text: str, total: int = 0, done: Callable[[], int] = lambda: 0) -> None:
        """A step begins. `total`: its rows, 0 if not known. `done`: those that are done by now."""
        with self._lock:
            self.end()
            self._text, self._total, self._done = text, total, done
            self._began = time.monotonic()
            self._tell(f"{self._name}: {text}" + (f" ({counted(total, 'row')})" if total else ""))

    def end(self) -> None:
        """The step, if there was one, is over."""
        with self._lock:
            if self._total:
                took = duration(time.monotonic() - self._began)
                self._tell(f"{self._name}: {self._text}: {self._rows_done()} in {took}")
            self._text, self._total, self._done = "", 0, lambda: 0

    def tell(self) -> None:
        """Tell how far the step is, if there is one and that has changed."""
        with self._lock:
            line = self.line()
            if self._text and line != self._told:
                self._tell(line)
                self._told = line

    def line(self) -> str:
        parts = [part for part in (self._rows(), self._tasks()) if part]
        step = f"{self._name}: {self._text}" if self._text else self._name
        return f"{step}: {', '.join(parts)}" if parts else step

    def _rows_done(self) -> str:
        # A task that Spark repeats counts its rows again.
        return f"{min(self._done(), self._total):,} of {counted(self._total, 'row')}"

    def _rows(self) -> str:
        if not self._total:
            return ""
        text, done = self._rows_done(), min(self._done(), self._total)
        rate = done / max(time.monotonic() - self._began, 0.001)
        if not done or done == self._total:
            return text
        return f"{text}, {rate:,.0f}/s, {duration((self._total - done) / rate)} left"

    def _tasks(self) -> str:
        """How many tasks of the Spark stages that run are done; empty if none runs."""
        if self.context is None:
            return ""
        tracker = self.context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage)
        tasks = sum(stage.numTasks for stage in stages if stage)
        return f"{done:,} of {counted(tasks, 'task')}" if tasks else ""


def duration(seconds: float) -> str:
    """`40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 partition`, `2,000 partitions`. `many`: the plural, if it needs more than an `s`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


@contextmanager
def shown(name: str) -> Iterator[JobProgress]:
    """Shows the progress on stderr: on a terminal one line that changes, else a line at times."""
    stderr = Console(stderr=True)
    if stderr.is_terminal:
        progress = JobProgress(name)
        columns = (SpinnerColumn(), _ProgressLine(progress), TimeElapsedColumn())
        with Progress(*columns, console=stderr, transient=True) as live:
            live.add_task(name, total=None)
            yield progress
        return
    progress = JobProgress(name, lambda line: click.echo(line, err=True))
    ended = threading.Event()
    writer = threading.Thread(target=_write_lines, args=(progress, ended), daemon=True)
    writer.start()
    try:
        yield progress
        progress.end()
    finally:
        ended.set()
        writer.join()


def _write_lines(progress: JobProgress, ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        progress.tell()


class _ProgressLine(ProgressColumn):
    def __init__(self, progress: JobProgress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        del task
        return Text(self._progress.line())
