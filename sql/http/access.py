"""What a person's SQL may do, decided by the engine's own parser.

Three layers, each of which stops most attempts by itself:

1. Roles and settings constraints in the engine's configuration (storage/sql_access.xml): a handle
   that serves people is narrowed with SET ROLE, and settings that reach files, other dialects or
   other limits are fixed.
2. The class that the engine gives a statement: a reader's statement has to be read-only, and the
   only one in its text.
3. What grants do not cover is looked for in the statement as the engine writes it back
   (formatQuery) and in its syntax tree (EXPLAIN AST), where comments, letter case, quoting and
   escapes are gone: the function `file`, table functions that reach outside, views that run with
   the rights of another user. What readers do not see:
   hidden_from_readers.py, and resolved.py for names as the engine resolves them. One table function
   may be allowed, `icebergLocal`: then the roles have the right to read files below one directory.

What a person's CREATE may define: the engine's own parser says what the engine of a definition is,
apart from the functions in its ORDER BY, PARTITION BY and TTL (parseQueryToJSON, chdb-core 26.9).
What is not known is refused. A dictionary is loaded in the background with the rights of the
engine, so whatever its source says would run with them: a source names a table, and no SQL.

In the broker's own database a writer may only add rows to JOB_TABLES, and only by INSERT. The right
to INSERT would also allow moving parts in and views that write there: both are refused.

Measured against chdb-core 26.9: `file('/etc/passwd')`, `arrayMap(file, [...])`, `* APPLY(file)` and
an identifier parameter that names `file` all read any file although the role has no right to files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

from brokerhouse.common.text_table import word_set
from brokerhouse.sql.http.engine import WHOLE, Handle, run
from brokerhouse.sql.http.errors import (
    STD_EXCEPTION,
    SYNTAX_ERROR,
    SqlError,
    access_denied,
    needs_sql_user,
    sql_error,
)
from brokerhouse.sql.http.hidden_from_readers import TREE_LINE, lines_of, refuse_private
from brokerhouse.sql.http.resolved import refuse_resolved
from brokerhouse.sql.http.text import Token, TokenKind, literal, tokens, unquote

TREE_MAX_BYTES = 64 * 1024 * 1024
"""Each line is indented by its depth, so a short text can have a large tree."""


class Role(Enum):
    READER = "reader"
    WRITER = "writer"


class Action(Enum):
    """How a statement is run."""

    READ = "read"  # streams a result
    WRITE = "write"  # changes tables; its result, if any, is small
    SESSION = "session"  # SET, USE, temporary tables: acts on the session alone


def judge(
    handle: Handle,
    sql: bytes,
    params: Mapping[str, str],
    role: Role,
    *,
    mark: bytes = b"",
    iceberg: bool = False,
) -> Action:
    """How to run this statement. SqlError if it does not parse or this role may not run it.

    `handle` is already narrowed to the role. Nothing of `sql` is executed, but for what resolved.py
    says; `mark` begins that. `iceberg`: it may read local Iceberg tables, of which the role's
    rights say where they are.
    """
    query_class = only_statement(handle, sql)
    database, canonical = _canonical(handle, sql)
    words = list(_shared(tokens(canonical)))
    action = _action(words, query_class, role)
    _refuse_file_function(words, params)
    if role is Role.WRITER and action is not Action.READ:
        _refuse_borrowed_rights(words)
        _refuse_other_ways_in(words, database, params)
    if action is not Action.SESSION or words[0].is_word(b"CREATE"):
        tree = _syntax_tree(handle, sql, params)
        definitions = _refuse_outside(tree, _WITH_ICEBERG if iceberg else _TABLE_FUNCTIONS)
        _refuse_hidden_subqueries(words, tree)
        if definitions:
            refuse_definitions(_parsed(handle, sql), definitions)
        if role is Role.READER and refuse_private(words, tree, database, params):
            refuse_resolved(lambda text: _lines(handle, mark + text, params), sql)
    return action


_LITERAL = Token(TokenKind.STRING, 0, 0, b"''")


def _shared(found: Iterable[Token]) -> Iterator[Token]:
    """The same tokens without their positions: each once in memory, and one for all literals.

    A list of a million numbers would otherwise take 200 MB.
    """
    seen: dict[bytes, Token] = {}
    for token in found:
        if token.kind in (TokenKind.NUMBER, TokenKind.STRING):
            yield _LITERAL
        else:
            yield seen.setdefault(token.text, token)


def only_statement(handle: Handle, sql: bytes) -> str:
    """The class that the engine gives `sql`. SqlError unless it is one statement."""
    report = handle.classify_query(sql)
    if report["statement_count"] == 0:
        raise _why_not(handle, sql)
    if report["statement_count"] > 1:
        raise sql_error(SYNTAX_ERROR, "SYNTAX_ERROR", "Multi-statements are not allowed")
    query_class: str = report["query_class"].name
    return query_class


def _action(words: list[Token], query_class: str, role: Role) -> Action:
    if query_class == "READ_ONLY":
        return Action.READ
    first, second = words[0], words[1] if len(words) > 1 else words[0]
    if first.is_word(b"USE") or (
        first.is_word(b"SET") and not second.is_word(b"ROLE", b"DEFAULT", b"TRANSACTION")
    ):
        return Action.SESSION
    if role is Role.READER:
        raise needs_sql_user(_READ_ONLY)
    if first.is_word(b"CREATE") and second.is_word(b"TEMPORARY"):
        return Action.SESSION
    # An INSERT into a temporary table counts as more than a change of tables when the database is
    # `system`.
    into_table = first.is_word(b"INSERT") and not any(
        word.is_word(b"FUNCTION") for word in words[:4]
    )
    if query_class == "MUTATING" or into_table or _acts_on_one(words):
        return Action.WRITE
    if any(one.is_word(b"INTO") and two.is_word(b"OUTFILE") for one, two in pairwise(words)):
        raise access_denied("INTO OUTFILE would write a file of the server: leave it out.")
    name = " ".join(word.text.decode("ascii", "replace") for word in words[:2])
    raise access_denied(f"This server does not run {name} statements for its users.")


def _acts_on_one(words: list[Token]) -> bool:
    """Whether this is a SYSTEM statement about one view or dictionary, for which grants exist."""
    if len(words) < 4 or not words[0].is_word(b"SYSTEM"):
        return False
    _, verb, kind = words[:3]
    return (
        verb.is_word(b"REFRESH", b"WAIT", b"CANCEL", b"STOP", b"START") and kind.is_word(b"VIEW")
    ) or (verb.is_word(b"RELOAD") and kind.is_word(b"DICTIONARY"))


_READ_ONLY = (
    "Without credentials SQL is read-only:"
    " only a single SELECT, SHOW, DESCRIBE, EXPLAIN or EXISTS runs."
)


def _refuse_file_function(words: list[Token], params: Mapping[str, str]) -> None:
    """The function `file` reads any file, and higher-order functions take it by its bare name."""
    named = [index for index, word in enumerate(words) if _is_file(word)]
    for index in named:
        after = words[index + 1] if index + 1 < len(words) else None
        qualified = index > 0 and words[index - 1].is_sign(b".")
        qualifies = after is not None and after.is_sign(b".")
        if not (qualified or qualifies) or (after is not None and after.is_sign(b"(")):
            raise _refuse_name()
    for name in _identifier_parameters(words):
        value = params.get(name)
        if value is None or value == "file" or "\\" in value:
            raise _refuse_name()


def _identifier_parameters(words: list[Token]) -> Iterator[str]:
    """Names of the parameters `{name:Identifier}`, whose values become part of the statement."""
    for brace, name, colon, kind in zip(words, words[1:], words[2:], words[3:], strict=False):
        if brace.is_sign(b"{") and colon.is_sign(b":") and kind.is_word(b"IDENTIFIER"):
            yield unquote(name).decode("utf-8", "replace")


def _is_file(word: Token) -> bool:
    return word.kind in (TokenKind.WORD, TokenKind.QUOTED) and unquote(word) == b"file"


def _refuse_name() -> SqlError:
    return access_denied(
        "The function `file` is not available here;"
        " a column or table of that name has to be qualified, as in t.file."
    )


def _refuse_borrowed_rights(words: list[Token]) -> None:
    """Ways around the role: views with the rights of another user, disks and files anywhere."""
    for one, two in pairwise(words):
        if one.is_word(b"SQL") and two.is_word(b"SECURITY"):
            raise access_denied("The SQL SECURITY of a view cannot be set here.")
        if one.is_word(b"FROM") and two.is_word(b"INFILE"):
            raise access_denied("INFILE would read a file of the server: send the data instead.")
        if unquote(one) == b"disk" and two.is_sign(b"("):
            raise access_denied("A disk cannot be defined here.")


# Tables of database `brokerhouse` that jobs and `brokerhouse tables` add rows to. The file
# storage/sql_access.xml grants the same.
JOB_TABLES = frozenset({"lag_history", "lag_alerts", "compaction_removals", "table_feed_versions"})


def _refuse_other_ways_in(words: list[Token], database: str, params: Mapping[str, str]) -> None:
    """The right to INSERT also allows moving or attaching a partition, and a materialized view that
    writes into the table (InterpreterAlterQuery, InterpreterCreateQuery).
    """
    if words[0].is_word(b"INSERT"):
        return
    for index, word in enumerate(words):
        if word.is_word(b"TABLE", b"TO"):
            name = _compound_name(words[index + 1 :], params)
            table = name.removeprefix("brokerhouse.")
            if table in JOB_TABLES and (table != name or database == "brokerhouse"):
                raise access_denied(f"Rows can be added to {table} only by INSERT.")


def _compound_name(words: list[Token], params: Mapping[str, str]) -> str:
    """The name that these words begin with, without quotes, and with its parameters filled in."""
    parts = []
    while words:
        if words[0].is_sign(b"{"):
            parts.append(params.get(unquote(words[1]).decode("utf-8", "replace"), ""))
            words = words[5:]
        else:
            parts.append(unquote(words[0]).decode("utf-8", "replace"))
            words = words[1:]
        if not (words and words[0].is_sign(b".")):
            break
        words = words[1:]
    return ".".join(parts)


# Table functions that read nothing but the engine's own tables, or nothing at all. In lower case,
# because the engine takes some of them in any: the JDBC driver writes VALUES.
_TABLE_FUNCTIONS = word_set("""
    dictionary fuzzjson generaterandom generateseries generate_series input loop merge
    mergetreeindex mergetreeprojection null numbers numbers_mt primes sqlstandardvalues values
    view viewexplain zeros zeros_mt
