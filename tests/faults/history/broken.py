"""Brokers that are broken on purpose: copies of the code with a change that breaks one rule."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.server_process import PROJECT


@dataclass(frozen=True, slots=True)
class Change:
    """`text` occurs in the file exactly once, so that a change cannot silently have no effect."""

    file: str
    text: str
    instead: str


def broken_copy(changes: Iterable[Change], directory: Path) -> Path:
    package, without = directory / "brokerhouse", shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "brokerhouse", package, ignore=without)
    for change in changes:
        path = package / change.file
        text = path.read_text()
        assert text.count(change.text) == 1, f"{change.text!r} in {change.file}"
        path.write_text(text.replace(change.text, change.instead))
    return directory
