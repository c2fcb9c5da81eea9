"""Access by SQL: what readers and writers may do, and what is refused to everyone."""

import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import (
    WRITER,
    ask,
    read,
    write,
)


def test_a_name_cannot_change_the_statement(server: BrokerProcess) -> None:
    for name in ("param_x = 1, readonly", "param_", "param_a'b", "max_threads = 1, readonly", "é"):
        answer = ask(server, "SELECT 1", path="/?" + urllib.parse.urlencode({name: "0"}))
        assert answer.code == 115 or answer.text == "1\n"
        sql = "INSERT INTO default.nosuch VALUES (1)"
        answer = ask(server, sql, headers=WRITER, path="/?" + urllib.parse.urlencode({name: "0"}))
        assert answer.code in (115, 60, 36)


def test_a_get_changes_nothing(server: BrokerProcess, table: str) -> None:
    for sql in (
        f"INSERT INTO {table} VALUES (1, 'x')",
        f"INSERT INTO {table} SELECT 1, 'x'",
        f"DROP TABLE {table}",
    ):
        answer = ask(server, method="GET", headers=WRITER, query=sql)
        assert (answer.status, answer.code) == (500, 164), sql
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_a_line_break_in_a_name_does_not_hide_what_follows(server: BrokerProcess) -> None:
    sql = (
        "CREATE TABLE default.x (`a\nSelectQuery\n Fake` String)"
        " AS url('http://127.0.0.1:1/', CSV, 'a String')"
    )
    assert ask(server, sql, headers=WRITER).code == 497
    assert read(server, "SELECT 'a\nSelectQuery\n Fake'") == "a\\nSelectQuery\\n Fake\n"


FILE = "/etc/passwd"


READS_OUTSIDE = [
    f"SELECT file('{FILE}')",
    f"SELECT/**/`file`/**/('{FILE}')",
    f"SELECT \"f\\x69le\"('{FILE}')",
    f"SELECT * APPLY(file) FROM (SELECT '{FILE}')",
    f"SELECT COLUMNS('x') APPLY file FROM (SELECT '{FILE}' AS x)",
    f"SELECT arrayMap(file, ['{FILE}'])",
    f"WITH file AS f SELECT arrayMap(f, ['{FILE}'])",
    f"WITH x -> file(x) AS f SELECT f('{FILE}')",
    f"SELECT arrayMap({{f:Identifier}}, ['{FILE}'])",
    f"SELECT arrayMap({{g:Identifier}}, ['{FILE}'])",
    f"SELECT arrayMap({{h:Identifier}}, ['{FILE}'])",
    f"SELECT * FROM view(SELECT file('{FILE}'))",
    f"SELECT * FROM viewExplain('EXPLAIN', '', (SELECT file('{FILE}')))",
    f"EXPLAIN SELECT file('{FILE}')",
    f"DESCRIBE (SELECT file('{FILE}'))",
    f"SELECT (SELECT * FROM file('{FILE}', LineAsString))",
    f"SELECT * FROM `{FILE}`",
    f"SELECT * FROM default.`{FILE}`",
    f"DESCRIBE TABLE default.`{FILE}`",
    f"SELECT 1 SETTINGS additional_result_filter = 'throwIf(1, file(\\'{FILE}\\'))'",
    f"SELECT * FROM messages SETTINGS additional_table_filters = {{'messages': 'throwIf(1,"
    f" file(\\'{FILE}\\'))'}}",
    f"SELECT 1 FORMAT Template SETTINGS format_template_row = '{FILE}'",
    f"SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{FILE}'",
    f"SELECT 1 AS a FORMAT Protobuf SETTINGS format_schema = '{FILE}:x'",
    "SELECT 1 AS a FORMAT Protobuf SETTINGS output_format_schema = '/tmp/written_by_sql'",
    f"SELECT 1 SETTINGS profile = 'default', format_template_row = '{FILE}'",
    f"SELECT * FROM format(Values, 'a String', '(file(\\'{FILE}\\'))')",
    "SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1",
    "SELECT 1 SETTINGS dialect = 'kusto'",
    "SELECT * FROM python(settings)",
    "SELECT * FROM filesystem('/etc')",
    "SELECT * FROM executable('id', LineAsString)",
    "SELECT * FROM url('http://127.0.0.1:1/', LineAsString)",
    "SELECT * FROM URL('http://127.0.0.1:1/', LineAsString)",
    f"SELECT * FROM FILE('{FILE}', LineAsString)",
    "SELECT * FROM s3('http://127.0.0.1:1/x')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:1/x', 'CSV', 'a String')",
    "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM redis('127.0.0.1:1', 'k', 'k String')",
    "SELECT * FROM mongodb('127.0.0.1:1', 'a', 'b', 'c', 'd', 'e String')",
    "SELECT * FROM sqlite('/tmp/x', 'a')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM cluster('a', system.one)",
    "SELECT * FROM deltaLakeLocal('/tmp')",
    "DESCRIBE TABLE url('http://127.0.0.1:1/')",
    "SELECT 1 INTO OUTFILE '/tmp/written_by_sql'",
    "SELECT 1 INTO/**/outfile '/tmp/written_by_sql' FORMAT CSV",
    "INSERT INTO FUNCTION file('/tmp/written_by_sql', CSV, 'a Int8') VALUES (1)",
]


