"""The long SQL statements of the project, one per file: sql/queries/NAME.sql.

A file begins with a comment that says what the statement answers or does, and lists its parameters,
which are bound by ClickHouse: `{name:Type}`. Table names that depend on where the tables are (a
shard or the whole cluster) are placeholders: `${database}`. So is a condition that several
statements share (broker/log/partition_sql.py), or that differs among those who ask: `${condition}`.
Values that a client sent are never placeholders.

Statements that fit on one line stay where they run, and so do statements that are put together from
the columns of a table (feeds/statements.py).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from string import Template

_COMMENT_LINE = re.compile(r"^--.*\n", re.MULTILINE)


def query(name: str, **placeholders: str) -> str:
    """The query of NAME.sql without its comment lines and its `;`, its placeholders filled in.

    Raises FileNotFoundError, and KeyError for a placeholder that is not given.
    """
    text = _read(name)
    return Template(text).substitute(placeholders) if "${" in text else text


@cache
def _read(name: str) -> str:
    text = files("brokerhouse.sql.queries").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return _COMMENT_LINE.sub("", text).strip().removesuffix(";")
