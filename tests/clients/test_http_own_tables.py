"""What a person who may write can do in a database of their own: a table of statements.

The statements are those of ClickHouse's documentation on CREATE, ALTER, SYSTEM and table engines
(https://clickhouse.com/docs/sql-reference/statements). They run in this order.
"""

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import WRITER, ask, read, write
from tests.support.waiting import until

LOG = "SELECT topic, partition, offset FROM brokerhouse.messages"
COUNT = "SELECT topic, count() AS n FROM brokerhouse.messages GROUP BY topic"

WORKS = [
    # keys
    "CREATE TABLE two_keys (a Int64, t DateTime) ENGINE = MergeTree ORDER BY (a, t)",
    "CREATE TABLE no_engine (a Int64, t DateTime) ORDER BY (a, t)",
    "CREATE TABLE no_key (a Int64, t DateTime) ENGINE = MergeTree ORDER BY tuple()",
    "CREATE TABLE no_key_either (a Int64) ORDER BY ()",
    "CREATE TABLE primary (a Int64, t DateTime) PRIMARY KEY (a, t)",
    "CREATE TABLE monthly (a Int64, t DateTime) ENGINE = MergeTree PARTITION BY toYYYYMM(t)"
    " PRIMARY KEY (a) ORDER BY (a, t)",
    "CREATE TABLE column_key (a Int64 PRIMARY KEY, b String)",
    "CREATE TABLE sampled (a Int64, b String) ORDER BY (a, cityHash64(b)) SAMPLE BY cityHash64(b)",
    "CREATE TABLE of_expression (a Int64) ENGINE = MergeTree() ORDER BY -a",
    "CREATE TABLE descending (a Int64, b Int64) ORDER BY (a DESC, b)"
    " SETTINGS allow_experimental_reverse_key = 1",
    "CREATE TABLE of_engine (engine String, CONSTRAINT c CHECK engine = 'x') ORDER BY (engine)",
    # columns, indexes, projections
    "CREATE TABLE codecs (a Int64 CODEC(Delta, ZSTD(3)), b Float64 CODEC(Gorilla, LZ4)) ORDER BY a",
    "CREATE TABLE ttl (a Int64, t DateTime, c String TTL t + toIntervalDay(1)) ORDER BY (a, t)"
    " TTL t + INTERVAL 1 MONTH DELETE WHERE a > 3, t + INTERVAL 1 WEEK GROUP BY a SET c = max(c)",
    "CREATE TABLE indexed (a Int64, b String, INDEX i lower(b) TYPE bloom_filter(0.01) GRANULARITY"
    " 3, INDEX j (a, b) TYPE minmax, INDEX k b TYPE ngrambf_v1(3, 256, 2, 0), INDEX l b TYPE"
    " text(tokenizer = splitByNonAlpha)) ENGINE = MergeTree ORDER BY (a)",
    "CREATE TABLE vectors (a UInt64, v Array(Float32), INDEX i v"
    " TYPE vector_similarity('hnsw', 'L2Distance', 3)) ENGINE = MergeTree ORDER BY a",
    "CREATE TABLE projected (a Int64, b String, PROJECTION p (SELECT a, count() GROUP BY a),"
    " PROJECTION q (SELECT * ORDER BY b)) ENGINE = MergeTree ORDER BY (a, b)",
    "CREATE TABLE checked (a Int64, CONSTRAINT c CHECK a >= 0, CONSTRAINT d ASSUME a < 9)"
    " ORDER BY a",
    "CREATE TABLE defaults (k UInt64 DEFAULT rand64(), v String MATERIALIZED toString(k),"
    " w String ALIAS upper(v), e String EPHEMERAL) ORDER BY (k, v)",
    "CREATE TABLE types (a Int8, b JSON, c Variant(Int8, String), d Dynamic, e Map(String,"
    " Array(Nullable(Int8))), f Tuple(a Int8), g Enum('x' = 1), h Nested(x Int8)) ORDER BY a",
    # engines
    "CREATE TABLE replacing (k UInt64, v String, ver UInt32) ENGINE = ReplacingMergeTree(ver)"
    " ORDER BY (k, v)",
    "CREATE TABLE aggregating (k UInt64, s AggregateFunction(uniq, UInt64))"
    " ENGINE = AggregatingMergeTree ORDER BY tuple(k)",
    "CREATE TABLE collapsing (k UInt64, sign Int8, ver UInt8)"
    " ENGINE = VersionedCollapsingMergeTree(sign, ver) ORDER BY intHash32(k)",
    "CREATE TABLE log_engine (a Int8) ENGINE = Log",
    "CREATE TABLE join_engine (a Int8) ENGINE = Join(ANY, LEFT, a)",
    # from other tables
    "CREATE TABLE alike AS two_keys",
    f"CREATE TABLE selected ENGINE = MergeTree ORDER BY (topic, partition) AS {LOG}",
    f"CREATE TABLE selected_too ORDER BY (topic) AS {LOG}",
    "CREATE TABLE empty ORDER BY tuple() EMPTY AS SELECT 1 AS x",
    "CREATE TABLE cloned CLONE AS selected",
    "CREATE TABLE of_function AS numbers(3)",
    "CREATE OR REPLACE TABLE selected_too (a Int8, t DateTime) ENGINE = MergeTree"
    " ORDER BY (a, toDate(t)) PARTITION BY (toMonday(t), a)",
    "CREATE TABLE target (topic String, n UInt64) ENGINE = MergeTree ORDER BY (topic, n)",
    f"INSERT INTO target {COUNT}",
    # views
    f"CREATE VIEW plain AS {LOG} WHERE topic = (SELECT max(topic) FROM target)",
    f"CREATE VIEW parameters AS {LOG} WHERE topic = {{t:String}}",
    "CREATE OR REPLACE VIEW plain AS WITH a AS (SELECT 1 AS x) SELECT x FROM a",
    "CREATE MATERIALIZED VIEW populated ENGINE = SummingMergeTree ORDER BY (topic, n) POPULATE"
    f" AS {COUNT}",
    "CREATE MATERIALIZED VIEW states ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(d)"
    " ORDER BY (topic, d) AS SELECT topic, toDate(timestamp) AS d, uniqState(key) AS keys"
    " FROM brokerhouse.messages GROUP BY topic, d",
    f"CREATE MATERIALIZED VIEW to_target TO target AS {COUNT}",
    "ALTER TABLE to_target MODIFY QUERY SELECT topic, max(offset) AS n FROM brokerhouse.messages"
    " GROUP BY topic",
    "CREATE MATERIALIZED VIEW refreshed REFRESH EVERY 1 HOUR ENGINE = MergeTree"
    f" ORDER BY (topic, n) AS {COUNT}",
    "CREATE MATERIALIZED VIEW appended REFRESH AFTER 10 MINUTE RANDOMIZE FOR 1 MINUTE APPEND"
    f" TO target AS {COUNT}",
    f"CREATE MATERIALIZED VIEW dependent REFRESH EVERY 1 HOUR DEPENDS ON refreshed TO target"
    f" EMPTY AS {COUNT}",
    "ALTER TABLE refreshed MODIFY REFRESH EVERY 2 HOUR",
    "SYSTEM REFRESH VIEW refreshed",
    "SYSTEM WAIT VIEW refreshed",
    "SYSTEM STOP VIEW refreshed",
    "SYSTEM START VIEW refreshed",
    # dictionaries
    "CREATE DICTIONARY names (n UInt64, topic String DEFAULT '?') PRIMARY KEY n"
    " SOURCE(CLICKHOUSE(TABLE 'target' DB 'own')) LAYOUT(HASHED()) LIFETIME(MIN 0 MAX 300)",
    "CREATE DICTIONARY by_name (topic String, n UInt64 EXPRESSION n + 1) PRIMARY KEY topic"
    " SOURCE(CLICKHOUSE(TABLE 'target')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0)",
    "SELECT dictGet('own.names', 'topic', toUInt64(10))",
    "SELECT * FROM dictionary('own.names')",
    "CREATE TABLE of_dictionary (n UInt64, topic String) ENGINE = Dictionary('own.names')",
    "SYSTEM RELOAD DICTIONARY names",
    # ALTER and others
    "ALTER TABLE two_keys ADD COLUMN c String DEFAULT toString(a) CODEC(ZSTD(1)) AFTER a",
    "ALTER TABLE two_keys MODIFY COLUMN c LowCardinality(String), COMMENT COLUMN c 'x'",
    "ALTER TABLE two_keys RENAME COLUMN c TO d",
    "ALTER TABLE two_keys ADD INDEX i (a, lower(d)) TYPE set(100) GRANULARITY 2",
    "ALTER TABLE two_keys MATERIALIZE INDEX i",
    "ALTER TABLE two_keys DROP INDEX i",
    "ALTER TABLE two_keys ADD PROJECTION p (SELECT a, max(t) GROUP BY a)",
    "ALTER TABLE two_keys MATERIALIZE PROJECTION p",
    "ALTER TABLE two_keys DROP PROJECTION p",
    "ALTER TABLE two_keys ADD CONSTRAINT c CHECK length(d) > 0",
    "ALTER TABLE two_keys DROP CONSTRAINT c",
    "ALTER TABLE two_keys MODIFY ORDER BY (a, t)",
    "ALTER TABLE two_keys MODIFY TTL t + toIntervalMonth(3)",
    "ALTER TABLE two_keys MODIFY SETTING index_granularity = 8192",
    "INSERT INTO two_keys (a, t) SELECT number, now() FROM numbers(3)",
    "ALTER TABLE two_keys UPDATE d = upper(d) WHERE a IN (SELECT number FROM numbers(2))",
    "ALTER TABLE two_keys DELETE WHERE a = 1",
    "DELETE FROM two_keys WHERE a = 2",
    "ALTER TABLE two_keys DROP COLUMN d, MODIFY COMMENT 'x'",
    "ALTER TABLE monthly DROP PARTITION 202601",
    "ALTER TABLE monthly DETACH PARTITION 202601",
    "ALTER TABLE alike REPLACE PARTITION tuple() FROM two_keys",
    "RENAME TABLE codecs TO codecs_2",
    "EXCHANGE TABLES codecs_2 AND replacing",
    "OPTIMIZE TABLE selected FINAL DEDUPLICATE BY topic, partition, offset",
    "CHECK TABLE selected",
    "TRUNCATE TABLE selected",
    "DROP DICTIONARY by_name",
    "DROP VIEW plain",
    "CREATE DATABASE own_too ENGINE = Atomic",
    "RENAME DATABASE own_too TO own_three",
    "DROP DATABASE own_three",
]

