"""Where log lines go: stderr, one line each, for a person or as JSON for a machine.

A line may contain what a client sent. Line ends and control codes in it are escaped. What clients
cause again and again is counted instead of written: counted_lines.py.

The lines are as those of structlog, whose import takes 0.05 s of every start.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

from brokerhouse.common.counted_lines import CountingHandler, mark

PACKAGE = "brokerhouse."
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n"}
_PLAIN, _BOLD, _DIM, _BLUE = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[34m"
_GREEN, _YELLOW, _RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"


def shown_name(logger: str) -> str:
    """What people call a logger: `broker.log.lane`, which is also where its file is."""
    return logger.removeprefix(PACKAGE)


def log_to_stderr(level: str, fmt: Literal["console", "json"]) -> None:
    """Send the log lines of the broker and of every library to stderr in one format."""
    handler = CountingHandler()
    handler.setFormatter(_ForMachines() if fmt == "json" else _ForPeople(sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.server").addFilter(_of_http_client)
    logging.getLogger("asyncio").addFilter(_of_event_loop)


class _ForPeople(logging.Formatter):
    """`TIME [level    ] event [logger]`, and a traceback in lines of its own."""

    def __init__(self, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():<9}"
        name = shown_name(record.name)
        line = (
            f"{self._in(_DIM, _now())} [{self._in(_color(record.levelno) + _BOLD, level)}]"
            f" {self._in(_BOLD, _event(record))} [{self._in(_BOLD + _BLUE, name)}]"
        )
        return "\n".join((line, *self._more(record)))

    def _in(self, color: str, text: str) -> str:
        return f"{color}{text}{_PLAIN}" if self._colors else text

    def _more(self, record: logging.LogRecord) -> Iterator[str]:
        if record.stack_info:
            yield record.stack_info
        if record.exc_info:
            yield self.formatException(record.exc_info)


class _ForMachines(logging.Formatter):
    """A JSON object: event, level, logger, timestamp, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": _event(record),
            "level": record.levelname.lower(),
            "logger": shown_name(record.name),
            "timestamp": _now(),
        }
        if record.stack_info:
            line["stack_info"] = record.stack_info
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _event(record: logging.LogRecord) -> str:
    return record.getMessage().translate(_ESCAPES)


def _now() -> str:
    """Not when the record was made: a line that was counted is written up to a minute later."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _color(level: int) -> str:
    if level >= logging.ERROR:
        return _RED
    return _YELLOW if level >= logging.WARNING else _GREEN


def set_level(level: str) -> None:
    """The lowest severity that is written from now on."""
    logging.getLogger().setLevel(level.upper())


def _of_http_client(record: logging.LogRecord) -> bool:
    """Whether a record is logged. An error about bytes that are not HTTP becomes one INFO line.

    aiohttp logs them as an error of the server, with a traceback.
    """
    error = record.exc_info[1] if record.exc_info else None
    mark(record, type(error).__name__)
    # Only here: it imports aiohttp's client and server, which some processes do not use.
    from aiohttp.http_exceptions import HttpProcessingError

    if not isinstance(error, HttpProcessingError):
        return True
    record.msg = f"{record.getMessage()}: {' '.join(error.message.split())}"
    record.args = ()
    record.exc_info = None
    record.levelno, record.levelname = logging.INFO, "INFO"
    return logging.getLogger().isEnabledFor(logging.INFO)


def _of_event_loop(record: logging.LogRecord) -> bool:
    """Every error that nobody handles comes from the same line of asyncio: its text tells which."""
    mark(record, str(record.msg).partition("\n")[0][:80])
    return True
