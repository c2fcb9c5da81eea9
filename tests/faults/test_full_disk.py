"""A disk that is full is not a dead end: deleting topics or records brings the broker back.

Records are refused with KAFKA_STORAGE_ERROR and a sentence that says what to do. Deleting may use a
reserve, and the same broker takes records again, without a restart.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)

from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import NEVER_MS, BrokerProcess
from tests.support.command_line import in_a_process
from tests.support.messages import Target
from tests.support.prometheus import get
from tests.support.record_batches import Record, batch_of
from tests.support.server_process import ServerProcessError
from tests.support.small_disk import (
    MIB,
    SmallDisk,
    in_a_mount_namespace,
    running,
    small_disk,
)
from tests.support.sql_rows import SqlError
from tests.support.waiting import until
from tests.support.wire import Wire

STORAGE_ERROR = errors.KafkaStorageError.code
ADVICE = "delete topics or records, or add space"
FETCH_VERSION = 12  # the last with topic names
COMMANDS_THAT_STORE = (
    (("produce", "kept"), ("(KAFKA_STORAGE_ERROR)", "0 records are stored")),
    (("topics", "create", "new"), (ADVICE, "(KAFKA_STORAGE_ERROR)")),
    (("consume", "kept", "--group", "new"), ("Error: group new cannot be joined",)),
)
COMMAND_MAX_S = 30.0  # several times their --timeout: the machine may be busy
VERSION = 9  # of Produce: the last but one with topic names, and with error messages


class Full:
    """A broker whose disk is full: most records are in the topic `doomed`, some in `kept`."""

    def __init__(self, disk: SmallDisk, broker: BrokerProcess) -> None:
        self.disk = disk
        self.broker = broker
        self.wire = Wire(broker)
        self.doomed = messages.create_topic(self.wire, "doomed")
        self.kept = messages.create_topic(self.wire, "kept")
        self.acknowledged: list[str] = []

    def fill_with_records(self) -> None:
        sent = 0
        while self.send(self.kept if sent % 8 == 0 else self.doomed) == 0:
            sent += 1

    def send_some(self, count: int) -> None:
        """Records that have space, an eighth of them in `kept`."""
        for n in range(count):
            assert self.send(self.kept if n % 8 == 0 else self.doomed) == 0

    def wait_until_nothing_is_written(self) -> None:
        self.broker.sql("SELECT count() FROM messages")  # nothing waits in the journal then
        until(lambda: self.broker.sql("SELECT count() AS n FROM system.merges") == [{"n": 0}])

    def lose_all_space(self) -> None:
        """Another program takes it, while the engine writes nothing."""
        self.wait_until_nothing_is_written()
        self.disk.fill()

    def send(self, target: Target) -> int:
        """One record of 250 KB that cannot be compressed; the error code."""
        value = os.urandom(250_000)
        now_ms = int(time.time() * 1000)
        batch = batch_of(Record(value=value), base_timestamp=now_ms, max_timestamp=now_ms).data
        answer = self.wire.ask(messages.produce(target, batch), VERSION)
        partition = answer.responses[0].partition_responses[0]
        if partition.error_code:
            assert ADVICE in partition.error_message
        elif target is self.kept:
            self.acknowledged.append(hashlib.md5(value).hexdigest())
        return int(partition.error_code)

    def takes_records(self) -> bool:
        code = self.send(self.kept)
        assert code in (0, STORAGE_ERROR)
        return code == 0

    def delete_topic(self) -> None:
        state = DeleteTopicsRequest.DeleteTopicState
        names = [state(name=self.doomed.name, topic_id=None)]
        answer = self.wire.ask(DeleteTopicsRequest(topics=names, timeout_ms=10_000), 6)
        assert answer.responses[0].error_code == 0, answer

    def delete_records(self) -> None:
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        all_of_it = topic.DeleteRecordsPartition(partition_index=0, offset=-1)
        topics = [topic(name=self.doomed.name, partitions=[all_of_it])]
        answer = self.wire.ask(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def shorten_retention(self) -> None:
        config = AlterConfigsRequest.AlterConfigsResource
        shorter = config.AlterableConfig(name="retention.ms", value="1000")
        doomed = config(resource_type=2, resource_name=self.doomed.name, configs=[shorter])
        answer = self.wire.ask(AlterConfigsRequest(resources=[doomed], validate_only=False), 1)
        assert answer.responses[0].error_code == 0, answer

    def check_kept(self) -> None:
        """All that was acknowledged for `kept` is there, once and in order."""
        rows = self.broker.sql(
            "SELECT offset, lower(hex(MD5(assumeNotNull(value)))) AS md5"
            " FROM messages WHERE topic = 'kept' ORDER BY offset"
        )
        assert [(row["offset"], row["md5"]) for row in rows] == list(enumerate(self.acknowledged))

    def reserve_is_held(self) -> bool:
        return (self.disk.path / "reserve").exists()

    def take_reserve(self, left_bytes: int) -> None:
        (self.disk.path / "reserve").unlink()
        self.disk.fill()
        self.disk.free(left_bytes)

    def end_of(self, target: Target) -> int:
        """The offset after the last record that a consumer gets, from the first one on."""
        position = 0
        while True:
            asked = messages.fetch(target, position)
            found = self.wire.ask(asked, FETCH_VERSION).responses[0].partitions[0]
            assert found.error_code == 0
            if position == found.high_watermark:
                return position
            position = messages.end_offset(bytes(found.records))

    def waits(self) -> bool:
        """Whether acknowledged records have no space in the table."""
        try:
            self.broker.sql("SELECT count() FROM messages")
        except SqlError:
            return True
        return False

    def start_again(self) -> None:
        self.broker.kill()
        self.broker.start()
        self.wire = Wire(self.broker)

    def ready(self) -> tuple[int, str]:
        return get(self.broker.http_url, "/ready")[:2]

    def check_ready_says_why_records_are_refused(self) -> None:
        status, text = self.ready()
        assert status == 503
        assert text.startswith("records are refused: the disk of")
        assert ADVICE in text


@contextmanager
def disk_with_records(directory: Path, size_bytes: int, **settings: str) -> Iterator[Full]:
    settings["disk_reserve_bytes"] = "0"  # the default
    with small_disk(directory, size_bytes) as disk, running(disk.path, **settings) as broker:
        yield Full(disk, broker)


@pytest.mark.test_all
@pytest.mark.parametrize("delete", [Full.delete_topic, Full.delete_records])
@in_a_mount_namespace
def test_deleting_frees_a_disk_that_records_have_filled(
    tmp_path: Path, delete: Callable[[Full], None], request: pytest.FixtureRequest
) -> None:
    with disk_with_records(tmp_path, 300 * MIB) as full:
        full.fill_with_records()
        assert full.reserve_is_held()
        delete(full)
        until(full.takes_records, limit_s=180)
        full.check_kept()
        for _ in range(20):  # it may be refused once more: parts are written before others go
            until(full.takes_records, limit_s=180)
        full.check_kept()


@pytest.mark.test_all
@in_a_mount_namespace
def test_a_broker_that_was_killed_on_a_full_disk_starts_and_deleting_frees_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with disk_with_records(tmp_path, 300 * MIB) as full:
        assert full.ready()[0] == 200
        full.fill_with_records()
        full.check_ready_says_why_records_are_refused()
        for _ in range(3):
            full.start_again()
            assert not full.takes_records()
            full.check_ready_says_why_records_are_refused()
            full.check_kept()
        full.delete_topic()
        until(full.takes_records, limit_s=180)
        until(full.reserve_is_held, limit_s=180)
        until(lambda: full.ready()[0] == 200)
        full.start_again()
        assert full.takes_records()
        full.check_kept()


@pytest.mark.test_all
@in_a_mount_namespace
def test_a_broker_that_cannot_drain_its_journal_starts_reads_and_lets_topics_be_deleted(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Another program has taken the reserve, too, while no broker ran."""
    with disk_with_records(tmp_path, 300 * MIB, journal_insert_ms=NEVER_MS) as full:
        for target in (full.doomed, full.kept):  # each in parts of its own
            for _ in range(40):
                assert full.send(target) == 0
            full.wait_until_nothing_is_written()
        waiting = messages.create_topic(full.wire, "waiting")
        for target in (waiting, full.kept, waiting):
            assert full.send(target) == 0
        full.broker.kill()
        full.take_reserve(72 * MIB)
        for _ in range(2):
            full.start_again()
            assert full.end_of(waiting) == 2
            assert full.end_of(full.kept) == 41
            assert full.end_of(full.doomed) == 40
            with pytest.raises(SqlError, match=r"rows cannot be put into the table.*is full"):
                full.broker.sql("SELECT count() FROM messages")
            assert not full.takes_records()
            full.check_ready_says_why_records_are_refused()
        full.delete_topic()
        until(lambda: not full.waits(), limit_s=180)
        full.check_kept()
        full.disk.free()
        until(full.takes_records, limit_s=180)
        until(full.reserve_is_held, limit_s=180)
        until(lambda: full.ready()[0] == 200)
        full.start_again()
        full.check_kept()
        assert full.end_of(waiting) == 2


