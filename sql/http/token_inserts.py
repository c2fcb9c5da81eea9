"""Inserts with a deduplication token: which table, which token, and whether a broker may send it.

Brokers send one form (storage/clickhouse.py): one Native block for a table of their database, with
settings that change nothing about what is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from brokerhouse.common.text_table import word_set
from brokerhouse.sql.http.handles import StatementContext
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.text import InsertData
from brokerhouse.storage.cluster_sql import SHARD_DATABASE

_TOKEN = "insert_deduplication_token"
_TOKEN_MAX_CHARS = 500
_DEDUPLICATE = "insert_deduplicate"
_TARGET = re.compile(
    r"INSERT\s+INTO\s+(?:TABLE\s+)?(?:(\w+)\.)?(\w+)\s*(?:\((.*)\))?\s*",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_COLUMNS = re.compile(r"\s*\w+(?:\s*,\s*\w+)*\s*", re.ASCII)
_TOKEN_CLAUSE = re.compile(rf"\b{_TOKEN}\s*=\s*'([^'\\]*)'", re.IGNORECASE)
_ONLY_TOKEN = re.compile(rf"(?:SETTINGS\s+{_TOKEN_CLAUSE.pattern}\s*)?", re.IGNORECASE)
_EXPECTED = {
    "async_insert": "0",
    _DEDUPLICATE: "1",
    "materialized_views_ignore_errors": "1",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
}
_WITHOUT_EFFECT = {_TOKEN} | word_set("""
    cast_string_to_dynamic_use_inference date_time_input_format input_format_skip_unknown_fields
    insert_quorum insert_quorum_parallel insert_quorum_timeout max_insert_block_size
    max_insert_threads max_threads min_insert_block_size_bytes min_insert_block_size_rows
""")
"""On one whole block, whose columns are those of the table."""


@dataclass(frozen=True, slots=True)
class TokenInsert:
    """`columns`: as in storage/engine.py; None if the insert has not the form of the brokers'."""

    table: str
    token: str
    columns: str | None


def token_insert(
    wanted: SqlRequest, context: StatementContext, head: InsertData
) -> TokenInsert | None:
    """None: no token counts, or the table is not in the brokers' database."""
    text = head.target.decode("utf-8", "replace")
    target = _TARGET.fullmatch(text)
    if target is None or (target[1] or context.database) != SHARD_DATABASE:
        return None
    if context.settings.get(_DEDUPLICATE, "1") != "1" or _DEDUPLICATE.encode() in head.settings:
        return None
    clause = head.settings.decode("utf-8", "replace")
    found = _TOKEN_CLAUSE.search(clause)
    token = found[1] if found else context.settings.get(_TOKEN, "")
    if not token or len(token) > _TOKEN_MAX_CHARS or not token.isprintable():
        return None
    columns = target[3] or ""
    is_plain = (
        head.format == "Native"
        and _COLUMNS.fullmatch(columns) is not None
        and _ONLY_TOKEN.fullmatch(clause) is not None
        and context.session is None
        and not (context.params or context.tables or context.read_only)
        and not wanted.client_revision
        and all(map(_changes_nothing, context.settings, context.settings.values()))
    )
    names = ", ".join(name.strip() for name in columns.split(","))
    return TokenInsert(target[2], token, names if is_plain else None)


def _changes_nothing(name: str, value: str) -> bool:
    return name in _WITHOUT_EFFECT or _EXPECTED.get(name) == value
