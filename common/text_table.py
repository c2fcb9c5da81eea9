"""Tables of rules as text: what a reader sees at once is what runs.

The first line names the columns. Every other line is a row: its name, and a word for each column.
"""

from __future__ import annotations


def read_table(text: str) -> dict[str, dict[str, str]]:
    """The words by row and column. Raises `ValueError` if a row lacks one or is there twice."""
    header, *lines = text.strip().splitlines()
    columns = header.split()
    table: dict[str, dict[str, str]] = {}
    for line in lines:
        name, *words = line.split()
        if name in table:
            raise ValueError(f"the row {name} is there twice")
        table[name] = dict(zip(columns, words, strict=True))
    return table
