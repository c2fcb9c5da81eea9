"""Database `brokerhouse` of a cluster shows the same as if one broker had all the rows.

One engine plays two shards, each in a database of its own. A third database has the rows of both:
every view of the cluster has to give the same rows as the same view there. One embedded engine
cannot query another, so unions stand for the Distributed tables. How ClickHouse runs Distributed
tables is tested with a cluster whose two shards are both this engine: every row comes twice there.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from itertools import groupby

import pytest
import pytest_asyncio

from brokerhouse.common.text_table import word_set
from brokerhouse.sql import queries
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    ClusterMigration,
    people_migrations,
    shard_migrations,
)
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE, EngineError, Parameter, Row
from brokerhouse.storage.schema_files import FileKind, Whole, replaced_unread, schema_files

LAYOUT = ClusterLayout("test", replicated=False, distributed=True)
pytestmark = pytest.mark.asyncio(loop_scope="module")

WHOLE_CLUSTER = {
    file.subject: file.whole
    for file in schema_files()
    if file.kind in (FileKind.TABLE, FileKind.VIEW)
}
FIRST, SECOND, TOGETHER = SHARD_DATABASE, "second_shard", "all_rows"
DISTRIBUTED = "over_distributed"
PORT = 9000
"""Nothing listens there: to the engine, a server with its own port is the engine itself."""
NOBODY = "00000000-0000-0000-0000-000000000000"
# Random, as those that brokers make: messages_committed names a partition by a part of the id.
ORDERS, PAYMENTS = "e501012c-1b8f-4ae1-afb8-c3b50ce188e8", "8d56440e-a206-4237-853f-8acb0e16fc7c"
COUNTED = ("partition_minutes", "partition_seconds")
FEED = "00000000-0000-0000-0000-00000000000f"
INVOICES = "05146d5f-f000-42a2-9565-6a052cf72d5a"


TWICE = f"""<clickhouse>
    <tcp_port>{PORT}</tcp_port>
    <remote_servers><test>
        <shard><replica><host>127.0.0.1</host><port>{PORT}</port></replica></shard>
        <shard><replica><host>127.0.0.1</host><port>{PORT}</port></replica></shard>
    </test></remote_servers>
</clickhouse>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEngine]:
    """Tables of three databases, empty."""
    data_dir = tmp_path_factory.mktemp("views") / "data"
    (data_dir / "engine.d").mkdir(parents=True)
    (data_dir / "engine.d" / "servers.xml").write_text(TWICE)
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    try:
        for database in (FIRST, SECOND, TOGETHER):
            await engine.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
            for one in last_ones(shard_migrations(LAYOUT)):
                await engine.execute(one.statement.replace(f"{SHARD_DATABASE}.", f"{database}."))
        yield engine
    finally:
        await engine.close()


def last_ones(found: Sequence[ClusterMigration]) -> list[ClusterMigration]:
    """Without views that are replaced by a later one before anything reads them."""
    replaced = replaced_unread(schema_files())
    return [one for one in found if one.number not in replaced]


def as_union(statement: str) -> str:
    """A Distributed table as a view of the two databases that stand for shards."""
    match = re.match(r"CREATE OR REPLACE TABLE (\S+) AS \S+\.(\S+)\n", statement)
    if match is None:
        return statement
    number = ", {} AS _shard_num" if match[2] in COUNTED else ""
    parts = [
        f"SELECT *{number.format(shard)} FROM {database}.{match[2]}"
        for shard, database in enumerate((FIRST, SECOND), 1)
    ]
    return f"CREATE OR REPLACE VIEW {match[1]} AS {' UNION ALL '.join(parts)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(engine: EmbeddedEngine) -> EmbeddedEngine:
    for one in people_migrations(LAYOUT):
        await engine.execute(as_union(one.statement))
    return engine


