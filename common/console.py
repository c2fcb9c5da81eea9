"""Output for a terminal: tables, and untrusted text made safe to print."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # `rich` is imported where something is drawn: most of --help's time otherwise.
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Draws tables as wide as the terminal; without a terminal, lines are never folded."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=1000)


def new_table(*headings: str, right: Collection[str] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def printable(text: str) -> str:
    """Untrusted text, with the same escapes as `escaped`."""
    return escaped(text.encode("utf-8", "surrogateescape"))


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escaped(data: bytes | None) -> str:
    """Bytes as one printable line: a record must not be able to control the reader's terminal."""
    if data is None:
        return "\\N"
    text = data.decode("utf-8", "surrogateescape")
    return text if text.isprintable() and "\\" not in text else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