""")
_WITH_ICEBERG = _TABLE_FUNCTIONS | {"iceberglocal"}
_OVER_TABLE_FUNCTIONS = ("TableExpression", "CreateQuery", "InsertQuery")


def _refuse_outside(tree: str, table_functions: frozenset[str]) -> int:
    """Returns how many definitions of storages and dictionaries the statement has."""
    parents: list[str] = []
    definitions = 0
    for line in lines_of(tree):
        match = TREE_LINE.match(line)
        if match is None:
            continue
        depth, node, name = len(match[1]), match[2], match[3]
        if depth > len(parents) or (depth == 0 and parents):
            # A name with a line break in it can make the tree look like another one.
            raise access_denied("A name with a line break is not available here.")
        del parents[depth:]
        parent = parents[-1] if parents else ""
        parents.append(node)
        if node in ("Storage", "Dictionary") and name == "definition":
            definitions += 1
        elif (
            node == "Function"
            and parent in _OVER_TABLE_FUNCTIONS
            and str(name).lower() not in table_functions
        ):
            raise access_denied(f"Table function {name} is not available here.")
    return definitions


_SELECT_LINE = re.compile(r" *\w*SelectQuery\b")


def _refuse_hidden_subqueries(words: list[Token], tree: str) -> None:
    """The tree leaves out WHERE and LIMIT of SHOW, and what APPLY(x -> ...) does: nobody could see
    what a subquery there reads. Each SELECT of the statement has to be in the tree.
    """
    if words[0].is_word(b"CHECK"):  # CHECK GRANT SELECT ON ...
        return
    seen = sum(_SELECT_LINE.match(line) is not None for line in lines_of(tree))
    if sum(word.is_word(b"SELECT") for word in words) > seen:
        raise access_denied("A subquery cannot be part of SHOW, or of APPLY with a lambda.")


def _canonical(handle: Handle, sql: bytes) -> tuple[str, bytes]:
    """The handle's database, and the statement as the engine writes it."""
    statement = b"SELECT currentDatabase(), formatQuerySingleLine(" + literal(sql) + b")" + WHOLE
    database, _, canonical = _told(handle, statement).partition(b"\t")
    return database.decode("utf-8", "replace"), canonical