@pytest.mark.test_all
@pytest.mark.parametrize("delete", [Full.delete_topic, Full.delete_records, Full.shorten_retention])
@in_a_mount_namespace
def test_deleting_works_when_another_program_took_the_last_byte(
    tmp_path: Path, delete: Callable[[Full], None], request: pytest.FixtureRequest
) -> None:
    with disk_with_records(tmp_path, 500 * MIB, retention_check_interval_ms="2000") as full:
        full.send_some(700)
        full.lose_all_space()
        assert not full.takes_records()
        delete(full)
        until(full.takes_records, limit_s=180)
        full.disk.free()
        until(full.reserve_is_held, limit_s=60)
        full.check_kept()
        full.broker.restart()
        full.wire = Wire(full.broker)
        assert full.takes_records()
        full.check_kept()


@pytest.mark.test_all
@pytest.mark.parametrize("delete", [Full.delete_topic, Full.delete_records])
@in_a_mount_namespace
def test_deleting_works_when_records_in_the_journal_have_no_space_in_the_table(
    tmp_path: Path, delete: Callable[[Full], None], request: pytest.FixtureRequest
) -> None:
    with disk_with_records(tmp_path, 500 * MIB, journal_insert_ms="600000") as full:
        full.send_some(600)
        full.wait_until_nothing_is_written()
        full.send_some(40)  # 10 MB: fewer than what is put into the table at once
        full.disk.fill()
        assert not full.takes_records()
        delete(full)
        until(full.takes_records, limit_s=180)
        full.disk.free()
        full.check_kept()