class Rows:
    """Writes rows to one shard or to both, and once to the database that has all rows."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.now = f"fromUnixTimestamp64Milli(toInt64({time.time_ns() // 1_000_000}))"
        """The same in each database, however long the statements take."""

    async def put(self, table: str, select: str, *shards: str) -> None:
        for database in (*shards, TOGETHER):
            into = select.replace("FROM messages", f"FROM {database}.messages")
            await self._engine.execute(f"INSERT INTO {database}.{table} {into}")

    async def topic(self, name: str, topic_id: str, partitions: int) -> None:
        await self.put(
            "topic_versions (topic_id, version, name, partitions, state, changed_at)",
            f"SELECT '{topic_id}', 1, '{name}', {partitions}, 'live', '2026-01-01'",
            *(FIRST, SECOND),
        )

    async def log(
        self, shard: str, topic: str, partition: int, offsets: range, minutes_ago: int
    ) -> None:
        topic_id = {"orders": ORDERS, "payments": PAYMENTS}[topic]
        await self.put(
            "messages (topic, topic_id, partition, offset, value, append_time)",
            f"SELECT '{topic}', '{topic_id}', {partition}, number, 'abc',"
            f" {self.now} - INTERVAL {minutes_ago} MINUTE"
            f" FROM numbers({offsets.start}, {len(offsets)})",
            shard,
        )

    async def count(self, database: str, minutes_ago: int) -> None:
        """What the broker's roll-up would have written by then."""
        until = f"toStartOfMinute({self.now}) - INTERVAL {minutes_ago} MINUTE"
        await self._engine.execute(
            f"INSERT INTO {database}.partition_minutes"
            " SELECT topic, topic_id, partition, toStartOfMinute(append_time) AS minute, count(),"
            " sum(length(value)), min(offset), max(offset), min(append_time), max(append_time)"
            f" FROM {database}.messages WHERE append_time < toDateTime64({until}, 3)"
            " GROUP BY ALL UNION ALL"
            f" SELECT '', toUUID('{NOBODY}'), -1, {until} - INTERVAL 1 MINUTE, 0, 0, 0, -1,"
            f" {until}, {until}"
        )

    async def count_seconds(self, database: str, minutes_ago: int) -> None:
        """What the broker's roll-up would have written when that minute was nearly over."""
        minute = f"toStartOfMinute({self.now}) - INTERVAL {minutes_ago} MINUTE"
        until = f"toDateTime64({minute}, 3) + INTERVAL 60 SECOND"
        await self._engine.execute(
            f"INSERT INTO {database}.partition_seconds SELECT topic, topic_id, partition, {minute},"
            f" {until}, count(), sum(length(value)), min(offset), max(offset), min(append_time),"
            f" max(append_time) FROM {database}.messages"
            f" WHERE append_time >= {minute} AND append_time < {until} GROUP BY ALL UNION ALL"
            f" SELECT '', toUUID('{NOBODY}'), -1, {minute}, {until}, 0, 0, 0, -1, {until}, {until}"
        )

    async def group(self, shard: str, group: str, reads: str) -> None:
        await self.put(
            "consumer_group_versions (group_id, version, state, state_time, generation, members,"
            " changed_at)",
            f"SELECT '{group}', 1, 'Stable', '2026-01-01', 3, 1, '2026-01-01'",
            shard,
        )
        await self.put(
            "group_member_versions (group_id, member_id, version, assignment, join_time,"
            " changed_at)",
            f"SELECT '{group}', 'm-{group}', 1, {reads}, '2026-01-01', '2026-01-01'",
            shard,
        )
        await self.put(
            "group_heartbeats (group_id, member_id, heartbeat_time)",
            f"SELECT '{group}', 'm-{group}', '2096-01-02'",
            shard,
        )

    async def commit(
        self, shard: str, group: str, topic: str, partition: int, offset: int, version: int = 1
    ) -> None:
        topic_id = {"orders": ORDERS, "payments": PAYMENTS}[topic]
        await self.put(
            "consumer_offsets (group_id, topic, topic_id, partition, offset, commit_time, version)",
            f"SELECT '{group}', '{topic}', '{topic_id}', {partition}, {offset},"
            f" {self.now} - INTERVAL 1 MINUTE, {version}",
            shard,
        )

    async def open_transaction(self, shard: str, transactional_id: str) -> None:
        """With one record, in a topic that nobody else names."""
        await self.put(
            "transaction_versions (transactional_id, version, producer_id, state, partitions,"
            " start_time)",
            f"SELECT '{transactional_id}', 1, 7, 'Ongoing', [('invoices', '{INVOICES}', 0)],"
            f" {self.now}",
            shard,
        )
        await self.put(
            "open_transaction_versions (topic, topic_id, partition, producer_id,"
            " transaction_start, version)",
            f"SELECT 'invoices', '{INVOICES}', 0, 7, 0, 1",
            shard,
        )
        await self.put(
            "messages (topic, topic_id, partition, offset, timestamp_type, producer_id,"
            " transactional, transaction_start, append_time)",
            f"SELECT 'invoices', '{INVOICES}', 0, 0, 'CreateTime', 7, true, 0, {self.now}",
            shard,
        )

    async def compacted(self, shard: str, batch: int, noted: str | None) -> None:
        """A batch of three records, and what the broker stores beside it."""
        batch_id = f"00000000-0000-0000-0000-00000000000{batch}"
        await self.put(
            "compaction_removals (batch_id, topic, topic_id, partition, ranges, records)",
            f"SELECT '{batch_id}', 'orders', '{ORDERS}', 0, [({batch * 3}, {batch * 3 + 2})], 3",
            shard,
        )
        if noted is not None:
            await self.put(
                "compaction_applied (batch_id, topic_id, removed, refused)",
                f"SELECT '{batch_id}', '{ORDERS}', {0 if noted else 3}, '{noted}'",
                shard,
            )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rows(engine: EmbeddedEngine) -> Rows:
    """Two shards with some rows of every kind.

    Partition 0 of orders began on the first shard and went on on the second one. The first has
    counted nearly all of its log, the second little, and a minute of it in parts.
    """
    rows = Rows(engine)
    await rows.topic("orders", ORDERS, 3)
    await rows.topic("payments", PAYMENTS, 1)
    await rows.log(FIRST, "orders", 0, range(10), 25)
    await rows.log(SECOND, "orders", 0, range(10, 15), 12)
    await rows.log(SECOND, "orders", 0, range(15, 18), 0)
    await rows.log(SECOND, "orders", 1, range(5), 30)
    await rows.log(SECOND, "orders", 1, range(5, 8), 20)
    await rows.log(FIRST, "payments", 0, range(4), 4)
    await rows.compacted(FIRST, 1, "")
    await rows.compacted(SECOND, 2, "not compacted")
    await rows.compacted(SECOND, 3, None)
    await rows.count(FIRST, 1)
    await rows.count(SECOND, 20)
    await rows.count_seconds(SECOND, 20)
    await rows.count(TOGETHER, 1)
    await rows.group(FIRST, "billing", "map('orders', map(0, 'm-billing', 1, 'm-billing'))")
    await rows.group(SECOND, "shipping", "map('payments', map(0, 'm-shipping'))")
    await rows.commit(FIRST, "billing", "orders", 0, 2)
    await rows.commit(FIRST, "billing", "orders", 0, 16, version=2)
    await rows.commit(FIRST, "billing", "orders", 1, 1)
    await rows.commit(SECOND, "shipping", "payments", 0, 2)
    await rows.commit(SECOND, "shipping", "orders", 0, 11)
    await rows.put(
        "partition_checkpoints", f"SELECT '{ORDERS}', 1, toInt64(2), toInt64(0), 0", SECOND
    )
    await rows.open_transaction(SECOND, "id")
    await rows.put(
        "failed_view_versions (database, view, error)", "SELECT 'default', 'typed', 'bad'", FIRST
    )
    await rows.put(
        "failed_view_offsets (database, view, topic, topic_id, partition, first_offset)",
        f"SELECT 'default', 'typed', 'orders', '{ORDERS}', 1, 5",
        FIRST,
    )
    await rows.put(
        "view_doubts (database, view, topic, topic_id, partition, first_offset, end_offset)",
        f"SELECT 'default', 'typed', 'orders', '{ORDERS}', 0, 5, 7",
        FIRST,
    )
    await rows.put(
        "table_feed_versions (name, version, feed_id, topics, format, status)",
        f"SELECT 'shop.orders', 1, '{FEED}', ['orders'], 'json', 'running'",
        FIRST,
    )
    for partition, database in enumerate((FIRST, SECOND)):
        await rows.put(
            "table_feed_blocks (feed, feed_id, topic, topic_id, partition, version, phase,"
            " first_offset, end_offset, total_rows, time)",
            f"SELECT 'shop.orders', '{FEED}', 'orders', '{ORDERS}', {partition}, 3, 'after', 0, 5,"
            f" 5, {rows.now}",
            database,
        )
        await rows.put(
            "dead_letter_versions (feed, feed_id, topic, topic_id, partition, offset, error)",
            f"SELECT 'shop.orders', '{FEED}', 'orders', '{ORDERS}', {partition}, 4, 'bad'",
            database,
        )
    return rows