def _told(handle: Handle, statement: bytes, params: Mapping[str, str] | None = None) -> bytes:
    """What the engine says about a client's statement.

    The client's settings hold here, too: one that leaves nothing of the answer must not leave
    nothing to check.
    """
    answer = run(handle, statement, "TSVRaw", params).bytes()
    if not answer.strip():
        raise access_denied("With these settings the server cannot check the statement.")
    return answer


def _parsed(handle: Handle, sql: bytes) -> bytes:
    return _told(handle, b"SELECT parseQueryToJSON(" + literal(sql) + b")" + WHOLE)


def _syntax_tree(handle: Handle, sql: bytes, params: Mapping[str, str]) -> str:
    return _lines(handle, b"EXPLAIN AST " + sql, params)


def _lines(handle: Handle, statement: bytes, params: Mapping[str, str]) -> str:
    """What an EXPLAIN says about a client's statement."""
    tree = _told(handle, statement, params)
    if len(tree) > TREE_MAX_BYTES:
        raise sql_error(
            SYNTAX_ERROR,
            "SYNTAX_ERROR",
            f"Syntax error: the syntax tree has {len(tree)} bytes, and may have {TREE_MAX_BYTES}",
        )
    return tree.decode("utf-8", "replace")


_OWN_SCOPE = re.compile(
    r": In scope SELECT currentDatabase\(\), formatQuerySingleLine\(.*\)"
    r"(?: SETTINGS limit = 0, offset = 0, use_query_cache = 0)?\.",
    re.DOTALL,
)


