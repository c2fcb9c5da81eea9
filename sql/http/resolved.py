"""What a reader's statement names once the engine has resolved it: parameters, aliases, `*`,
COLUMNS('...'), USING and NATURAL JOIN become tables and columns (EXPLAIN QUERY TREE).

hidden_from_readers.py looks at the text and at the syntax tree, where a name can be written in many
ways. Here a line for a table or a column of the database `system` always looks the same, whatever
names a client makes up: those can only add lines, and so refusals.

The engine does not resolve the query that is the argument of the table function `view`, and what
EXPLAIN and DESCRIBE look at, though it runs subqueries of it. So each such query is resolved by
itself: no name of the statement around it is known there.

Cost (chdb-core 26.9, 2 cores): 1 to 2 ms, for statements that read a table with private columns
or use the database `system`, and only for readers. Subqueries that stand for one value run, because
the engine needs their types; then they run a second time with the statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set

from brokerhouse.sql.http.errors import access_denied, needs_sql_user
from brokerhouse.sql.http.hidden_from_readers import PRIVATE_COLUMNS, SHOWN_TABLES, lines_of
from brokerhouse.sql.http.text import Token, TokenKind, output_clauses, tokens, unquote

_FIRST_LINE = re.compile(r"(?:QUERY|UNION) id: 0\b")
_LINE = re.compile(r"( *)(.*)")
_TABLE = re.compile(r"\btable_name: system\.(\w+)")
_COLUMN = re.compile(r"\bcolumn_name: (\w+)")


def refuse_resolved(explain: Callable[[bytes], str], sql: bytes) -> None:
    """Raises ACCESS_DENIED if `sql` reads what readers do not see, as hidden_from_readers.py says.

    `explain`: runs one statement of the server's own, and returns its lines.
    """
    for query in _queries(sql):
        _refuse_query(explain, query)


def _queries(sql: bytes) -> Iterator[bytes]:
    """What the statement reads with: itself, if it is a SELECT, or what it explains or describes;
    and the argument of each `view`. Other statements read no rows of tables.
    """
    found = tokens(sql)
    first = next(found, None)
    if first is None:
        return
    if _begins_query(first):
        yield sql
    elif first.is_word(b"EXPLAIN"):
        start = next((token.start for token in found if _begins_query(token)), None)
        if start is not None:
            yield sql[start:]
    elif first.is_word(b"DESCRIBE", b"DESC"):
        what = next(found, None)
        if what is not None and what.is_word(b"TABLE"):
            what = next(found, None)
        if what is not None and any(token.is_sign(b"(") for token in tokens(sql, what.start)):
            yield b"SELECT 1 FROM " + sql[what.start :]
    yield from _views(sql)


def _begins_query(token: Token) -> bool:
    return token.is_word(b"SELECT", b"WITH", b"FROM") or token.is_sign(b"(")


def _views(sql: bytes) -> Iterator[bytes]:
    """The queries in `view(...)`, also those within others."""
    open_since: list[int | None] = []
    is_view = False  # whether the token before is its name
    for token in tokens(sql):
        if token.is_sign(b"("):
            open_since.append(token.end if is_view else None)
        elif token.is_sign(b")") and open_since:
            start = open_since.pop()
            if start is not None:
                yield sql[start : token.start]
        is_name = token.kind in (TokenKind.WORD, TokenKind.QUOTED)
        is_view = is_name and unquote(token).lower() == b"view"


def _refuse_query(explain: Callable[[bytes], str], sql: bytes) -> None:
    tree = explain(b"EXPLAIN QUERY TREE passes = 1 " + _without_format(sql))
    if _FIRST_LINE.match(tree) is None:
        raise access_denied("With these settings the server cannot check the statement.")
    tables = set(_tables(tree))
    for table in sorted(tables - SHOWN_TABLES - PRIVATE_COLUMNS.keys()):
        raise needs_sql_user(f"system.{table} is not available without credentials.")
    private = {column for table in tables for column in PRIVATE_COLUMNS.get(table, ())}
    for column in sorted(private & set(_COLUMN.findall(tree))):
        raise needs_sql_user(f"The column {column} is not available without credentials.")
    for table in sorted(_compared(tree) & PRIVATE_COLUMNS.keys()):
        raise access_denied(
            f"IN system.{table} would compare all of its columns: without credentials use"
            " IN (SELECT ...) with the columns that you want."
        )


def _without_format(sql: bytes) -> bytes:
    """The statement without its FORMAT clause, which would be that of the EXPLAIN."""
    clause = output_clauses(sql)[0]
    if clause.format is None:
        return sql[: clause.position]
    found = tokens(sql, clause.position)
    next(found)  # FORMAT
    return sql[: clause.position] + b" " + sql[next(found).end :]


def _tables(tree: str) -> Iterator[str]:
    for line in lines_of(tree):
        yield from _TABLE.findall(line)


def _compared(tree: str) -> Set[str]:
    """The tables that stand in a list of arguments: on the right of IN."""
    found: set[str] = set()
    parents: list[tuple[int, str]] = []
    for line in lines_of(tree):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        depth, text = len(match[1]), match[2]
        while parents and parents[-1][0] >= depth:
            parents.pop()
        if parents and parents[-1][1].startswith("LIST "):
            found.update(_TABLE.findall(text))
        parents.append((depth, text))
    return found