async def told(engine: EmbeddedEngine, database: str, query: str) -> list[Row]:
    return await engine.rows(query.replace("FROM ", f"FROM {database}.") + " ORDER BY ALL")


SAME = {
    "messages": "SELECT topic, partition, offset, value FROM messages",
    "messages_committed": "SELECT topic, partition, offset, timestamp FROM messages_committed",
    "topics": "SELECT * FROM topics",
    "consumer_groups": "SELECT * FROM consumer_groups",
    "group_members": "SELECT * FROM group_members",
    "group_assignments": "SELECT * FROM group_assignments",
    "group_state": "SELECT * FROM group_state",
    "latest_offsets": "SELECT group_id, topic, partition, offset, version FROM latest_offsets",
    "current_offsets": "SELECT group_id, topic, partition, offset FROM current_offsets",
    "partition_stats": "SELECT * FROM partition_stats",
    "topic_stats": "SELECT * EXCEPT (records_per_second, bytes_per_second) FROM topic_stats",
    "topic_minutes": "SELECT topic, partition, minute, sum(records), sum(bytes), max(end_offset)"
    " FROM topic_minutes GROUP BY topic, partition, minute",
    "consumer_lag": "SELECT * EXCEPT (lag_seconds, commit_time) FROM consumer_lag",
    "compaction_batches": "SELECT topic, partition, records, state, removed, refused"
    " FROM compaction_batches",
    "transactions": "SELECT * EXCEPT (start_time, update_time) FROM transactions",
    "open_transactions": "SELECT * FROM open_transactions",
    "failed_views": "SELECT * EXCEPT failed_at FROM failed_views",
    "table_feeds": "SELECT * EXCEPT changed_at FROM table_feeds",
    "table_feed_progress": "SELECT * EXCEPT since FROM table_feed_progress",
    "dead_letters": "SELECT * EXCEPT time FROM dead_letters",
}