FILE = "/etc/passwd"
URL = "URL('http://127.0.0.1:1/', CSV)"
DICTIONARY = "CREATE DICTIONARY x (a UInt64, b String) PRIMARY KEY a"
FROM_TABLE = "SOURCE(CLICKHOUSE(TABLE 'target'))"

REFUSED = [
    # engines that reach outside, or act with rights of their own, whatever stands around them
    f"CREATE TABLE x (a Int8) ENGINE = {URL}",
    f"CREATE TABLE x (a Int8) ENGINE {URL}",
    f"CREATE TABLE x (a Int8) eNgInE/*MergeTree ORDER BY (a)*/=--\n{URL}",
    "CREATE TABLE x (a Int8) ENGINE = `URL`('http://127.0.0.1:1/', CSV)",
    "CREATE TABLE x (a Int8) ENGINE = \"\\x55RL\"('http://127.0.0.1:1/', CSV)",
    f"CREATE TABLE x (a Int8) ENGINE = {URL} ORDER BY (a)",
    f"CREATE TABLE x (a Int8) ENGINE = {URL} PARTITION BY tuple() COMMENT 'ENGINE = MergeTree'",
    "CREATE TABLE x (`ENGINE = MergeTree` Int8) ENGINE = URL(concat('http://', '127.0.0.1:1/'))",
    "CREATE TABLE x (a String DEFAULT 'ENGINE = MergeTree ORDER BY (a, b)')"
    f" ENGINE = File(LineAsString, '{FILE}')",
    f"CREATE TABLE x (a Int8) ENGINE = {URL} SETTINGS engine_url_skip_empty_files = 1",
    f"CREATE TABLE x ENGINE = {URL} AS SELECT tuple(1, 2) AS a",
    f"CREATE TABLE x (`a\n Storage definition\n  Function MergeTree` Int8) ENGINE = {URL}",
    f"CREATE OR REPLACE TABLE x (a Int8) ENGINE = {URL}",
    f"REPLACE TABLE target (a Int8) ENGINE = {URL}",
    f"CREATE TEMPORARY TABLE x (a Int8) ENGINE = {URL}",
    f"CREATE MATERIALIZED VIEW x ENGINE = {URL} AS SELECT tuple(1) AS a",
    f"CREATE MATERIALIZED VIEW x REFRESH EVERY 1 HOUR ENGINE = {URL} AS SELECT 1 AS a",
    "CREATE MATERIALIZED VIEW x TO INNER UUID '11111111-1111-1111-1111-111111111111'"
    f" ENGINE = {URL} AS SELECT 1 AS a",
    f"CREATE TABLE x ENGINE = TimeSeries DATA ENGINE = {URL}",
    f"CREATE TABLE x (a Int8) ENGINE = Memory PARALLEL WITH CREATE TABLE y (a Int8) ENGINE = {URL}",
    "INSERT INTO brokerhouse.lag_alerts (group_id) SELECT 'x' PARALLEL WITH"
    " ALTER TABLE brokerhouse.lag_alerts ATTACH PARTITION 202611",
    "CREATE TABLE x AS target ENGINE = Merge('own', 'target')",
    "CREATE TABLE x AS target ENGINE = Buffer('brokerhouse', 'messages', 1, 0, 0, 0, 0, 0, 0)",
    "CREATE TABLE x (a Int8) ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY (a)",
    "CREATE DATABASE x ENGINE = MySQL('127.0.0.1:1', 'a', 'b', 'c')",
    "CREATE DATABASE x ENGINE = Filesystem('/etc')",
    f"CREATE TABLE x (a String) ORDER BY (a, file('{FILE}'))",
    "CREATE TABLE x (a String, INDEX i file(a) TYPE minmax) ORDER BY (a)",
    "CREATE TABLE x (a String) ORDER BY (a) SETTINGS disk = disk(type = local, path = '/tmp/x/')",
    "CREATE MATERIALIZED VIEW x REFRESH EVERY 1 HOUR TO target AS"
    " SELECT * FROM url('http://127.0.0.1:1/', CSV, 'topic String, n UInt64')",
    "ALTER TABLE to_target MODIFY QUERY SELECT * FROM"
    " url('http://127.0.0.1:1/', CSV, 'topic String, n UInt64')",
    f"CREATE MATERIALIZED VIEW x REFRESH EVERY 1 HOUR APPEND TO brokerhouse.lag_alerts AS {COUNT}",
    f"CREATE VIEW x DEFINER = default AS {LOG}",
    "ATTACH TABLE x FROM '/tmp/x' (a Int8) ENGINE = MergeTree ORDER BY (a)",
    # dictionaries are loaded with every right
    f"{DICTIONARY} SOURCE(FILE(PATH '{FILE}' FORMAT TSV)) LAYOUT(FLAT()) LIFETIME(1)",
    f"{DICTIONARY} SOURCE(HTTP(URL 'http://127.0.0.1:1/' FORMAT TSV)) LAYOUT(FLAT()) LIFETIME(1)",
    f"{DICTIONARY} SOURCE(EXECUTABLE(COMMAND 'id' FORMAT TSV)) LAYOUT(FLAT()) LIFETIME(1)",
    f"{DICTIONARY} SOURCE(CLICKHOUSE(QUERY 'SELECT 1, file(\\'{FILE}\\')')) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} SOURCE(`clickhouse`(TABLE 'target' `query` 'SELECT 1')) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} SOURCE(CLICKHOUSE(TABLE 'target' WHERE 'file(\\'{FILE}\\')')) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} SOURCE(CLICKHOUSE(TABLE 'target' HOST '127.0.0.1' PORT 1)) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} SOURCE(CLICKHOUSE(TABLE 'target' UPDATE_FIELD 'file(topic)')) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} SOURCE(CLICKHOUSE(TABLE 'target' INVALIDATE_QUERY 'SELECT 1')) LAYOUT(FLAT())"
    " LIFETIME(1)",
    f"{DICTIONARY} {FROM_TABLE} LAYOUT(SSD_CACHE(PATH '/tmp/written_by_sql')) LIFETIME(1)",
    f"{DICTIONARY} {FROM_TABLE} LAYOUT(FLAT()) LIFETIME(1)"
    f" SETTINGS(additional_result_filter = 'file(\\'{FILE}\\')')",
    f"CREATE DICTIONARY x (a UInt64, b String EXPRESSION file('{FILE}')) PRIMARY KEY a"
    f" {FROM_TABLE} LAYOUT(FLAT()) LIFETIME(1)",
    "CREATE DICTIONARY x (a UInt64, b String EXPRESSION (SELECT * FROM"
    " url('http://127.0.0.1:1/', LineAsString))) PRIMARY KEY a"
    f" {FROM_TABLE} LAYOUT(FLAT()) LIFETIME(1)",
    f"CREATE DICTIONARY brokerhouse.x (a UInt64) PRIMARY KEY a {FROM_TABLE} LAYOUT(FLAT())"
    " LIFETIME(1)",
    # statements about the whole server
    "SYSTEM STOP VIEWS",
    "SYSTEM RELOAD DICTIONARIES",
    "SYSTEM STOP MERGES target",
    "DETACH TABLE target",
    "CREATE FUNCTION f AS x -> x + 1",
]


