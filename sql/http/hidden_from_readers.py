"""What readers without credentials do not see: paths, names of hosts, the operating system, the
inside of the process, and the statements of other people.

The engine lets every role read its database `system`, whatever is revoked. So the statement is
looked at, as the engine writes it back and in its syntax tree (see access.py):

* of the tables of `system` only those in `SHOWN_TABLES` may be named;
* of `PRIVATE_COLUMNS` the columns may not be named. `*` over such a table gets `EXCEPT` with their
  names (`without_private`), and is then checked in the tree; COLUMNS() is refused;
* some functions may not be called.

What a name stands for is then looked up where the engine has resolved it (resolved.py).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from pathlib import Path

from brokerhouse.common.text_table import word_set
from brokerhouse.sql.http.errors import SqlError, access_denied, needs_sql_user
from brokerhouse.sql.http.text import Token, TokenKind, tokens, unquote

DISPLAY_NAME = "brokerhouse"
"""Of the server, in place of its host's name."""

SHOWN_TABLES = word_set("""
    aggregate_function_combinators codecs collations columns completions constraints contributors
    current_roles data_skipping_index_types data_skipping_indices data_type_families
    database_engines dictionary_layouts dictionary_sources dimensional_metrics disk_types
    documentation enabled_roles events formats functions grants graphite_retentions
    histogram_metrics hypothetical_indexes hypothetical_projections keywords licenses
    merge_tree_settings metrics numbers numbers_mt one primes privileges projections quota_limits
    quota_usage quotas quotas_usage replicated_merge_tree_settings role_grants roles row_policies
    settings settings_changes settings_profile_elements settings_profiles statements
    storage_policies table_engines table_functions time_zones tokenizers unicode users zeros
    zeros_mt
""")
PRIVATE_COLUMNS = {
    "clusters": {"host_name", "host_address"},
    "databases": {"data_path", "metadata_path"},
    "detached_parts": {"path"},
    "detached_tables": {"metadata_path"},
    "dictionaries": {"source", "last_exception"},
    "disks": {"path", "cache_path"},
    "dropped_tables": {"metadata_dropped_path"},
    "dropped_tables_parts": {"path"},
    "merges": {"source_part_paths", "result_part_path"},
    "moves": {"target_disk_path"},
    "mutations": {"latest_fail_reason", "parts_postpone_reasons"},
    "parts": {"path"},
    "parts_columns": {"path"},
    "projection_parts": {"path"},
    "projection_parts_columns": {"path"},
    "tables": {"data_paths", "metadata_path"},
    "view_refreshes": {"exception"},
}
# In lower case. Those without an argument are only refused where they are called, because their
# names are ordinary names of columns.
_CALLS = word_set("""
    hostname fqdn fullhostname displayname getoskernelversion buildid serveruuid tcpport tid
    uptime
""")
_NAMES = frozenset({"getserversetting", "getserverport", "getmacro"})

TREE_LINE = re.compile(r"( *)(\S+)(?: (\S+))?")
"""Of EXPLAIN AST: its depth, its node, and the first word behind it."""
_WORD = re.compile(r"\w+")
_NAME_LINE = re.compile(r" *(TableIdentifier|Identifier) (\S+)")
_CTE_LINE = re.compile(r" *WithElement")
_MATCHER = re.compile(r"(?:Qualified)?(?:Asterisk|Columns(?:Regexp|List)Matcher)")


class AllColumnsWanted(SqlError):
    """A statement asks for all columns of a table that has private ones."""

    def __init__(self, table: str, private: frozenset[str]) -> None:
        error = access_denied(
            f"Name the columns that you want of system.{table}:"
            f" without credentials {', '.join(sorted(private))} cannot be read."
        )
        super().__init__(error.code, error.message)
        self.private = private


def refuse_private(
    words: Sequence[Token], tree: str, database: str, params: Mapping[str, str]
) -> bool:
    """Raises ACCESS_DENIED for a statement that would show what is private.

    `tree`: the lines of its syntax tree. `database`: where tables are that it names without one.
    Returns whether it may name what is private in a way that is only seen in resolved.py.
    """
    _refuse_functions(words, params)
    if words[0].is_word(b"SHOW"):
        _refuse_in_show(words)
    if len(words) > 1 and words[1].is_word(b"PROCESSLIST"):
        raise needs_sql_user("SHOW PROCESSLIST is not available without credentials.")
    for function in (b"MERGE", b"LOOP"):  # the tables that they read may be named by strings
        if any(one.is_word(function) and two.is_sign(b"(") for one, two in pairwise(words)):
            raise needs_sql_user(
                f"{function.decode().lower()} is not available without credentials."
            )
    tables = _system_tables(tree, database)
    for table in tables:
        if table not in SHOWN_TABLES and table not in PRIVATE_COLUMNS:
            raise needs_sql_user(f"system.{table} is not available without credentials.")
    private = frozenset(column for table in tables for column in PRIVATE_COLUMNS.get(table, ()))
    if not private:
        return database == "system" or _names_system(words, params)
    _refuse_line_breaks(words, params)
    if any(word.is_word(b"NATURAL") for word in words):
        # Before resolved.py: an error of what it runs could tell what was compared.
        raise access_denied(
            f"NATURAL JOIN would compare private columns of system.{min(tables)}: use USING or ON."
        )
    names = set(_names_used(words)) | set(_columns_in(tree))
    if hidden := sorted(private & names):
        raise needs_sql_user(f"The column {hidden[0]} is not available without credentials.")
    if _wants_all_columns(tree, private):
        raise AllColumnsWanted(min(tables & PRIVATE_COLUMNS.keys()), private)
    return True


