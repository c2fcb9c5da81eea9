"""What a reader without credentials sees of the machine: nothing."""

import json
import platform
import socket
from typing import Any

import pytest

from brokerhouse.sql.http.hidden_from_readers import _HIDDEN, _KNOWN, PRIVATE_COLUMNS, SHOWN_TABLES
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import WRITER, ask, read, write

# A name that looks in the tree as if `*` left the private columns out.
LIKE_THE_TREE = "\n".join(
    [
        "a",
        " " * 5 + "ColumnsTransformerList",
        " " * 6 + "ColumnsExceptTransformer",
        *(" " * 7 + f"Identifier {name}" for name in ("path", "cache_path", "a")),
    ]
)
ENDLESS = {"numbers", "numbers_mt", "zeros", "zeros_mt", "primes"}


@pytest.fixture(scope="module")
def secrets(server: BrokerProcess) -> tuple[str, ...]:
    """What no answer may contain."""
    return (str(server.data_dir), platform.release())


@pytest.fixture(scope="module")
def names(server: BrokerProcess) -> list[str]:
    """Every function of the engine that is not said to have arguments."""
    text = write(
        server, "SELECT name FROM system.functions WHERE NOT is_aggregate AND arguments = ''"
    )
    return text.splitlines()


@pytest.fixture(scope="module", autouse=True)
def _parts(server: BrokerProcess) -> None:
    """Rows for the tables that have paths."""
    for sql in (
        "CREATE TABLE default.seen (a Int8, PROJECTION p (SELECT a ORDER BY a)) ENGINE = MergeTree"
        " ORDER BY a",
        "INSERT INTO default.seen VALUES (1)",
        "CREATE TABLE default.gone (a Int8) ENGINE = MergeTree ORDER BY a",
        "INSERT INTO default.gone VALUES (1)",
        "ALTER TABLE default.gone DETACH PARTITION tuple()",
        "CREATE TABLE default.dropped (a Int8) ENGINE = MergeTree ORDER BY a",
        "INSERT INTO default.dropped VALUES (1)",
        "DROP TABLE default.dropped",
    ):
        write(server, sql)


def columns(server: BrokerProcess) -> dict[str, list[str]]:
    """The columns of every table of `system`."""
    text = write(
        server,
        "SELECT table, groupArray(name) FROM system.columns WHERE database = 'system'"
        " GROUP BY table FORMAT JSONCompactEachRow",
    )
    return dict(json.loads(line) for line in text.splitlines())


def test_every_system_table_is_listed_as_shown_hidden_or_partly_private(
    server: BrokerProcess,
) -> None:
    tables = columns(server)
    assert set(tables) - SHOWN_TABLES - PRIVATE_COLUMNS.keys() == _HIDDEN & tables.keys()
    assert not _HIDDEN & _KNOWN
    for table, private in PRIVATE_COLUMNS.items():
        assert private <= set(tables[table])
    paths = {
        f"{table}.{name}"
        for table in _KNOWN
        for name in set(tables[table]) - PRIVATE_COLUMNS.get(table, set())
        if "path" in name
    }
    assert paths == {"licenses.license_path"}  # of ClickHouse's sources