TIMES = {
    "table_feeds": 1,
    "table_feed_progress": 1,
    "topics": 1,
    "partition_stats": 1,
    "topic_stats": 1,
    "topic_minutes": 1,
    "consumer_lag": 4,
}
"""How often a row is there over two shards that are one; a lag for each commit and each reader."""


@pytest.mark.usefixtures("rows")
async def test_every_view_of_a_cluster_gives_the_same_rows_as_in_one_database(
    cluster: EmbeddedEngine,
) -> None:
    shown = {name for name, whole in WHOLE_CLUSTER.items() if whole is not Whole.NOTHING}
    tables = word_set("""
        partition_checkpoints leader_epochs consumer_group_versions group_member_versions
        group_heartbeats consumer_offsets partition_minutes partition_seconds lag_history
        lag_alerts compaction_removals compaction_applied transaction_versions transaction_offsets
        aborted_transactions open_transaction_versions failed_view_versions failed_view_offsets
        view_doubts table_feed_versions table_feed_blocks dead_letter_versions producer_states
    """)
    assert SAME.keys() == shown - tables
    for name, query in SAME.items():
        of_all = await told(cluster, DATABASE, query)
        assert of_all, name
        assert of_all == await told(cluster, TOGETHER, query), name


@pytest.mark.usefixtures("rows")
async def test_lag_in_seconds_is_right_although_one_shard_has_counted_few_minutes(
    cluster: EmbeddedEngine,
) -> None:
    """What the other shard has counted beyond it is read from the log."""
    query = "SELECT group_id, topic, partition, lag_seconds FROM consumer_lag"
    of_all = await told(cluster, DATABASE, query)
    expected = await told(cluster, TOGETHER, query)
    assert [row[:3] for row in of_all] == [row[:3] for row in expected]
    for (*_, seconds), (*_, wanted) in zip(of_all, expected, strict=True):
        assert float(str(seconds)) == pytest.approx(float(str(wanted)), abs=10)