@pytest.mark.test_all
@in_a_mount_namespace
def test_only_deleting_uses_the_reserve_and_others_are_told_what_to_do(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with disk_with_records(tmp_path, 300 * MIB) as full:
        full.lose_all_space()
        topic = CreateTopicsRequest.CreatableTopic
        wanted = topic(
            name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        created = full.wire.ask(
            CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False), 5
        )
        more = CreatePartitionsRequest.CreatePartitionsTopic(name="kept", count=3, assignments=None)
        enlarged = full.wire.ask(
            CreatePartitionsRequest(topics=[more], timeout_ms=10_000, validate_only=False), 3
        )
        for answer in (created.topics[0], enlarged.results[0]):
            assert answer.error_code == STORAGE_ERROR
            assert ADVICE in answer.error_message
        check_what_commands_say(full.broker)
        assert not full.takes_records()
        assert full.reserve_is_held()


def check_what_commands_say(broker: BrokerProcess) -> None:
    """A command ends within its time, with what the broker said, and not with a traceback."""
    for words, says in COMMANDS_THAT_STORE:
        began = time.monotonic()
        ended = in_a_process(
            *words, "--bootstrap", broker.kafka, "--timeout", "5", stdin="a record\n"
        )
        assert time.monotonic() - began < COMMAND_MAX_S, words
        assert ended.returncode == 1, words
        assert "Traceback" not in ended.stderr, ended.stderr
        for part in says:
            assert part in ended.stderr, ended.stderr


@pytest.mark.test_all
@in_a_mount_namespace
def test_a_reserve_of_more_than_half_of_the_disk_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with small_disk(tmp_path) as disk:
        broker = BrokerProcess(disk.path, {"disk_reserve_bytes": str(100 * MIB)})
        with pytest.raises(ServerProcessError, match="more than half of the disk"):
            broker.start()
