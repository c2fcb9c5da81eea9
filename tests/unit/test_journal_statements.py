"""Which statements that anybody sends need rows of the journal in the tables first."""

from __future__ import annotations

import pytest

from brokerhouse.storage.journal_statements import ALL, LOG, ROWS, changes_tables, needed_by

SHARD = "brokerhouse_shard"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT value, _version FROM registry WHERE key = {key:String} SETTINGS a = 1",
        "SELECT key, value, _version FROM topic_registry",
        "INSERT INTO registry (key, value) SETTINGS a = 1 SELECT {key:String}, concat('a', 'b')",
        "ALTER TABLE registry UPDATE value = concat({m:String}, substring(value, 1, 8)) WHERE 1",
        "SELECT name, value FROM system.settings",
    ],
)
def test_statements_about_the_registry_or_the_engine_need_no_streams(sql: str) -> None:
    assert needed_by(sql.encode(), SHARD) == ()
    assert not changes_tables(sql.encode(), SHARD)


@pytest.mark.parametrize(
    ("sql", "streams"),
    [
        ("SELECT count() FROM messages WHERE topic = '' AND topic_id IN {ids:Array(UUID)}", (LOG,)),
        ("SELECT count() FROM brokerhouse_shard.messages", (LOG,)),
        ("DELETE FROM messages IN PARTITION '2025-01-01' WHERE partition = -1", (LOG,)),
        ("SELECT max(a) FROM (SELECT offset AS a FROM messages ORDER BY a, b LIMIT 1, 2)", (LOG,)),
        ("OPTIMIZE TABLE consumer_offsets FINAL", (ROWS,)),
        ("SELECT * FROM latest_offsets", (ROWS,)),
        ("SELECT * FROM topics WHERE topic IN (SELECT topic FROM messages)", (LOG, ROWS)),
        ("SELECT * FROM consumer_lag", (LOG, ROWS)),
        ("INSERT INTO consumer_offsets (a) SELECT offset FROM messages", (LOG, ROWS)),
    ],
)
def test_statements_of_brokers_need_the_streams_of_their_tables(
    sql: str, streams: tuple[int, ...]
) -> None:
    assert needed_by(sql.encode(), SHARD) == streams


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM of_mine",
        "SELECT * FROM consumer_offsets WHERE topic IN of_mine",
        "SELECT * FROM consumer_offsets, of_mine",
        "SELECT * FROM consumer_offsets AS a FINAL, of_mine",
        "SELECT * FROM consumer_offsets JOIN of_mine USING topic",
        "SELECT * FROM merge('brokerhouse_shard', 'mess.*')",
        "SELECT * FROM consumer_offsets WHERE (SELECT count() FROM merge('mess.*')) > 0",
        "SELECT * FROM {table:Identifier}",
        'SELECT * FROM "messages"',
        "SELECT * FROM/**/of_mine",
        "SELECT * FROM registry WHERE key IN /**/ of_mine",
        "SELECT * FROM other.registry",
        "SELECT dictGet('d', 'a', 1) FROM registry",
        "SELECT count() FROM system.tables",
        "SELECT name FROM system.tables, of_mine",
        "BACKUP DATABASE brokerhouse_shard TO Null",
        "UPDATE messages SET a = 1 WHERE 1",
        "TRUNCATE TABLE IF EXISTS messages",
    ],
)
def test_statements_that_are_not_understood_need_every_stream(sql: str) -> None:
    assert needed_by(sql.encode(), SHARD) == ALL


def test_names_mean_tables_of_the_brokers_only_in_their_database() -> None:
    assert needed_by(b"SELECT * FROM registry", "default") == ALL
    assert needed_by(b"SELECT * FROM registry", None) == ALL
    assert needed_by(b"SELECT * FROM brokerhouse_shard.registry", None) == ()


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE messages ADD COLUMN a Int8",
        "  -- why\n/* what */ alter table messages DROP CONSTRAINT c",
        "CREATE OR REPLACE VIEW topics AS SELECT 1",
        "DROP TABLE messages SYNC",
        "RENAME TABLE a TO b",
        "EXCHANGE TABLES a AND b",
        "DETACH TABLE messages",
        "ATTACH TABLE messages",
        "UNDROP TABLE messages",
    ],
)
def test_statements_that_change_tables_are_known(sql: str) -> None:
    assert changes_tables(sql.encode(), SHARD)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'ALTER TABLE a'",
        "DELETE FROM messages WHERE 1",
        "OPTIMIZE TABLE messages",
        "CREATE TEMPORARY TABLE feed_values (a Int64)",
        "create or replace temporary table feed_values (a Int64)",
    ],
)
def test_other_statements_change_no_table(sql: str) -> None:
    assert not changes_tables(sql.encode(), SHARD)