@pytest.mark.parametrize("headers", [{}, WRITER], ids=["reader", "writer"])
@pytest.mark.parametrize("sql", READS_OUTSIDE)
def test_no_spelling_reaches_beyond_the_tables(
    server: BrokerProcess, sql: str, headers: dict[str, str]
) -> None:
    answer = ask(
        server, sql, headers=headers, param_f="file", param_g="f\\x69le", session_id="outside"
    )
    assert answer.status >= 400, answer.text
    assert answer.code in (497, 452, 60, 456), answer.text
    assert "root:" not in answer.text
    assert not Path("/tmp/written_by_sql").exists()


@pytest.mark.parametrize("name", ["values", "VALUES", "Values"])
def test_a_table_function_may_be_written_in_any_case(server: BrokerProcess, name: str) -> None:
    assert read(server, f"SELECT * FROM {name}('a UInt8, b String', (1, 'x'))") == "1\tx\n"


def test_a_parameter_of_the_session_names_no_function(server: BrokerProcess) -> None:
    ask(server, "SET param_h = 'file'", session_id="param")
    answer = ask(server, f"SELECT arrayMap({{h:Identifier}}, ['{FILE}'])", session_id="param")
    assert answer.code == 497


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO messages VALUES ('x', 1)",
        "INSERT INTO messages SELECT 'x', 1",
        "CREATE TABLE default.x (a Int8) ENGINE = Memory",
        "CREATE TEMPORARY TABLE x (a Int8)",
        "DROP TABLE messages",
        "TRUNCATE TABLE messages",
        "ALTER TABLE messages DELETE WHERE 1",
        "DELETE FROM messages WHERE 1",
        "OPTIMIZE TABLE messages",
        "SYSTEM STOP MERGES",
        "SYSTEM SHUTDOWN",
        "KILL QUERY WHERE 1",
        "DETACH TABLE messages",
        "RENAME TABLE messages TO x",
        "BACKUP TABLE messages TO File('/tmp/written_by_sql')",
        "GRANT ALL ON *.* TO default",
        "CREATE USER x",
        "CREATE FUNCTION f AS x -> x",
        "SET ROLE engine",
        "SET/**/role/**/ALL",
        "SET DEFAULT ROLE engine TO default",
        "EXECUTE AS default SELECT 1",
        "BEGIN TRANSACTION",
        "SELECT * FROM system.processes",
        "WITH p AS (SELECT * FROM system.`processes`) SELECT * FROM p",
        "SELECT * FROM merge('system', 'process')",
        "SHOW PROCESSLIST",
        "SELECT * FROM system.errors",
        "SELECT * FROM system.stack_trace",
        "SELECT * FROM system.users",
    ],
)
def test_a_reader_only_reads(server: BrokerProcess, sql: str) -> None:
    answer = ask(server, sql)
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count(), sum(offset) FROM messages") == "10\t45\n"


@pytest.mark.parametrize("sql", ["CREATE TABLE x (a Int8) ENGINE Memory", "DROP TABLE messages"])
def test_a_reader_who_writes_is_told_how_to_log_in(server: BrokerProcess, sql: str) -> None:
    answer = ask(server, sql)
    assert "Without credentials SQL is read-only" in answer.text
    assert "sql_user and sql_password" in answer.text


def test_a_reader_cannot_see_hidden_tables_by_the_database_alone(server: BrokerProcess) -> None:
    assert ask(server, "SELECT * FROM processes", database="system").code == 497
    ask(server, "USE system", session_id="hidden")
    assert ask(server, "SELECT * FROM processes", session_id="hidden").code == 497


