"""common/counted_lines.py: which lines are written, and what is said of the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from brokerhouse.common.counted_lines import CountedLines, counted

MINUTE_S = 60.0


class Lines:
    """Log calls, and what is written of them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.written: list[str] = []
        self.counted = CountedLines(self._write, MINUTE_S, lambda: self.now_s)

    def log(self, text: str, *args: object, line: int = 1, extra: Mapping[str, str]) -> None:
        record = logging.LogRecord("x", logging.INFO, "x.py", line, text, args, None)
        record.__dict__.update(extra)
        if self.counted.may_pass(record):
            self.written.append(record.getMessage())

    def _write(self, record: logging.LogRecord) -> None:
        self.written.append(record.getMessage())


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_the_first_line_is_written_at_once_and_the_others_are_counted(lines: Lines) -> None:
    for number in range(13_781):
        lines.log("%d closed", number, extra=counted())
    assert lines.written == ["0 closed"]
    lines.now_s += MINUTE_S
    lines.counted.tell()
    assert lines.written == ["0 closed", "13780 closed (13780 lines like this in 60 s)"]


def test_a_lasting_flood_is_one_line_a_minute(lines: Lines) -> None:
    for _ in range(5):
        lines.log("closed", extra=counted())
        lines.log("closed", extra=counted())
        lines.now_s += MINUTE_S
        lines.counted.tell()
    assert lines.written == ["closed", "closed", *["closed (2 lines like this in 60 s)"] * 4]


def test_after_a_quiet_minute_a_line_is_written_at_once(lines: Lines) -> None:
    lines.log("closed", extra=counted())
    lines.now_s += MINUTE_S
    lines.log("closed again", extra=counted())
    assert lines.written == ["closed", "closed again"]


def test_lines_about_other_things_or_from_other_calls_are_counted_apart(lines: Lines) -> None:
    lines.log("a", extra=counted("one"))
    lines.log("b", extra=counted("two"))
    lines.log("c", line=2, extra=counted("one"))
    lines.log("d", extra=counted("one"))
    assert lines.written == ["a", "b", "c"]


def test_the_number_of_things_that_are_counted_is_limited(lines: Lines) -> None:
    for number in range(100_000):
        lines.log("%d closed", number, extra=counted(number))
    assert len(lines.written) == 21
    lines.counted.tell(everything=True)
    assert lines.written[21:] == ["99999 closed (99979 lines like this in 0 s)"]


def test_things_of_an_earlier_minute_make_room(lines: Lines) -> None:
    for number in range(20):
        lines.log("%d", number, extra=counted(number))
    lines.now_s += MINUTE_S
    for number in range(20, 40):
        lines.log("%d", number, extra=counted(number))
    assert len(lines.written) == 40


def test_a_call_that_names_no_thing_may_write_fifty_lines_a_minute(lines: Lines) -> None:
    for number in range(60):
        lines.log("%d", number, extra={})
    assert len(lines.written) == 50
    lines.now_s += MINUTE_S
    lines.counted.tell()
    assert lines.written[50:] == ["59 (10 lines like this in 60 s)"]


def test_the_count_is_logged_even_if_no_other_line_follows() -> None:
    told = threading.Event()
    last: list[str] = []

    def write(record: logging.LogRecord) -> None:
        last.append(record.getMessage())
        told.set()

    lines = CountedLines(write, interval_s=0.2)
    for text in ("first", "second"):
        record = logging.LogRecord("x", logging.INFO, "x.py", 1, text, (), None)
        record.__dict__.update(counted())
        assert lines.may_pass(record) == (text == "first")
    assert told.wait(30.0)
    assert last == ["second"]


@pytest.mark.timeout(10)
def test_a_line_that_is_logged_while_another_is_counted_is_written(lines: Lines) -> None:
    """As by `__del__` of a task, which the collector of garbage may call at any place."""

    class Noisy:
        def __str__(self) -> str:
            lines.log("deleted", line=2, extra=counted())
            return "noisy"

    lines.log("%s", "quiet", extra=counted())
    lines.log("%s", Noisy(), extra=counted())
    assert lines.written == ["quiet", "deleted"]


def test_lines_are_counted_even_if_no_thread_can_be_started(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_start(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Timer, "start", cannot_start)
        for number in range(3):
            lines.log("%d closed", number, extra=counted())
    lines.log("3 closed", extra=counted())
    lines.now_s += MINUTE_S
    lines.counted.tell()
    assert lines.written == ["0 closed", "3 closed (3 lines like this in 60 s)"]
