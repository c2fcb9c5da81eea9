"""Brokers that are broken on purpose: copies of the code with a change that breaks one rule."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.server_process import PROJECT

PACKAGES = ("broker", "common", "coordinator", "feeds", "protocol", "sql", "storage")


@dataclass(frozen=True, slots=True)
class Change:
    """`text` occurs in the file exactly once, so that a change cannot silently have no effect."""

    file: str
    text: str
    instead: str


def broken_copy(changes: Iterable[Change], directory: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            PROJECT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for change in changes:
        path = directory / change.file
        text = path.read_text()
        assert text.count(change.text) == 1, f"{change.text!r} in {change.file}"
        path.write_text(text.replace(change.text, change.instead))
    return directory
