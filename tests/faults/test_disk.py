"""A disk that is full.

Acknowledged records stay, others are not in the log, offsets stay dense, and the same broker
continues when there is space again. Definitions of tables that had no space are those before.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.producer import InitProducerIdRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol import errors
from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.definition_files import DefinitionFiles
from tests.conftest import OwnBrokers
from tests.support import messages, samples
from tests.support.broker_process import NEVER_MS, BrokerProcess
from tests.support.engine_owner import EngineOwner
from tests.support.failing_start import one_sentence, start_that_fails
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of
from tests.support.server_process import PROJECT
from tests.support.small_disk import MIB, in_a_mount_namespace, running, small_disk
from tests.support.sql_rows import SqlError
from tests.support.waiting import until
from tests.support.wire import Wire

VERSION = 12  # of Produce and of Fetch: the last with topic names
STORAGE_ERROR = errors.KafkaStorageError.code


class Producer:
    """An idempotent producer that repeats what was not acknowledged, and remembers what was."""

    def __init__(self, broker: BrokerProcess, target: Target) -> None:
        self._target = target
        self._sequence = 0
        self.stored: dict[int, bytes] = {}
        self.refused = 0
        self.connect(broker)
        asked = InitProducerIdRequest(transactional_id=None, producer_id=-1)
        self._producer_id = self._wire.ask(asked, 4).producer_id

    def connect(self, broker: BrokerProcess) -> None:
        self._wire = Wire(broker)

    def send(self, size: int = 1000) -> int:
        """One record; the error code. The same one comes again until it is acknowledged."""
        value = b"%d " % self._sequence + bytes(size)
        batch = batch_of(
            Record(value=value),
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        answer = self._wire.ask(messages.produce(self._target, batch.data), VERSION)
        partition = answer.responses[0].partition_responses[0]
        if partition.error_code:
            self.refused += 1
            return int(partition.error_code)
        assert partition.base_offset == self._sequence == len(self.stored), "offsets are dense"
        self.stored[partition.base_offset] = b"%d" % self._sequence
        self._sequence += 1
        return 0

    def check(self, broker: BrokerProcess) -> None:
        """What was acknowledged is there once, and nothing else, by SQL and by Fetch."""
        rows = broker.sql(
            "SELECT offset, splitByChar(' ', assumeNotNull(value))[1] AS value FROM messages"
            " WHERE topic = {topic:String} ORDER BY offset",
            {"topic": self._target.name},
        )
        assert {row["offset"]: row["value"].encode() for row in rows} == self.stored
        assert len(rows) == len(self.stored)
        with Wire(broker) as wire:
            position = 0
            while position < len(self.stored):
                asked = messages.fetch(self._target, position)
                found = wire.ask(asked, VERSION).responses[0].partitions[0]
                assert found.error_code == 0
                assert found.high_watermark == len(self.stored)
                position = messages.end_offset(bytes(found.records))


class TestFullDisk:
    @in_a_mount_namespace
    def test_nothing_is_lost_or_doubled_on_a_full_disk_and_the_same_broker_goes_on(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        with small_disk(tmp_path) as disk, running(disk.path) as broker:
            with Wire(broker) as wire:
                producer = Producer(broker, messages.create_topic(wire, topic))
            for _ in range(50):
                assert producer.send() == 0
            producer.check(broker)
            disk.fill()
            for _ in range(50):
                assert producer.send() == STORAGE_ERROR
            producer.check(broker)
            disk.free()
            for _ in range(50):
                assert producer.send() == 0
            producer.check(broker)
            disk.fill()
            assert producer.send() == STORAGE_ERROR
            broker.kill()
            disk.free()
            broker.start()
            producer.connect(broker)
            producer.check(broker)
            assert [producer.send() for _ in range(10)] == [0] * 10
            producer.check(broker)

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_rows_that_wait_in_the_journal_are_served_and_never_silently_missing(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        settings = {"journal_insert_ms": NEVER_MS}
        with small_disk(tmp_path) as disk, running(disk.path, **settings) as broker:
            with Wire(broker) as wire:
                target = messages.create_topic(wire, topic)
                producer = Producer(broker, target)
                for _ in range(50):
                    assert producer.send() == 0
                disk.fill()
                assert producer.send() == STORAGE_ERROR
                read = wire.ask(messages.fetch(target, 0), VERSION).responses[0].partitions[0]
                assert read.high_watermark == 50
                assert messages.end_offset(bytes(read.records)) == 50
            with pytest.raises(SqlError, match="acknowledged rows cannot be put into the table"):
                broker.sql("SELECT count() FROM messages")
            assert broker.sql("SELECT 1 AS one") == [{"one": 1}]
            disk.free()
            until(lambda: producer.send() == 0)
            producer.check(broker)
            for _ in range(50):
                assert producer.send() == 0
            disk.fill()
            broker.kill()
            disk.free()
            broker.start()
            producer.connect(broker)
            producer.check(broker)

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_nothing_is_lost_while_space_comes_and_goes_at_any_moment(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        """Somebody else fills the disk while blocks are written, and chDB hides it.

        The broker may refuse to go on before a restart; what it acknowledged must be there.
        """
        with small_disk(tmp_path, 256 * MIB) as disk, running(disk.path) as broker:
            with Wire(broker) as wire:
                target = messages.create_topic(wire, topic)
            producer = Producer(broker, target)
            stop, filling = threading.Event(), threading.Lock()

            def breathe() -> None:
                for room, free_s in itertools.cycle(
                    ((2 * MIB, 0.0), (3 * MIB, 0.0), (90 * MIB, 0.0), (90 * MIB, 0.05))
                ):
                    if stop.wait(0.005):
                        return
                    with filling:
                        disk.free(room)
                        stop.wait(free_s)
                        disk.fill()

            disk.fill()
            breathing = threading.Thread(target=breathe, daemon=True)
            breathing.start()
            restarts = 0
            while producer.refused < 30 or len(producer.stored) < 30:
                code = producer.send(500_000)
                if code == errors.UnknownServerError.code:
                    restarts += 1
                    with filling:
                        broker.kill()
                        broker.start()
                    producer.connect(broker)
                else:
                    assert code in (0, STORAGE_ERROR)
            stop.set()
            breathing.join(30)
            disk.free()
            broker.kill()
            broker.start()
            producer.connect(broker)
            assert [producer.send() for _ in range(10)] == [0] * 10
            producer.check(broker)
        print(f"{producer.refused} refused, {len(producer.stored)} stored, {restarts} restarts")

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_every_api_is_answered_on_a_full_disk(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        settings = {"group_initial_rebalance_delay_ms": "0"}
        with (
            small_disk(tmp_path) as disk,
            running(disk.path, **settings) as broker,
            Wire(broker) as wire,
        ):
            target = messages.create_topic(wire, topic)
            wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 2}]
            disk.fill()
            before = broker.log_size()
            for key, version in samples.every_version():
                answer = wire.ask(samples.sample(key, version, target), version)
                if key is ApiKey.Produce:
                    partition = answer.responses[0].partition_responses[0]
                    assert partition.error_code == STORAGE_ERROR
                if key is ApiKey.Fetch:
                    assert answer.responses[0].partitions[0].records
                if key is ApiKey.InitProducerId:
                    assert answer.error_code in (0, STORAGE_ERROR)
            create = samples.sample(ApiKey.CreateTopics, 7, target)
            create.validate_only = False
            for created in wire.ask(create, 7).topics:
                assert created.error_code == STORAGE_ERROR
                assert "delete topics or records" in created.error_message
            asked = samples.sample(ApiKey.Metadata, 11, Target(f"{topic}-new", target.topic_id))
            asked.allow_auto_topic_creation = True
            assert wire.ask(asked, 11).topics[0].error_code != 0
            assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 2}]
            assert "Traceback" not in broker.log(before, MIB)
            disk.free()
            answer = wire.ask(create, 7)
            assert [created.error_code for created in answer.topics] == [0, 0]
            assert APIS.keys() == {key for key, _ in samples.every_version()}

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_readers_go_on_while_rows_of_deleted_topics_cannot_be_removed(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        """Merges stop on a low disk, and with them the deletion of rows."""
        with small_disk(tmp_path, 256 * MIB) as disk, running(disk.path) as broker:
            with Wire(broker) as wire:
                doomed = [messages.create_topic(wire, f"{topic}-{n}") for n in range(6)]
                kept = messages.create_topic(wire, topic)
                for target in (*doomed, kept):
                    wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            broker.restart()
            disk.fill()
            disk.free(100 * MIB)
            until(lambda: "merges stop" in broker.log(), "the broker says that merges stop")
            with Wire(broker) as wire:
                state = DeleteTopicsRequest.DeleteTopicState
                names = [state(name=target.name, topic_id=None) for target in doomed]
                deleted = wire.ask(DeleteTopicsRequest(topics=names, timeout_ms=10_000), 6)
                assert [item.error_code for item in deleted.responses] == [0] * len(doomed)
                found = wire.ask(messages.list_offsets(kept, 0), 7).topics[0].partitions[0]
                assert found.offset == 0
                read = wire.ask(messages.fetch(kept, 0), VERSION).responses[0].partitions[0]
                assert messages.end_offset(bytes(read.records)) == 2

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_a_start_on_a_full_disk_serves_what_is_there(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        with small_disk(tmp_path) as disk:
            with running(disk.path) as broker:
                with Wire(broker) as wire:
                    producer = Producer(broker, messages.create_topic(wire, topic))
                assert producer.send() == 0
            disk.fill()
            with running(disk.path) as broker:
                producer.connect(broker)
                producer.check(broker)
                assert producer.send() == STORAGE_ERROR
                disk.free()
                assert producer.send() == 0
                producer.check(broker)

    @pytest.mark.test_all
    def test_a_block_that_the_table_refuses_is_not_acknowledged(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """chDB's streaming insert returns as if such a block was stored."""
        broker = own_broker()
        broker.stop()
        constraint = "no_secrets CHECK value IS NULL OR value != 'secret'"
        _run_sql(broker.data_dir, f"ALTER TABLE messages ADD CONSTRAINT {constraint}")
        broker.start()
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            for value, code in ((b"public", 0), (b"secret", STORAGE_ERROR), (b"public", 0)):
                batch = batch_of(Record(value=value)).data
                answer = wire.ask(messages.produce(target, batch), VERSION)
                assert answer.responses[0].partition_responses[0].error_code == code
            found = wire.ask(messages.list_offsets(target, -1), 7).topics[0].partitions[0]
            assert found.offset == 2
        assert broker.sql("SELECT value FROM messages") == [{"value": "public"}] * 2