def _names_system(words: Sequence[Token], params: Mapping[str, str]) -> bool:
    """Whether the database `system` is named, maybe in a place that the tree does not show."""
    return any("system" in value for value in params.values()) or any(
        _is_name(word) and unquote(word) == b"system" for word in words
    )


_IN_FUNCTION = re.compile(rb"\w*in(?:ignoreset)?", re.IGNORECASE)


def _refuse_in_show(words: Sequence[Token]) -> None:
    """The tree does not show the WHERE of SHOW, which may name every column of `system.tables`."""
    start = next((index for index, word in enumerate(words) if word.is_word(b"WHERE")), len(words))
    for index, word in enumerate(words[start:], start):
        after = words[index + 1] if index + 1 < len(words) else None
        is_call = _is_name(word) and after is not None and after.is_sign(b"(")
        if word.is_sign(b"*", b"{") or (is_call and word.is_word(b"COLUMNS")):
            raise access_denied("Name the columns in the WHERE of SHOW: no *, COLUMNS, parameters.")
        if _is_name(word) and unquote(word).decode("utf-8", "replace") in _ALL_PRIVATE:
            name = unquote(word).decode("utf-8", "replace")
            raise needs_sql_user(f"The column {name} is not available without credentials.")
        is_in = word.is_word(b"IN") or (is_call and _IN_FUNCTION.fullmatch(unquote(word)))
        if is_in and not _are_literals(words[index + 1 :]):
            raise access_denied("In the WHERE of SHOW a list of literals follows IN.")


def _are_literals(words: Sequence[Token]) -> bool:
    """Whether these words begin with a list of literals in parentheses."""
    if not (words and words[0].is_sign(b"(")):
        return False
    for word in words[1:]:
        if word.is_sign(b")"):
            return True
        if not (word.kind in (TokenKind.STRING, TokenKind.NUMBER) or word.is_sign(b",", b"-")):
            return False
    return False


def _refuse_functions(words: Sequence[Token], params: Mapping[str, str]) -> None:
    for word, after in zip_longest(words, islice(words, 1, None)):
        if not _is_name(word):
            continue
        name = unquote(word).decode("utf-8", "replace")
        called = after is not None and after.is_sign(b"(")
        if name.lower() in _NAMES or (called and name.lower() in _CALLS):
            raise needs_sql_user(f"The function {name} is not available without credentials.")
    for value in params.values():
        if value.lower() in _NAMES:
            raise needs_sql_user(f"The function {value} is not available without credentials.")


def _system_tables(tree: str, database: str) -> set[str]:
    """Names without `system.` of the tables of that database that a statement may read."""
    found = set()
    has_cte = False
    for line in lines_of(tree):
        has_cte = has_cte or _CTE_LINE.match(line) is not None
        match = _NAME_LINE.match(line)
        if match is None:
            continue
        is_table, name = match[1] == "TableIdentifier", match[2]
        if name.startswith("system."):
            table = name.removeprefix("system.")
            # An identifier may be a column of something that is called `system`.
            if is_table or table in _KNOWN or table in _HIDDEN:
                found.add(table)
        elif (database == "system" and "." not in name) and (
            # It may also be the name of a subquery (WITH), or of a column.
            name in _KNOWN or name in _HIDDEN or (is_table and not has_cte)
        ):
            found.add(name)
    return found


def lines_of(tree: str) -> Iterator[str]:
    """As `split` gives them, one at a time: a tree may be long."""
    start = 0
    while (end := tree.find("\n", start)) >= 0:
        yield tree[start:end]
        start = end + 1
    yield tree[start:]


def _refuse_line_breaks(words: Sequence[Token], params: Mapping[str, str]) -> None:
    """What follows a line break in a name would look like a line of the tree.

    The engine writes such a name with a backslash.
    """
    names = (word.text for word in words if word.kind is TokenKind.QUOTED)
    if any(b"\\" in name or b"\n" in name for name in names) or any(
        "\n" in value or "\\n" in value for value in params.values()
    ):
        raise access_denied("A name with a line break is not available here.")


def _names_used(words: Sequence[Token]) -> Iterator[str]:
    """Every name in the statement, but not those that `* EXCEPT (a, b)` leaves out."""
    left_out = 0
    for index, word in enumerate(words):
        if word.is_word(b"EXCEPT") and words[index - 1].is_sign(b"*"):
            left_out = _length_of_list(words, index + 1)
        elif left_out:
            left_out -= 1
        elif _is_name(word):
            yield unquote(word).decode("utf-8", "replace")