@pytest.mark.parametrize(
    "setting",
    [
        "readonly=0",
        "max_memory_usage=0",
        "max_memory_usage=99999999999",
        "max_threads=100000",
        "os_thread_priority=0",
    ],
)
def test_limits_cannot_be_lifted(server: BrokerProcess, setting: str) -> None:
    if not setting.startswith("readonly"):
        assert ask(server, "SELECT 1", headers=WRITER, path=f"/?{setting}").code == 452
    for answer in (
        ask(server, "SELECT 1", path=f"/?{setting}"),
        ask(server, f"SELECT 1 SETTINGS {setting}"),
        ask(server, f"SET {setting}", session_id="lift"),
    ):
        assert answer.code in (452, 164), answer.text


def test_readonly_may_be_set_to_the_value_that_it_has(server: BrokerProcess) -> None:
    for level in ("1", "2"):
        assert ask(server, "SELECT 1", readonly=level).text == "1\n"
        assert ask(server, "DROP TABLE messages", readonly=level).code == 497


def test_the_query_cache_can_be_used(server: BrokerProcess) -> None:
    for _ in range(2):
        assert ask(server, "SELECT 1", use_query_cache=1).text == "1\n"
    assert "Syntax error" in ask(server, "SELECT 1/", use_query_cache=1).text


def test_limits_can_be_tightened(server: BrokerProcess) -> None:
    sql = "SELECT getSetting('max_memory_usage'), getSetting('max_threads')"
    assert read(server, sql, max_memory_usage="50000000", max_threads="1") == "50000000\t1\n"
    assert read(server, f"{sql}, getSetting('os_thread_priority')").split()[2] == "10"


THE_LOG = [
    "INSERT INTO messages VALUES ('x', 1)",
    "INSERT INTO brokerhouse.messages FORMAT CSV\nx,1\n",
    "INSERT INTO messages SELECT 'x', 1",
    "CREATE TABLE brokerhouse.x (a Int8) ENGINE = Memory",
    "CREATE VIEW brokerhouse.x AS SELECT 1",
    "CREATE OR REPLACE TABLE brokerhouse.messages (a Int8) ENGINE = Memory",
    "DROP TABLE messages",
    "DROP DATABASE brokerhouse",
    "TRUNCATE TABLE messages",
    "TRUNCATE DATABASE brokerhouse",
    "ALTER TABLE messages DELETE WHERE 1",
    "ALTER TABLE messages ADD COLUMN x Int8",
    "ALTER TABLE messages MODIFY COMMENT 'x'",
    "DELETE FROM messages WHERE 1",
    "OPTIMIZE TABLE messages FINAL",
    "RENAME TABLE messages TO default.messages",
    "RENAME DATABASE brokerhouse TO x",
    "EXCHANGE TABLES brokerhouse.messages AND brokerhouse.messages",
    "DETACH TABLE messages",
    "ALTER TABLE messages FREEZE",
    "CREATE MATERIALIZED VIEW default.log_mv TO brokerhouse.messages AS SELECT topic, offset"
    " FROM default.src",
    "CREATE TABLE default.log_buffer AS messages ENGINE = Buffer('brokerhouse', 'messages', 1,"
    " 0, 0, 0, 0, 0, 0)",
    "CREATE TABLE default.log_alias ENGINE = Alias('brokerhouse', 'messages')",
    "CREATE TABLE default.log_dist AS messages ENGINE = Distributed('x', 'brokerhouse',"
    " 'messages')",
    "CREATE TABLE default.log_merge AS messages ENGINE = Merge('brokerhouse', 'messages',"
    " 'brokerhouse.messages')",
    "CREATE VIEW default.log_v DEFINER = default SQL SECURITY DEFINER AS SELECT 1",
    "CREATE VIEW default.log_v SQL SECURITY NONE AS SELECT 1",
    "SET ROLE engine",
    "SYSTEM STOP MERGES",
    "KILL QUERY WHERE 1",
]


@pytest.mark.parametrize("sql", THE_LOG)
def test_a_writer_cannot_change_the_log(server: BrokerProcess, sql: str) -> None:
    write(
        server, "CREATE TABLE IF NOT EXISTS default.src (topic String, offset Int64) ENGINE = Null"
    )
    answer = ask(server, sql, headers=WRITER)
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count(), sum(offset) FROM messages") == "10\t45\n"


ALERT = (
    "(kind, group_id, began_at, evaluated_until)"
    " SELECT 'records', 'g', '2096-11-21 12:00:00', '2096-11-21 12:00:00'"
)
"""Of a time that the table's TTL does not end."""
MONTH = "209611"


ALERTS = "SELECT count() FROM lag_alerts FINAL WHERE group_id = 'g'"