@pytest.mark.usefixtures("rows")
async def test_a_topic_is_listed_once_though_every_shard_stores_it(cluster: EmbeddedEngine) -> None:
    rows = await cluster.rows(f"SELECT name, partitions FROM {DATABASE}.topics")
    assert rows == [["orders", 3], ["payments", 1]]


@pytest.mark.usefixtures("rows")
async def test_the_tables_show_the_rows_of_both_shards(cluster: EmbeddedEngine) -> None:
    for table in ("consumer_offsets", "group_member_versions", "group_heartbeats"):
        query = "SELECT group_id FROM " + table
        assert await told(cluster, DATABASE, query) == await told(cluster, TOGETHER, query)


@pytest.mark.usefixtures("rows")
async def test_the_views_of_a_cluster_can_be_joined_with_each_other(
    cluster: EmbeddedEngine,
) -> None:
    rows = await cluster.rows(
        "SELECT group_id, state, sum(lag) FROM brokerhouse.consumer_lag AS lag"
        " INNER JOIN brokerhouse.consumer_groups AS one USING (group_id)"
        " GROUP BY group_id, state ORDER BY group_id"
    )
    assert rows == [["billing", "Stable", 9], ["shipping", "Stable", 9]]


@pytest.mark.usefixtures("rows")
async def test_clickhouse_runs_each_view_over_distributed_tables(engine: EmbeddedEngine) -> None:
    await engine.execute(f"CREATE DATABASE {DISTRIBUTED}")
    for one in last_ones(people_migrations(LAYOUT)):
        await engine.execute(one.statement.replace(f"{DATABASE}.", f"{DISTRIBUTED}."))
    for name, query in SAME.items():
        once = await told(engine, FIRST, query)
        of_all = await told(engine, DISTRIBUTED, query)
        assert len(of_all) == len(once) * TIMES.get(name, 2), name
        if name != "topic_minutes":  # it adds up what is there twice
            assert [row for row, _ in groupby(of_all)] == once, name
    asked: dict[str, Parameter] = {"f": str(FEED), "asked": 1 << 42, "topics": f'["{ORDERS}"]'}
    statement = queries.query("replay_progress", database=FIRST)
    assert await engine.rows(statement, asked) == [[1, 1, 0, 0]]
    statement = queries.query("replay_progress", database=DISTRIBUTED)
    assert await engine.rows(statement, asked) == [[2, 2, 0, 0]]


@pytest.mark.usefixtures("rows")
async def test_the_views_of_a_cluster_can_be_created_again(cluster: EmbeddedEngine) -> None:
    for one in people_migrations(LAYOUT):
        await cluster.execute(as_union(one.statement))
    for name, query in SAME.items():
        assert await told(cluster, DATABASE, query), name


async def test_tables_of_a_single_shard_are_not_shown_for_the_whole_cluster(
    cluster: EmbeddedEngine,
) -> None:
    for name, whole in WHOLE_CLUSTER.items():
        if whole is Whole.NOTHING:
            with pytest.raises(EngineError):
                await cluster.rows(f"SELECT count() FROM {DATABASE}.{name}")