class TestDefinitions:
    """The files that say what tables are (storage/definition_files.py)."""

    @pytest.mark.test_all
    def test_a_definition_that_was_lost_in_a_change_is_taken_from_its_copy(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            producer = Producer(broker, messages.create_topic(wire, topic))
        for _ in range(50):
            assert producer.send() == 0
        producer.check(broker)  # half of them are in the table, and half in the journal
        for _ in range(50):
            assert producer.send() == 0
        broker.kill()
        _empty_definition(broker.data_dir, "messages", copied=True)
        broker.start()
        assert "the definition of brokerhouse.messages" in broker.log()
        producer.connect(broker)
        producer.check(broker)
        assert producer.send() == 0
        producer.check(broker)

    @pytest.mark.test_all
    def test_without_a_copy_the_start_says_which_file_is_damaged(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            producer = Producer(broker, messages.create_topic(wire, topic))
        assert producer.send() == 0
        broker.stop()
        path = _empty_definition(broker.data_dir, "messages", copied=False)
        code, printed = start_that_fails(broker.data_dir)
        assert code == 1
        assert one_sentence(printed).endswith(f"or put the definition into {path}")

    @pytest.mark.test_all
    def test_a_deletion_that_was_not_stored_is_made_after_the_next_start(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """The broker was killed before it knew that the deletion of the topic was stored."""
        broker = own_broker()
        with Wire(broker) as wire:
            kept = Producer(broker, messages.create_topic(wire, f"{topic}-kept"))
            target = messages.create_topic(wire, topic)
            wire.ask(messages.produce(target, messages.small_batch()), VERSION)
        assert kept.send() == 0
        kept.check(broker)
        broker.stop()
        _run_sql(
            broker.data_dir,
            "INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)"
            " SELECT topic_id, version + 1, name, partitions, configs, 'deleting'"
            f" FROM topic_versions WHERE name = '{topic}'",
        )
        table = broker.data_dir / "clickhouse" / "data" / "brokerhouse" / "messages"
        (table / "mutation_1000000.txt").touch()
        broker.start()
        assert "a change of rows of brokerhouse.messages: the change was not" in broker.log()
        found = "SELECT count() AS n FROM messages WHERE topic = {topic:String}"
        until(lambda: broker.sql(found, {"topic": topic}) == [{"n": 0}])
        kept.connect(broker)
        kept.check(broker)

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_a_broker_starts_after_users_created_and_changed_tables_on_a_full_disk(
        self, tmp_path: Path, topic: str, request: pytest.FixtureRequest
    ) -> None:
        settings = {"sql_user": "admin", "sql_password": "secret"}
        with small_disk(tmp_path, 256 * MIB) as disk, running(disk.path, **settings) as broker:

            def run(sql: str) -> None:
                broker.sql(sql, user="admin", password="secret")

            with Wire(broker) as wire:
                producer = Producer(broker, messages.create_topic(wire, topic))
            assert producer.send() == 0
            producer.check(broker)
            run("CREATE DATABASE shop")
            run("CREATE TABLE shop.orders (n Int64) ENGINE = MergeTree ORDER BY n")
            run("INSERT INTO shop.orders VALUES (7)")
            run("CREATE VIEW shop.all_orders AS SELECT n FROM shop.orders")
            disk.fill()
            for sql in (
                "ALTER TABLE shop.orders ADD COLUMN note String",
                "CREATE OR REPLACE VIEW shop.all_orders AS SELECT 1",
                "CREATE TABLE shop.more (n Int64) ENGINE = MergeTree ORDER BY n",
                "CREATE VIEW shop.more_orders AS SELECT n FROM shop.orders",
                "CREATE MATERIALIZED VIEW shop.topics ENGINE = MergeTree ORDER BY topic"
                " AS SELECT topic FROM brokerhouse.messages",
                "CREATE DATABASE market",
            ):
                with pytest.raises(SqlError, match="The disk was full") as refused:
                    run(sql)
                assert refused.value.code == 243
            broker.kill()
            disk.free()
            broker.start()
            producer.connect(broker)
            producer.check(broker)
            assert broker.sql("SELECT * FROM shop.all_orders") == [{"n": 7}]
            tables = broker.sql("SELECT name FROM system.tables WHERE database = 'shop' ORDER BY 1")
            assert [row["name"] for row in tables] == ["all_orders", "orders"]
            run("CREATE DATABASE market")
            assert not list((disk.path / "definitions").iterdir())

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_the_log_is_whole_after_definitions_changed_while_space_came_and_went(
        self, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """The engine is killed again and again in the middle of changes of the log's table."""
        with small_disk(tmp_path, 256 * MIB) as disk:
            for _ in range(8):
                owner = EngineOwner(disk.path, _CHANGE_DEFINITIONS)
                try:
                    assert owner.line() == "open"
                    outcomes = {"refused": 0, "done": 0}
                    while outcomes["refused"] < 20 or outcomes["done"] < 20:
                        disk.fill()
                        if sum(outcomes.values()) % 3 == 0:
                            disk.free(MIB)
                        outcomes[owner.line()] += 1
                finally:
                    disk.fill()
                    owner.kill()
                    disk.free()
            with running(disk.path) as broker:
                assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 8}]


_CHANGE_DEFINITIONS = """
import asyncio, sys
from pathlib import Path
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.schema import migrate
async def main():
    engine = EmbeddedEngine(Path(sys.argv[1]), 1, fsync=False)
    await migrate(engine)
    await engine.execute("INSERT INTO messages (topic) SELECT toString(generateUUIDv4())")
    print("open", flush=True)
    while True:
        for sql in (
            "ALTER TABLE messages MODIFY SETTING merge_selector_base = 100",
            "CREATE OR REPLACE VIEW v AS SELECT 1",
            "ALTER TABLE messages RESET SETTING merge_selector_base",
            "DELETE FROM messages WHERE topic = 'u' SETTINGS lightweight_deletes_sync = 0",
        ):
            try:
                await engine.execute(sql)
            except EngineError as error:
                print("refused" if error.code == 243 else error, flush=True)
            else:
                print("done", flush=True)
asyncio.run(main())
"""


def _empty_definition(data_dir: Path, table: str, *, copied: bool) -> Path:
    """What a kill leaves behind in the middle of a change that the disk has no space for."""
    path = data_dir / "clickhouse" / "metadata" / "brokerhouse" / f"{table}.sql"
    if copied:
        DefinitionFiles(data_dir).keep(path)
    path.unlink()
    path.touch()
    return path


def _run_sql(data_dir: Path, sql: str) -> None:
    """With every right, on the data directory of a broker that has stopped."""
    program = (
        "import sys; from pathlib import Path;"
        " from brokerhouse.storage.embedded import EmbeddedEngine;"
        " EmbeddedEngine(Path(sys.argv[1]), 1, False).handle().query(sys.argv[2], 'Null');"
        " import os; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, data_dir, sql], cwd=PROJECT, check=True)