def test_a_writer_adds_rows_to_the_tables_of_jobs(server: BrokerProcess) -> None:
    for name in ("lag_alerts", "brokerhouse.lag_alerts"):
        write(server, f"INSERT INTO {name} {ALERT}")
    assert read(server, ALERTS) == "1\n"
    assert ask(server, f"INSERT INTO lag_alerts {ALERT}").code == 497
    write(server, "CREATE TABLE default.lag_history (a Int8) ENGINE = MergeTree ORDER BY a")
    write(server, "ALTER TABLE default.lag_history ADD COLUMN b Int8")


OTHER_WAYS_IN = [
    "DELETE FROM lag_alerts WHERE 1",
    "ALTER TABLE lag_alerts DELETE WHERE 1",
    "ALTER TABLE lag_alerts UPDATE value = 1 WHERE 1",
    "UPDATE lag_alerts SET value = 1 WHERE 1",
    "ALTER TABLE lag_alerts ADD COLUMN x Int8",
    "ALTER TABLE lag_alerts MODIFY TTL began_at + INTERVAL 1 DAY",
    "ALTER TABLE lag_alerts MODIFY SETTING old_parts_lifetime = 1",
    f"ALTER TABLE lag_alerts DROP PARTITION {MONTH}",
    f"ALTER TABLE lag_alerts DETACH PARTITION {MONTH}",
    f"ALTER TABLE lag_alerts ATTACH PARTITION {MONTH}",
    f"ALTER TABLE brokerhouse.lag_alerts ATTACH PARTITION {MONTH} FROM default.alike",
    f"ALTER TABLE `lag_alerts` REPLACE PARTITION {MONTH} FROM default.alike",
    f"ALTER TABLE default.alike MOVE PARTITION {MONTH} TO TABLE brokerhouse.lag_alerts",
    f"ALTER TABLE default.alike MOVE PARTITION {MONTH} TO TABLE `lag\\x5falerts`",
    f"ALTER TABLE {{name:Identifier}} ATTACH PARTITION {MONTH}",
    "ALTER TABLE lag_alerts FREEZE",
    "TRUNCATE TABLE lag_alerts",
    "DROP TABLE lag_alerts",
    "DETACH TABLE lag_alerts",
    "OPTIMIZE TABLE lag_alerts FINAL",
    "RENAME TABLE lag_alerts TO default.lag_alerts",
    "EXCHANGE TABLES default.alike AND brokerhouse.lag_alerts",
    "CREATE OR REPLACE TABLE lag_alerts (a Int8) ENGINE = Memory",
    "CREATE TABLE brokerhouse.compaction_removals_2 (a Int8) ENGINE = Memory",
    "CREATE MATERIALIZED VIEW default.alerts_mv TO brokerhouse.lag_alerts AS SELECT 'x' AS group_id"
    " FROM brokerhouse.messages",
    "CREATE MATERIALIZED VIEW default.alerts_mv TO lag_alerts AS SELECT group_id FROM"
    " default.alike",
    "CREATE MATERIALIZED VIEW default.alerts_mv REFRESH EVERY 1 HOUR APPEND TO lag_alerts AS SELECT"
    " 'x' AS group_id",
    "CREATE TABLE default.alerts_buffer AS lag_alerts ENGINE = Buffer('brokerhouse', 'lag_alerts',"
    " 1, 0, 0, 0, 0, 0, 0)",
    f"INSERT INTO lag_alerts (group_id) SELECT file('{FILE}')",
    f"INSERT INTO lag_alerts (group_id) SELECT * FROM file('{FILE}', LineAsString, 'a String')",
    "INSERT INTO lag_alerts (group_id) SELECT * FROM url('http://127.0.0.1:1/', LineAsString)",
    f"INSERT INTO lag_alerts (group_id) FROM INFILE '{FILE}' FORMAT LineAsString",
    "INSERT INTO FUNCTION merge('brokerhouse', 'lag_alerts') (group_id) SELECT 'x'",
    "INSERT INTO partition_checkpoints SELECT generateUUIDv4(), 0, 9, 9",
    "INSERT INTO consumer_offsets (group_id) SELECT 'x'",
    "INSERT INTO partition_minutes (topic) SELECT 'x'",
]