def _why_not(handle: Handle, sql: bytes) -> SqlError:
    """Why `sql` does not parse."""
    if not any(True for _ in tokens(sql)):
        return sql_error(SYNTAX_ERROR, "SYNTAX_ERROR", "Syntax error: empty query")
    try:
        _canonical(handle, sql)
    except SqlError as error:
        # The engine adds the query in which it found the error, which is not the client's. Once in
        # many thousand times its error has neither text nor code; that the statement does not
        # parse is known all the same.
        if error.code != STD_EXCEPTION:
            return SqlError(error.code, _OWN_SCOPE.sub("", error.message))
    return sql_error(
        SYNTAX_ERROR, "SYNTAX_ERROR", "Syntax error: not a statement that this server can run"
    )


# Table engines that keep data here. Others forward rows to another table with rights of their own,
# or reach outside.
_ENGINES = re.compile(
    r"(?:|Replacing|Summing|Aggregating|Collapsing|VersionedCollapsing|Graphite|Coalescing)MergeTree"
    r"|Memory|Log|TinyLog|StripeLog|Null|Set|Join|GenerateRandom|Dictionary|Atomic"
)
# https://clickhouse.com/docs/sql-reference/statements/create/dictionary/layouts: all but the
# layouts that keep their data in a file.
_LAYOUTS = re.compile(
    r"flat|(?:complex_key_)?(?:sparse_)?hashed|(?:complex_key_)?hashed_array"
    r"|(?:complex_key_)?range_hashed|(?:complex_key_)?cache|(?:complex_key_)?direct"
    r"|ip_trie|polygon(?:_simple|_index_each|_index_cell)?"
)
_DICTIONARY_PARTS = {"type", "primary_key", "source", "lifetime", "layout", "range"}
_SOURCE_KEYS = ("table", "db")

_Node = dict[str, Any]


def refuse_definitions(parsed: bytes, definitions: int) -> None:
    """Raises ACCESS_DENIED for a definition that could reach outside, or borrows rights.

    `parsed`: the statement as parseQueryToJSON gives it. `definitions`: how many its syntax tree
    has, none of which may be missing here.
    """
    try:
        found = [node for node in _nodes(json.loads(parsed)) if node.get("type") in _CHECKS]
    except (RecursionError, ValueError):
        raise access_denied("The definition is nested too deeply to be checked.") from None
    if len(found) != definitions:
        raise access_denied("A definition in this statement cannot be checked.")
    for node in found:
        _CHECKS[node["type"]](node)


def _nodes(root: Any) -> Iterator[_Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _refuse_engine(storage: _Node) -> None:
    if "engine" not in storage:
        return  # a default of the engine, which is a MergeTree or keeps data in memory
    name = storage["engine"]["name"]
    if _ENGINES.fullmatch(name) is None:
        raise access_denied(f"Engine {name} is not available here.")


def _refuse_dictionary(dictionary: _Node) -> None:
    source = dictionary.get("source", {})
    if source.get("name", "clickhouse") != "clickhouse":
        raise access_denied(f"A dictionary cannot read from {source['name']} here.")
    for pair in source.get("elements", {}).get("children", []):
        literal = pair.get("second", {})
        if pair.get("first") not in _SOURCE_KEYS or literal.get("type") != "Literal":
            raise access_denied(
                "The source of a dictionary is a table or a view of this server,"
                " as in SOURCE(CLICKHOUSE(TABLE 't' DB 'd')), and names nothing else."
            )
    layout = dictionary.get("layout", {}).get("layout_type", "flat")
    if _LAYOUTS.fullmatch(layout) is None:
        raise access_denied(f"The layout {layout} of a dictionary is not available here.")
    if unknown := dictionary.keys() - _DICTIONARY_PARTS:
        raise access_denied(f"A dictionary cannot have {min(unknown)} here.")


_CHECKS = {"Storage": _refuse_engine, "Dictionary": _refuse_dictionary}
