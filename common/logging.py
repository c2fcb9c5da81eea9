"""Where log lines go: stderr, one line each, for a person or as JSON for a machine.

A line may contain what a client sent. Line ends and control codes in it are escaped. What clients
cause again and again is counted instead of written: counted_lines.py.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

from common.counted_lines import CountingHandler, mark

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n"}


def log_to_stderr(level: str, fmt: Literal["console", "json"]) -> None:
    """Send the log lines of the broker and of every library to stderr in one format."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
        _escape,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    handler = CountingHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.server").addFilter(_of_http_client)
    logging.getLogger("asyncio").addFilter(_of_event_loop)


def set_level(level: str) -> None:
    """The lowest severity that is written from now on."""
    logging.getLogger().setLevel(level.upper())


def _escape(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    event["event"] = str(event["event"]).translate(_ESCAPES)
    return event


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
