"""Tables and lists as text: what a reader sees at once is what runs."""

from __future__ import annotations


def read_table(text: str) -> dict[str, dict[str, str]]:
    """The words of a table by row and column.

    The first line names the columns. Every other line is a row: its name, and a word for each
    column. Raises `ValueError` if a row lacks one, or if a row or column is there twice.
    """
    header, *lines = text.strip().splitlines()
    columns = header.split()
    if len(set(columns)) < len(columns):
        raise ValueError("a column is there twice")
    table: dict[str, dict[str, str]] = {}
    for line in lines:
        name, *words = line.split()
        if name in table:
            raise ValueError(f"the row {name} is there twice")
        table[name] = dict(zip(columns, words, strict=True))
    return table


def word_set(text: str) -> frozenset[str]:
    """The words of a text: a set whose elements would fill a page, one in a line."""
    return frozenset(text.split())


def read_lists(text: str) -> dict[str, tuple[str, ...]]:
    """The words of lists by their names. A line is `NAME: WORDS`; an indented one goes on.

    Raises `ValueError` if a list is there twice.
    """
    lists: dict[str, tuple[str, ...]] = {}
    for line in text.strip().replace("\n ", " ").splitlines():
        name, _, listed = line.partition(":")
        if name in lists:
            raise ValueError(f"the list {name} is there twice")
        lists[name] = tuple(listed.split())
    return lists