def test_a_reader_sees_no_path_and_no_host_in_any_table(
    server: BrokerProcess, secrets: tuple[str, ...]
) -> None:
    seen = 0
    for table, names in sorted(columns(server).items()):
        public = [name for name in names if name not in PRIVATE_COLUMNS.get(table, ())]
        quoted = ", ".join(f"`{name}`" for name in public)
        limit = " LIMIT 10" if table in ENDLESS or table == "unicode" else ""
        answer = ask(server, f"SELECT {quoted} FROM system.`{table}`{limit} FORMAT TSVRaw")
        if answer.status != 200:
            assert answer.code == 497, answer.text
        seen += answer.status == 200
        text = answer.body.decode("utf-8", "replace")
        assert [secret for secret in secrets if secret in text] == [], table
        if table not in SHOWN_TABLES:
            everything = ask(server, f"SELECT * FROM system.`{table}`{limit} FORMAT TSVRaw")
            assert everything.code == (0 if table in PRIVATE_COLUMNS else 497), table
            text = everything.body.decode("utf-8", "replace")
            assert [secret for secret in secrets if secret in text] == [], table
    assert seen > 60


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT path FROM system.parts",
        "SELECT `pa\\x74h` FROM system.parts",
        "SELECT p.path FROM system.parts AS p",
        "SELECT COLUMNS('^pat') FROM system.parts",
        "SELECT (SELECT any(path) FROM system.parts)",
        "SELECT 1 WHERE '/' IN (SELECT path FROM system.parts)",
        "SELECT name FROM system.parts ORDER BY path",
        "SELECT {column:Identifier} FROM system.parts",
        "SELECT {column:Identifier} FROM system.disks",
        "SELECT * EXCEPT (cache_path) REPLACE (path AS name) FROM system.disks",
        "SELECT * REPLACE (path AS name) FROM system.disks",
        "SELECT 2 * except(path) FROM system.disks",
        "SELECT * FROM system.disks EXCEPT SELECT path FROM system.disks",
        "SELECT DISTINCT ON (name) * FROM system.disks",
        "SELECT COLUMNS('p') EXCEPT (path, cache_path) APPLY(toString) FROM system.disks",
        f"SELECT `{LIKE_THE_TREE}`.* FROM system.disks AS `{LIKE_THE_TREE}`",
        "SELECT `a b`.{column:Identifier} FROM system.disks AS `a b`",
        "SELECT {alias:Identifier}.{column:Identifier} FROM system.parts AS {alias:Identifier}",
        "SELECT * EXCEPT (path, cache_path), `a b`.{column:Identifier} FROM system.disks AS `a b`",
        "SELECT * FROM view(SELECT `a b`.{column:Identifier} AS p FROM system.disks AS `a b`)",
        "EXPLAIN SELECT (SELECT any(`a b`.{column:Identifier}) FROM system.disks AS `a b`)",
        "SELECT `a b`.{column:Identifier} FROM system.disks AS `a b` FORMAT JSON",
        "SELECT `a b`.{column:Identifier} FROM system.disks AS `a b` FORMAT Null",
        "SELECT {column:Identifier}.size FROM system.disks",
        "SELECT `a b`.{column:Identifier}.size FROM system.disks AS `a b`",
        "SELECT d.name FROM system.disks AS d NATURAL JOIN system.disks AS e",
        "SELECT throwIf((SELECT count() FROM system.disks AS d NATURAL JOIN"
        " values('path String', '/') AS v) > 0)",
        "SELECT * FROM view(SELECT count() FROM system.disks AS d NATURAL JOIN"
        " values('path String', '/') AS v)",
        "DESCRIBE (SELECT toFixedString('a', (SELECT any(`a b`.{column:Identifier}) = '/'"
        " FROM system.disks AS `a b`) + 1))",
        "SELECT * FROM view(SELECT ('default', '/', 0, 0, 0, 0, '', '', '', 0, 0, 0, 0, 0, '')"
        " IN system.disks)",
        "EXPLAIN SELECT (SELECT ('default', '/', 0, 0, 0, 0, '', '', '', 0, 0, 0, 0, 0, '')"
        " IN system.disks)",
        "DESCRIBE (SELECT toFixedString('a', 1 + (SELECT ('default', '/', 0, 0, 0, 0, '', '', '',"
        " 0, 0, 0, 0, 0, '') IN system.disks)))",
        "SELECT * APPLY(x -> (SELECT any(path) FROM system.disks)) FROM numbers(1)",
        "SELECT COLUMNS('n') APPLY(x -> (SELECT any(value) FROM system.server_settings))"
        " FROM numbers(1)",
        "SHOW COLUMNS FROM brokerhouse.messages WHERE (SELECT any(path) FROM system.disks) > 'a'",
        "SHOW INDEX FROM brokerhouse.messages WHERE (SELECT any(path) FROM system.disks) > 'a'",
        "SHOW TABLES WHERE (SELECT any(path) FROM system.disks) > 'a'",
        "SHOW DATABASES LIMIT (SELECT length(path) FROM system.disks)",
        "SHOW CLUSTERS LIMIT (SELECT length(path) FROM system.disks)",
        "SHOW MERGES LIMIT (SELECT length(path) FROM system.disks)",
        "SHOW TABLES WHERE ('default', '/', 0, 0, 0, 0, '', '', '', 0, 0, 0, 0, 0, '')"
        " IN system.disks",
        "SHOW TABLES WHERE in(tuple(name), system.disks)",
        "SHOW TABLES WHERE data_paths[1] LIKE '/%'",
        "SHOW FULL TABLES FROM brokerhouse WHERE `metadata\\x5fpath` LIKE '/%'",
        "SHOW TABLES WHERE COLUMNS('metadata_p.*') LIKE '/%'",
        "SHOW TABLES WHERE toString(tuple(*)) LIKE '%/%'",
        "SHOW TABLES WHERE toString(tuple(tables.*)) LIKE '%/%'",
        "SHOW TABLES WHERE {column:Identifier} LIKE '/%'",
        "SELECT count() FROM system.disks AS d JOIN system.disks AS e USING ({column:Identifier})",
        "SELECT ('default', '/', 0, 0, 0, 0, '', '', '', 0, 0, 0, 0, 0, '') IN system.disks",
        "SELECT 1 WHERE ('default', '/', 0, 0, 0, 0, '', '', '', 0, 0, 0, 0, 0, '') NOT IN"
        " (system.disks)",
        "WITH c AS (SELECT 1) SELECT * FROM system.settings_changes, system.query_views_log",
        "WITH t AS (SELECT {column:Identifier} AS x FROM system.disks) SELECT x FROM t",
        "SELECT {column:Identifier} FROM {table:Identifier}.{column:Identifier}",
        "SELECT path FROM {table:Identifier}",
        "SELECT data_paths FROM system.tables",
        "SELECT metadata_path FROM system.databases",
        "SELECT path FROM system.disks",
        "SELECT * FROM viewExplain('EXPLAIN', '', (SELECT path FROM system.disks))",
        "EXPLAIN SELECT path FROM system.disks",
        "SELECT * FROM loop(system.disks)",
        "SELECT * FROM loop('system', 'disks')",
        "SELECT * FROM merge('system', 'disks')",
        "SELECT value FROM system.server_settings WHERE name = 'path'",
        "SELECT * FROM system.`server_settings`",
        "SELECT 1 IN system.macros",
        "SELECT * FROM system.build_options",
        "SELECT * FROM system.user_processes",
        "SELECT getServerSetting('path')",
        "SELECT arrayMap(getServerSetting, ['path'])",
        "SELECT arrayMap({function:Identifier}, ['path'])",
        "SELECT getMacro('shard')",
        "SELECT hostName()",
        "SELECT HOSTNAME ( )",
        "SELECT `hostname`()",
        "SELECT FQDN()",
        "SELECT fullHostName()",
        "SELECT displayName()",
        "SELECT getOSKernelVersion()",
        "SELECT buildId()",
        "SELECT tcpPort()",
    ],
)
def test_no_spelling_of_a_query_shows_a_private_column_or_function(
    server: BrokerProcess, sql: str
) -> None:
    values = {
        "column": "path",
        "alias": "a b",
        "table": "system.disks",
        "function": "getServerSetting",
    }
    parameters: dict[str, Any] = {
        f"param_{name}": value for name, value in values.items() if f"{{{name}:" in sql
    }
    answer = ask(server, sql, **parameters)
    assert (answer.status, answer.code) == (403, 497), answer.text
    bare = sql.replace("system.", "")
    if bare != sql:
        assert ask(server, bare, database="system", **parameters).code == 497, bare


