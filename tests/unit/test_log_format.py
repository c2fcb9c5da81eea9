"""common/logging.py: how a log line looks, to a person and to a machine."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Literal

import pytest

from brokerhouse.common.logging import log_to_stderr

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
HOSTILE = "name\nforged\x1b[2J\x9b é"
ESCAPED = r"name\nforged\x1b[2J\x9b é"

log = logging.getLogger("brokerhouse.broker.test")
"""A line shows the part of its name that begins with a folder: `broker.test`."""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(
    capsys: pytest.CaptureFixture[str], fmt: Literal["console", "json"], level: str, error: bool
) -> list[str]:
    """The lines that one log call with what a client sent makes."""
    log_to_stderr("debug", fmt)
    try:
        raise ValueError("why")
    except ValueError:
        log.log(logging.getLevelName(level), "topic %s", HOSTILE, exc_info=error)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def test_a_line_for_people_has_time_level_text_and_logger(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    (line,) = written(capsys, "console", level, error=False)
    assert re.fullmatch(
        rf"{TIME} \[{level.lower():<9}\] topic {re.escape(ESCAPED)} \[broker\.test\]", line
    )


def test_a_line_on_a_terminal_has_colors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    (line,) = written(capsys, "console", "WARNING", error=False)
    assert "[\x1b[33m\x1b[1mwarning  \x1b[0m] \x1b[1mtopic " in line
    assert re.sub(r"\x1b\[\d+m", "", line)[27:] == f" [warning  ] topic {ESCAPED} [broker.test]"


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def test_a_line_for_machines_is_an_object(capsys: pytest.CaptureFixture[str], level: str) -> None:
    (line,) = written(capsys, "json", level, error=False)
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("timestamp"))
    assert found == {
        "event": f"topic {ESCAPED}",
        "level": level.lower(),
        "logger": "broker.test",
    }


def test_a_traceback_follows_the_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_, last = written(capsys, "console", "ERROR", error=True)
    assert first.endswith(f"topic {ESCAPED} [broker.test]")
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: why"


def test_a_traceback_is_part_of_the_line_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = written(capsys, "json", "ERROR", error=True)
    assert json.loads(line)["exception"].splitlines()[-1] == "ValueError: why"