def _length_of_list(words: Sequence[Token], start: int) -> int:
    """How many words the list of names `a` or `(a, b)` has that begins there; 0: it is none."""
    if start >= len(words) or words[start].is_word(b"SELECT"):
        return 0
    if not words[start].is_sign(b"("):
        return 1
    for index in range(start + 1, len(words)):
        if words[index].is_sign(b")"):
            return index + 1 - start
        is_name = (index - start) % 2 == 1
        if not (_is_name(words[index]) if is_name else words[index].is_sign(b",")):
            return 0
    return 0


def _columns_in(tree: str) -> Iterator[str]:
    """The columns that the tree names, also by parameters; not those that EXCEPT leaves out.

    A name may have blanks and points in it: every word of the line counts.
    """
    parents: list[str] = []
    for line in lines_of(tree):
        match = TREE_LINE.match(line)
        if match is None:
            continue
        depth, node = len(match[1]), match[2]
        del parents[depth:]
        if node == "Identifier" and not (parents and parents[-1] == "ColumnsExceptTransformer"):
            yield from _WORD.findall(line, match.end(2))
        parents.append(node)


def _wants_all_columns(tree: str, private: frozenset[str]) -> bool:
    """Whether the statement asks for columns without naming them, and does not leave out the
    private ones before anything else is done to them. `count(*)` asks for none.
    """
    counted = -1  # the depth of what the last `count` would count
    matcher = -1  # the depth of the last one
    shown: set[str] = set()  # by it
    transformers = 0  # of it
    leaves_out = False  # the transformer that the lines are of
    for line in lines_of(tree):
        match = TREE_LINE.match(line)
        if match is None:
            continue
        depth, node, name = len(match[1]), match[2], match[3] or ""
        if matcher >= 0 and depth <= matcher:
            if shown:
                return True
            matcher = -1
        if _MATCHER.fullmatch(node):
            if depth != counted:
                matcher, shown, transformers = depth, set(private), 0
        elif matcher >= 0 and depth == matcher + 2:
            transformers += 1
            leaves_out = node == "ColumnsExceptTransformer" and transformers == 1
        elif matcher >= 0 and depth == matcher + 3 and leaves_out and node == "Identifier":
            shown.discard(name)
        if node == "Function" and name == "count":
            counted = depth + 2
        elif depth < counted - 1:
            counted = -1
    return matcher >= 0 and bool(shown)


def without_private(sql: bytes, private: frozenset[str]) -> bytes:
    """The same statement, where every `*` leaves these columns out.

    What is wrongly taken for a product stays as it is, and is refused by the check that follows.
    """
    found = list(tokens(sql))
    left_out = b" EXCEPT (%b)" % b", ".join(name.encode() for name in sorted(private))
    text, copied = bytearray(), 0
    for index, token in enumerate(found):
        if token.is_sign(b"*") and index > 0 and _asks_for_columns(found, index):
            text += sql[copied : token.end] + left_out
            copied = token.end
    return bytes(text + sql[copied:])


def _asks_for_columns(found: Sequence[Token], index: int) -> bool:
    """Whether this `*` is neither a product nor that of `count(*)`."""
    before = found[index - 1]
    if before.is_sign(b"("):
        return index < 2 or not found[index - 2].is_word(b"COUNT")
    return before.is_sign(b",", b".") or before.is_word(b"SELECT", b"DISTINCT")


_KNOWN = SHOWN_TABLES | PRIVATE_COLUMNS.keys()
_ALL_PRIVATE = frozenset().union(*PRIVATE_COLUMNS.values())
# Every other table of `system` (chdb-core 26.9). tests/clients/test_http_hidden_from_readers.py
# holds them against the engine.
_HIDDEN = word_set("""
    asynchronous_inserts asynchronous_loader azure_queue_metadata azure_queue_metadata_cache
    azure_queue_settings background_schedule_pool backups build_options certificates dashboards
    database_replicas distributed_ddl_queue distribution_queue dns_cache errors fail_points
    filesystem_cache filesystem_cache_settings handlers iceberg_files iceberg_history
    jemalloc_arena_bins jemalloc_bins jemalloc_profile_text jemalloc_sampled_allocations
    jemalloc_stats kafka_consumers macros masking_policies named_collections
    part_moves_between_shards processes query_cache query_condition_cache query_views_log
    remote_data_paths replicas replicated_fetches replication_queue resources rocksdb
    s3_queue_metadata s3_queue_settings s3queue_metadata_cache scheduler schema_inference_cache
    server_settings session_query_ids stack_trace symbols user_defined_functions user_directories
    user_processes user_query_log warnings workloads
""")


def _is_name(word: Token) -> bool:
    return word.kind in (TokenKind.WORD, TokenKind.QUOTED)


@dataclass(frozen=True, slots=True)
class PrivateText:
    """Takes the data directory and the host's name out of error messages."""

    data_dir: Path

    def removed_from(self, text: str) -> str:
        for path in {str(self.data_dir.resolve()), str(self.data_dir.absolute())}:
            text = text.replace(path, "<data_dir>")
        host = socket.gethostname()
        return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", DISPLAY_NAME, text)