@pytest.fixture(scope="module")
def own(server: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker with the database `own`, in which every statement of WORKS has run."""
    write(server, "CREATE DATABASE own")
    yield server
    write(server, "DROP DATABASE own SYNC")


def test_a_writer_can_use_all_of_clickhouse_in_a_database_of_their_own(
    own: BrokerProcess,
) -> None:
    answers = {sql: ask(own, sql, headers=WRITER, database="own") for sql in WORKS}
    assert {sql: answer.text for sql, answer in answers.items() if answer.status != 200} == {}
    assert read(own, "SELECT dictGet('own.names', 'topic', toUInt64(10))") == "kept\n"
    assert read(own, "SELECT * FROM own.refreshed") == "kept\t10\n"
    keys = "primary_key, sorting_key, partition_key"
    of_table = f"SELECT {keys} FROM system.tables WHERE database = 'own' AND name = 'monthly'"
    assert read(own, of_table) == "(a)\ta, t\ttoYYYYMM(t)\n"


@pytest.mark.parametrize("sql", REFUSED)
def test_a_definition_reaches_nothing_outside(own: BrokerProcess, sql: str) -> None:
    write(own, "CREATE TABLE IF NOT EXISTS own.target (topic String, n UInt64) ORDER BY (topic, n)")
    write(
        own,
        "CREATE MATERIALIZED VIEW IF NOT EXISTS own.to_target TO own.target AS"
        " SELECT topic, 1 AS n FROM brokerhouse.messages",
    )
    answer = ask(own, sql, headers=WRITER, database="own")
    several_statements = 62
    assert answer.code == (several_statements if "PARALLEL WITH" in sql else 497), answer.text
    found = "SELECT count() FROM system.tables WHERE database = 'own' AND name IN ('x', 'y')"
    assert read(own, found) == "0\n"
    assert ask(own, sql, database="own").code == answer.code


def test_a_definition_may_name_its_tables_by_parameters(own: BrokerProcess) -> None:
    create = "CREATE TABLE {name:Identifier} (a Int8) ENGINE = %s ORDER BY (a, a + 1)"
    write(own, create % "MergeTree", database="own", param_name="named")
    answer = ask(own, create % "URL('x')", headers=WRITER, database="own", param_name="MergeTree")
    assert answer.code == 497


def test_names_in_a_dictionary_stay_names(own: BrokerProcess) -> None:
    """The engine writes them into a query that it runs with every right."""
    write(own, "CREATE TABLE own.keys (a UInt64, b String) ORDER BY (a, b)")
    write(own, "INSERT INTO own.keys VALUES (1, 'x')")
    attribute = f"`b`` , file('{FILE}') AS ``c`"
    table = f"keys` UNION ALL SELECT 1, file(\\'{FILE}\\') -- "
    for columns, source in ((attribute, "keys"), ("b", table)):
        write(
            own,
            f"CREATE OR REPLACE DICTIONARY own.names_only (a UInt64, {columns} String)"
            f" PRIMARY KEY a SOURCE(CLICKHOUSE(TABLE '{source}' DB 'own')) LAYOUT(FLAT())"
            " LIFETIME(0)",
        )
        answer = ask(own, "SELECT * FROM own.names_only", headers=WRITER)
        assert answer.code in (47, 60), answer.text


def test_a_deep_definition_is_refused_and_the_broker_lives(own: BrokerProcess) -> None:
    deep = "(" * 900 + "a" + ")" * 900
    nested = "negate(" * 900 + "a" + ")" * 900
    for key in (deep, nested):
        answer = ask(
            own, f"CREATE TABLE own.deep (a Int8) ENGINE = URL('x') ORDER BY {key}", headers=WRITER
        )
        assert answer.status in (400, 403, 500), answer.text
        assert answer.code in (62, 167, 306, 497), answer.text
    assert read(own, "SELECT 1") == "1\n"


def test_a_refreshable_view_refreshes_by_itself(own: BrokerProcess) -> None:
    write(
        own,
        "CREATE MATERIALIZED VIEW own.ticks REFRESH EVERY 1 SECOND APPEND"
        " ENGINE = MergeTree ORDER BY (t, n) AS SELECT now() AS t, 1 AS n",
    )
    until(lambda: read(own, "SELECT uniqExact(t) >= 2 FROM own.ticks") == "1\n", limit_s=30)
    write(own, "DROP VIEW own.ticks SYNC")


def test_a_copy_of_the_log_has_its_codecs(own: BrokerProcess) -> None:
    """None in new parts, ZSTD in merged ones (storage/part_codecs.py)."""
    write(own, "CREATE TABLE own.copy AS brokerhouse.messages")
    for _ in range(2):
        write(own, "INSERT INTO own.copy (value) SELECT hex(number) FROM numbers(1000)")
    write(own, "OPTIMIZE TABLE own.copy FINAL")
    codecs = "SELECT groupUniqArray(default_compression_codec) FROM system.parts"
    parts = f"{codecs} WHERE database = 'own' AND table = 'copy'"
    assert read(own, f"{parts} AND active") == "['ZSTD(1)']\n"
    assert read(own, f"{parts} AND NOT active") == "['NONE']\n"
    write(own, "DROP TABLE own.copy SYNC")