EVERYTHING = [
    "SELECT * FROM system.disks",
    "SELECT d.* FROM system.disks AS d",
    "SELECT name AS TABLE_NAME, type as T, * FROM system.disks WHERE name = 'default'",
    "SELECT 2*total_space, * FROM system.disks",
    "SELECT count(), * FROM system.disks GROUP BY ALL",
    "SELECT count(*), any(tuple(*)) FROM system.disks",
    "SELECT * APPLY(toString) FROM system.disks",
    "SELECT * EXCEPT (name) FROM system.disks",
    "SELECT * EXCEPT name APPLY(toString) FROM system.disks",
    "SELECT * EXCEPT (path, cache_path) FROM system.disks",
    "SELECT * FROM (SELECT * FROM system.disks)",
    "WITH d AS (SELECT * FROM system.disks) SELECT d.* FROM d, system.one",
    "SELECT * FROM view(SELECT * FROM system.disks)",
    "SELECT DISTINCT * FROM system.disks",
    "SELECT * FROM system.disks UNION ALL SELECT * FROM system.disks",
    "SELECT one.*, disks.* FROM system.one, system.disks",
    "SELECT /* * */ * -- *\nFROM system.disks FORMAT JSON",
]


@pytest.mark.parametrize("sql", EVERYTHING)
def test_a_star_leaves_out_what_is_private(
    server: BrokerProcess, secrets: tuple[str, ...], sql: str
) -> None:
    answer = ask(server, sql, default_format="JSONCompact")
    assert answer.status == 200, answer.text
    assert [secret for secret in secrets if secret in answer.text] == []
    found = {column["name"] for column in json.loads(answer.text)["meta"]}
    assert not PRIVATE_COLUMNS["disks"] & {name.split(".")[-1] for name in found}