@pytest.mark.parametrize("sql", OTHER_WAYS_IN)
def test_nothing_but_insert_reaches_the_tables_of_jobs(server: BrokerProcess, sql: str) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.alike AS brokerhouse.lag_alerts")
    write(server, f"INSERT INTO lag_alerts {ALERT}")
    answer = ask(server, sql, headers=WRITER, param_name="lag_alerts")
    assert (answer.status, answer.code) == (403, 497), answer.text
    assert read(server, "SELECT count() FROM lag_alerts FINAL") == "1\n"


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE TABLE default.f (a String) ENGINE = File(LineAsString, '{FILE}')",
        "CREATE TABLE default.f (a String) ENGINE = URL('http://127.0.0.1:1/', CSV)",
        "CREATE TABLE default.f (a String) ENGINE = Executable('x.sh', CSV)",
        f"CREATE TABLE default.f (a String DEFAULT file('{FILE}')) ENGINE = Memory",
        f"CREATE VIEW default.f AS SELECT file('{FILE}')",
        "CREATE VIEW default.f (a String) AS SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a"
        " String')",
        "CREATE TABLE default.f AS url('http://127.0.0.1:1/', CSV, 'a String')",
        "CREATE TABLE default.f (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk ="
        " disk(type = local, path = '/tmp/x/')",
        "CREATE DATABASE f ENGINE = Filesystem('/etc')",
        "CREATE DICTIONARY default.f (a Int64) PRIMARY KEY a SOURCE(EXECUTABLE(COMMAND 'id'"
        " FORMAT TSV)) LAYOUT(FLAT()) LIFETIME(1)",
        f"INSERT INTO default.src2 FROM INFILE '{FILE}' FORMAT CSV",
        f"INSERT INTO default.src2 SELECT length(file('{FILE}'))",
    ],
)
def test_a_writer_cannot_reach_files_or_other_hosts(server: BrokerProcess, sql: str) -> None:
    write(server, "CREATE TABLE IF NOT EXISTS default.src2 (a Int64) ENGINE = Null")
    answer = ask(server, sql, headers=WRITER)
    assert (answer.status, answer.code) == (403, 497), answer.text


@pytest.mark.parametrize("value", [f"length(file('{FILE}'))", f"length(`fil\\x65`('{FILE}'))"])
@pytest.mark.parametrize(
    "settings", ["", "SETTINGS input_format_values_interpret_expressions = 1 "]
)
def test_values_evaluate_no_file(
    server: BrokerProcess, table: str, value: str, settings: str
) -> None:
    answer = ask(server, f"INSERT INTO {table} (a) {settings}VALUES ({value})", headers=WRITER)
    assert answer.code in (344, 497), answer.text
    assert read(server, f"SELECT count() FROM {table}") == "0\n"


def test_a_writer_may_have_databases_of_their_own(server: BrokerProcess) -> None:
    for sql in (
        "CREATE DATABASE lab",
        "CREATE TABLE lab.per_topic (topic String, n UInt64) ENGINE = SummingMergeTree ORDER"
        " BY topic",
        "CREATE MATERIALIZED VIEW lab.mv TO lab.per_topic AS SELECT topic, 1 AS n FROM"
        " brokerhouse.messages",
        "INSERT INTO lab.per_topic SELECT topic, count() FROM brokerhouse.messages GROUP BY topic",
        "CREATE VIEW lab.v AS SELECT topic, sum(n) AS n FROM lab.per_topic GROUP BY topic",
        "ALTER TABLE lab.per_topic ADD COLUMN x Int8",
        "OPTIMIZE TABLE lab.per_topic FINAL",
    ):
        write(server, sql)
    assert read(server, "SELECT * FROM lab.v") == "kept\t10\n"
    write(server, "DROP DATABASE lab")


def test_a_column_called_file_is_read_by_its_full_name(server: BrokerProcess) -> None:
    sql = "SELECT t.file FROM (SELECT 1 AS x) AS t"
    assert ask(server, sql).code == 47
    assert ask(server, sql.replace("t.file", "file")).code == 497


EMPTIES_AN_ANSWER: list[dict[str, Any]] = [
    {"offset": "1"},
    {"limit": "1", "offset": "1"},
    {"offset": "1", "extremes": "1"},
    {"max_execution_time": "0.001", "timeout_overflow_mode": "break", "offset": "1"},
    {"max_result_rows": "1", "result_overflow_mode": "break", "max_block_size": "1", "offset": "2"},
]


@pytest.mark.parametrize("settings", EMPTIES_AN_ANSWER, ids=str)
def test_no_setting_leaves_the_check_without_an_answer(
    server: BrokerProcess, settings: dict[str, Any]
) -> None:
    """The broker asks the engine about a statement with the settings of that statement."""
    for sql in (
        f"SELECT arrayJoin([file('{FILE}'), file('{FILE}'), file('{FILE}')])",
        "SELECT * FROM url('http://127.0.0.1:1/', LineAsString)",
    ):
        assert ask(server, sql, **settings).code == 497, sql
        session = f"empties {settings} {sql}"
        names = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        assert ask(server, f"SET {names}", session_id=session).status == 200
        assert ask(server, sql, session_id=session).code == 497, sql
    assert read(server, "SELECT arrayJoin([1, 2])", offset="1") == "2\n"