def test_dbeaver_sees_the_tables_of_a_database(server: BrokerProcess) -> None:
    sql = (
        "SELECT name as TABLE_NAME, engine as TABLE_TYPE, database as TABLE_SCHEM,"
        " comment as REMARKS, * FROM system.tables\nWHERE database = 'brokerhouse'"
    )
    answer = json.loads(read(server, sql, default_format="JSON"))
    assert "messages" in {row["TABLE_NAME"] for row in answer["data"]}
    assert {"uuid", "engine", "total_rows"} <= answer["data"][0].keys()


def test_a_reader_learns_nothing_from_any_function_without_an_argument(
    server: BrokerProcess, secrets: tuple[str, ...], names: list[str]
) -> None:
    host = socket.gethostname()
    allowed = []
    for name in names:
        if name.startswith("_") or not name.isidentifier():
            continue
        answer = ask(server, f"SELECT toString({name}()) FORMAT TSVRaw")
        text = answer.body.decode("utf-8", "replace")
        assert [secret for secret in secrets if secret in text] == [], name
        if answer.status == 200:
            assert text != f"{host}\n", name
            allowed.append(name)
    assert "currentDatabase" in allowed
    assert not {"hostName", "FQDN", "getOSKernelVersion", "displayName"} & set(allowed)


def test_errors_and_headers_show_no_path_and_no_host(server: BrokerProcess) -> None:
    for sql in (
        "SELECT 1 INTO OUTFILE 'x'",
        "SELECT 1 FORMAT Template SETTINGS format_template_row = 'x'",
        "SELECT 1 AS a FORMAT Protobuf SETTINGS format_schema = 'x:y'",
        "SELECT * FROM file('x', CSV)",
    ):
        answer = ask(server, sql)
        assert answer.status >= 400
        assert str(server.data_dir) not in answer.text
    assert ask(server, "SELECT 1").headers["x-clickhouse-server-display-name"] == "brokerhouse"


def test_queries_that_tools_send_are_answered(server: BrokerProcess) -> None:
    for sql in (
        "SELECT version(), timezone(), currentUser(), currentDatabase()",
        "SELECT name, value, readonly FROM system.settings",
        "SELECT name, engine FROM system.databases ORDER BY name",
        "SELECT database, name, engine, total_rows, comment FROM system.tables",
        "SELECT count(*), sum(bytes_on_disk) FROM system.parts WHERE active",
        "SELECT name, free_space, total_space FROM system.disks",
        "SELECT * FROM system.columns WHERE database = 'brokerhouse'",
        "SELECT * FROM system.data_type_families",
        "SELECT * FROM information_schema.tables",
        "SELECT hostname, uptime FROM (SELECT 'a' AS hostname, 1 AS uptime)",
        "SELECT t.path FROM (SELECT 1 AS path) AS t",
        "SHOW DATABASES",
        "SHOW TABLES FROM system",
        "SHOW COLUMNS FROM messages WHERE field IN ('offset', 'topic')",
        "SHOW TABLES FROM system WHERE name NOT IN ('disks') AND engine LIKE 'S%' LIMIT 3",
        "EXPLAIN SELECT name FROM system.tables WHERE database IN (SELECT name FROM system.disks)",
        "DESCRIBE (SELECT name FROM system.disks) FORMAT JSON",
        "DESC TABLE view(SELECT name FROM system.disks WHERE name IN ('a'))",
        "SELECT * APPLY(x -> toString(x)) FROM numbers(1)",
        "SELECT 1 AS select",
        "SELECT t.name, count() FROM system.tables AS t JOIN system.columns AS c"
        " ON c.table = t.name AND c.database = t.database GROUP BY ALL SETTINGS max_threads = 1",
        "SHOW CREATE TABLE messages",
        "DESCRIBE TABLE system.parts",
        "EXISTS TABLE system.parts",
    ):
        read(server, sql)


def test_the_user_with_a_password_sees_all(server: BrokerProcess) -> None:
    path = write(server, "SELECT path FROM system.disks WHERE name = 'default'")
    assert str(server.data_dir) in path
    assert ask(server, "SELECT hostName()", headers=WRITER).text == f"{socket.gethostname()}\n"
