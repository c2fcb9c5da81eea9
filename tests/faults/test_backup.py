"""Backups of a broker that takes records, and what a restored broker has and does.

Commands and brokers are killed (`kill -9`) midway: nobody takes half a backup, or half of a
restored data directory, for a whole one.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.producer import InitProducerIdRequest

from brokerhouse.storage.backup_files import BackupError, check_written
from tests.conftest import OwnBrokers
from tests.faults.test_restart import Load, log_by_consumer, log_by_sql
from tests.support import messages
from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import (
    COMMAND,
    LIMIT_S,
    Ended,
    complaint,
    environment,
    in_a_process,
    output,
    run,
)
from tests.support.one_partition import end_of, produced
from tests.support.record_batches import Record, batch_of
from tests.support.repeating import repeated
from tests.support.server_process import PROJECT, ServerProcessError
from tests.support.small_disk import MIB, in_a_mount_namespace, small_disk
from tests.support.sql_client import PASSWORD, USER, write
from tests.support.sql_rows import SqlError
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until
from tests.support.wire import Wire

PARTITIONS = 4
LOOK_S = 0.001
BETWEEN_S = 0.02
"""Between a hundred records and the next: at full speed the test would read them for seconds."""
MIDWAY_TRIES = 10
"""A kill may come too late on a busy machine."""


def back_up(
    broker: BrokerProcess, destination: Path, how: Callable[..., Ended] = in_a_process
) -> str:
    return output("backup", str(destination), "--data-dir", str(broker.data_dir), how=how)


def restore(source: Path, data_dir: Path) -> str:
    return output("restore", str(source), "--data-dir", str(data_dir), how=in_a_process)


@contextmanager
def restored(broker: BrokerProcess, source: Path, data_dir: Path) -> Iterator[BrokerProcess]:
    """The broker is killed, and another one takes its place, with what the backup has."""
    broker.kill()
    restore(source, data_dir)
    other = BrokerProcess(data_dir, broker.settings)
    other.kafka, other.http = broker.kafka, broker.http
    with other:
        yield other


class Sums:
    """Transactions: each adds a record, and commits as an offset how many there are then."""

    def __init__(self, address: str, topic: str) -> None:
        self.done = 0
        self.group = f"{topic} sums"
        self._topic = topic
        self._producer = ConfluentProducer(address, topic)

    def add(self) -> None:
        self._producer.begin()
        self._producer.send(self._topic, str(self.done))
        self._producer.flush()
        self._producer.send_offset(self.group, self._topic, self.done + 1)
        self._producer.commit()
        self.done += 1


def committed_values(broker: BrokerProcess, topic: str) -> list[int]:
    rows = broker.sql(
        "SELECT toInt64(assumeNotNull(value)) AS number FROM messages_committed"
        " WHERE topic = {topic:String} ORDER BY offset",
        {"topic": topic},
    )
    return [row["number"] for row in rows]


def cluster_id_of(broker: BrokerProcess) -> str:
    return str(AdminClient({"bootstrap.servers": broker.kafka}).list_topics(timeout=20).cluster_id)


@pytest.mark.test_all
def test_a_backup_of_a_busy_broker_has_all_that_was_acknowledged_as_of_one_moment(
    own_broker: OwnBrokers, tmp_path: Path, topic: str
) -> None:
    broker, backup, summed = own_broker(), tmp_path / "backup", f"{topic}-sums"
    client = ConfluentKafka()
    client.create_topic(broker.kafka, topic, PARTITIONS)
    client.create_topic(broker.kafka, summed, 1)
    sums = Sums(broker.kafka, summed)
    with Load(broker.kafka, topic) as load, repeated(sums.add):
        load.send_until_acknowledged(3000)
        before, sums_before = list(load.acknowledged), sums.done
        command = threading.Thread(target=back_up, args=(broker, backup))
        command.start()
        while command.is_alive():
            load.send_until_acknowledged(len(load.acknowledged) + 100)
            time.sleep(BETWEEN_S)
        during = len(load.acknowledged) - len(before)
        load.finish()
    assert backup.is_dir()
    assert during > 0

    with restored(broker, backup, tmp_path / "restored") as other:
        log = log_by_sql(other, topic)
        for partition in range(PARTITIONS):
            numbers = range(partition, load.sent, PARTITIONS)
            assert log[partition] == list(enumerate(numbers))[: len(log[partition])]
        counts = {partition: len(records) for partition, records in log.items()}
        assert all(offset < counts[partition] for partition, offset, _ in before)
        assert log_by_consumer(other, topic, counts) == log

        again = Sums(other.kafka, summed)  # it ends what was open at the moment of the backup
        until(lambda: not other.sql("SELECT * FROM open_transactions"))
        values = committed_values(other, summed)
        assert values == list(range(len(values)))
        assert sums_before <= len(values) <= sums.done
        assert client.committed(other.kafka, sums.group, summed) == {0: (len(values), "")}
        again.done = len(values)
        again.add()
        until(lambda: committed_values(other, summed) == list(range(again.done)))


def test_clients_of_a_restored_broker_go_on_where_they_were(
    own_broker: OwnBrokers, tmp_path: Path, topic: str
) -> None:
    broker, client, written = own_broker(), ConfluentKafka(), f"{topic}-written"
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic, configs={"retention.ms": "86400000"})
        messages.create_topic(wire, written)
        asked = InitProducerIdRequest(transactional_id=None, producer_id=-1)
        producer_id = wire.ask(asked, 4).producer_id

        def batch(sequence: int) -> bytes:
            return batch_of(
                Record(value=b"%d" % sequence),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            ).data

        def send(to: Wire, sequence: int) -> tuple[int, int]:
            answer = produced(to, target, batch(sequence))
            return answer.error_code, answer.base_offset

        assert [send(wire, sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
        client.commit(broker.kafka, f"{topic} group", topic, {0: (2, "a note")})
        started = ConfluentProducer(broker.kafka, f"{topic} open")
        started.begin()
        started.send(written, "1")
        started.flush()
        (before,) = broker.sql(
            "SELECT configs FROM topics WHERE name = {topic:String}", {"topic": topic}
        )
        cluster_id = cluster_id_of(broker)
        assert back_up(broker, tmp_path / "backup", run).startswith(str(tmp_path / "backup"))
        assert send(wire, 3) == (0, 3), "it is not in the backup"

    with restored(broker, tmp_path / "backup", tmp_path / "restored") as other:
        started.commit()
        until(lambda: committed_values(other, written) == [1])
        with Wire(other) as wire:
            assert cluster_id_of(other) == cluster_id
            assert end_of(wire, target, 0) == 3
            assert [send(wire, sequence) for sequence in (2, 1, 3)] == [(0, 2), (0, 1), (0, 3)]
            assert wire.ask(asked, 4).producer_id > producer_id
        assert client.committed(other.kafka, f"{topic} group", topic) == {0: (2, "a note")}
        client.commit(other.kafka, f"{topic} group", topic, {0: (4, "")})
        (after,) = other.sql(
            "SELECT configs FROM topics WHERE name = {topic:String}", {"topic": topic}
        )
        assert after == before
        next_one = ConfluentProducer(other.kafka, f"{topic} open")
        next_one.begin()
        next_one.send(written, "2")
        next_one.commit()
        until(lambda: committed_values(other, written) == [1, 2])
        assert client.committed(other.kafka, f"{topic} group", topic) == {0: (4, "")}


SHOP = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.lengths (length UInt64) ENGINE = MergeTree ORDER BY length",
    "CREATE MATERIALIZED VIEW shop.lengths_of_values TO shop.lengths AS"
    " SELECT length(value) AS length FROM brokerhouse.messages",
    "CREATE TABLE shop.found (number UInt64) ENGINE = MergeTree ORDER BY number",
    "CREATE MATERIALIZED VIEW shop.numbers TO shop.found AS"
    " SELECT toUInt64(assumeNotNull(value)) AS number FROM brokerhouse.messages",
)
TOLERANT = "SELECT toUInt64OrZero(assumeNotNull(value)) AS number FROM brokerhouse.messages"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a thousand records in the topic `filled`, and views of people on the log.

    `shop.numbers` has failed at the last record.
    """
    settings = {"sql_user": USER, "sql_password": PASSWORD}
    broker = BrokerProcess(tmp_path_factory.mktemp("filled") / "data", settings)
    with broker:
        ConfluentKafka().create_topic(broker.kafka, "filled", 1)
        lines = "".join(f"{number}\n" for number in range(1000))
        for statement in SHOP:
            write(broker, statement)
        output("produce", "filled", "--bootstrap", broker.kafka, stdin=f"{lines}no number\n")
        assert broker.sql("SELECT view FROM failed_views") == [{"view": "numbers"}]
        yield broker
        broker.stop()


@pytest.fixture(scope="module")
def backup(filled: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of that broker."""
    destination = tmp_path_factory.mktemp("backups") / "first"
    back_up(filled, destination, run)
    return destination


def command(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_path(path: Path, begun: subprocess.Popen[bytes]) -> None:
    """Returns when the path is there, or when the command has ended: it was there between looks."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists() and begun.poll() is None:
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(LOOK_S)


def begin_backup(broker: BrokerProcess, destination: Path) -> subprocess.Popen[bytes]:
    """Returns in the middle of it."""
    begun = command("backup", str(destination), "--data-dir", str(broker.data_dir))
    await_path(unfinished(destination), begun)
    return begun


def unfinished(destination: Path) -> Path:
    return destination.with_name(f"{destination.name}.unfinished")


@pytest.mark.test_all
def test_a_backup_whose_broker_is_killed_cannot_be_restored(
    own_broker: OwnBrokers, tmp_path: Path, topic: str
) -> None:
    broker, destination = own_broker(), tmp_path / "backup"
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    with Load(broker.kafka, topic) as load:
        for _ in range(MIDWAY_TRIES):
            load.send_until_acknowledged(load.sent + 500)
            load.finish()
            begun = begin_backup(broker, destination)
            broker.kill()
            ended = begun.wait(LIMIT_S)
            if not destination.exists():
                break
            shutil.rmtree(destination)  # the backup was faster
            broker.start()
        else:
            pytest.fail("the backup always ended before the broker could be killed")
    assert ended == 1
    assert "is not a complete backup" in refused_restore(unfinished(destination), tmp_path / "new")
    assert not (tmp_path / "new").exists()

    back_up(broker, destination)  # by the command itself: the broker does not run
    assert not unfinished(destination).exists()
    with restored(broker, destination, tmp_path / "new") as other:
        assert sum(map(len, log_by_sql(other, topic).values())) == load.sent


@pytest.mark.test_all
def test_a_backup_whose_command_is_killed_is_removed(filled: BrokerProcess, tmp_path: Path) -> None:
    destination = tmp_path / "backup"
    for _ in range(MIDWAY_TRIES):
        begun = begin_backup(filled, destination)
        begun.kill()
        begun.wait(LIMIT_S)
        until(lambda: not unfinished(destination).exists())
        if not destination.exists():
            break
        shutil.rmtree(destination)  # the backup was faster
    else:
        pytest.fail("the backup always ended before its command could be killed")
    output("backup", str(destination), "--data-dir", str(filled.data_dir))


def test_a_backup_replaces_what_a_killed_one_left_and_no_other_files(
    filled: BrokerProcess, tmp_path: Path
) -> None:
    left, mine = tmp_path / "b.unfinished/clickhouse/data", tmp_path / "c.unfinished/letter"
    for path in (left, mine):
        path.parent.mkdir(parents=True)
        path.write_text("something")
    data_dir = ("--data-dir", str(filled.data_dir))
    output("backup", str(tmp_path / "b"), *data_dir)
    assert (tmp_path / "b/clickhouse/data").is_dir()
    assert not (tmp_path / "b.unfinished").exists()
    told = complaint(1, "backup", str(tmp_path / "c"), *data_dir)
    assert told == f"{mine.parent} is in the way: letter in it is not part of a backup"
    assert mine.read_text() == "something"


@pytest.mark.test_all
def test_a_broker_refuses_a_restore_that_was_killed_and_it_can_be_repeated(
    filled: BrokerProcess, backup: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "restored"
    for appears in ("RESTORE", "clickhouse/store/"):
        for _ in range(MIDWAY_TRIES):
            begun = command("restore", str(backup), "--data-dir", str(data_dir))
            await_path(data_dir / appears, begun)
            begun.kill()
            begun.wait(LIMIT_S)
            if (data_dir / "RESTORE").exists():
                break
            shutil.rmtree(data_dir)  # the restore was faster
        else:
            pytest.fail("the restore always ended before it could be killed")
    broker = BrokerProcess(data_dir, filled.settings)
    with pytest.raises(ServerProcessError, match="has not finished: run `brokerhouse restore`"):
        broker.start()
    told = complaint(1, "backup", str(tmp_path / "b"), "--data-dir", str(data_dir))
    assert "has not finished" in told

    restore(backup, data_dir)
    with broker:
        assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 1001}]
        check_views(broker)
        broker.stop()


def check_views(broker: BrokerProcess) -> None:
    """What people have made is there and goes on; a view that had failed can be repaired."""
    output("produce", "filled", "--bootstrap", broker.kafka, stdin="1001\n")
    assert broker.sql("SELECT count() AS n FROM shop.lengths") == [{"n": 1002}]
    assert broker.sql("SELECT view FROM failed_views") == [{"view": "numbers"}]
    output(
        *("views", "repair", "shop.numbers", "--query", TOLERANT),
        *("--http", broker.http_url, "--user", USER, "--password", PASSWORD),
    )
    assert broker.sql("SELECT count() AS n FROM shop.found") == [{"n": 1002}]


# --- what is refused


def refused_restore(source: Path, data_dir: Path) -> str:
    return complaint(1, "restore", str(source), "--data-dir", str(data_dir))


def test_a_restore_leaves_a_used_directory_as_it_is(
    filled: BrokerProcess, backup: Path, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "letter").write_text("mine")
    assert "is not empty" in refused_restore(backup, used)
    assert (used / "letter").read_text() == "mine"
    assert "is in use by process" in refused_restore(backup, filled.data_dir)
    assert filled.sql("SELECT count() AS n FROM messages") == [{"n": 1001}]


def change_a_byte(backup: Path) -> str:
    path = max(backup.rglob("*.bin"), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return f"{path.relative_to(backup)} has changed"


def remove_a_file(backup: Path) -> str:
    path = backup / "clickhouse/metadata/brokerhouse/messages.sql"
    path.unlink()
    return f"{path.relative_to(backup)} is missing"


def add_a_file(backup: Path) -> str:
    (backup / "clickhouse/more").touch()
    return "clickhouse/more does not belong to it"


def cut_the_sums(backup: Path) -> str:
    sums = backup / "SHA256SUMS"
    sums.write_bytes(sums.read_bytes()[:-90])
    return "SHA256SUMS has changed"


@pytest.mark.parametrize("damage", [change_a_byte, remove_a_file, add_a_file, cut_the_sums])
def test_a_damaged_backup_is_not_restored(
    backup: Path, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(backup, damaged)
    expected = damage(damaged)
    told = refused_restore(damaged, tmp_path / "restored")
    assert told == f"the backup {damaged} is damaged: {expected}"
    assert not (tmp_path / "restored").exists()


def test_a_backup_of_a_newer_version_is_not_restored(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerhouse.storage.restore.migrations", lambda: [Older])
    told = refused_restore(backup, tmp_path / "restored")
    assert "was made by a newer version of brokerhouse" in told


class Older:
    number = 1


def test_a_path_without_a_complete_backup_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    new = tmp_path / "new"
    assert "there is no backup at" in refused_restore(tmp_path / "missing", new)
    assert "there is no backup at" in refused_restore(tmp_path / "file", new)
    assert "is not a complete backup" in refused_restore(tmp_path / "empty", new)


@pytest.mark.parametrize(
    ("destination", "sentence"),
    [
        ("", "exists: name a directory that does not exist"),
        ("missing/backup", "cannot be written: No such file or directory"),
        ("link", "exists: name a directory that does not exist"),
        ("file/backup", "cannot be written: Not a directory"),
        ("/proc/backup", "cannot be written: "),
        ("data/backup", "is inside the data directory"),
        ("into/backup", "is inside the data directory"),
        ("x" * 250, "cannot be written: File name too long"),
    ],
)
def test_a_destination_that_cannot_be_used_is_refused_in_one_sentence(
    filled: BrokerProcess, tmp_path: Path, destination: str, sentence: str
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    (tmp_path / "data").symlink_to(filled.data_dir)
    (tmp_path / "into").symlink_to(filled.data_dir / "clickhouse")
    told = complaint(1, "backup", str(tmp_path / destination), "--data-dir", str(filled.data_dir))
    assert sentence in told
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".unfinished")]


@in_a_mount_namespace
def test_a_disk_that_is_too_small_is_found_before_anything_is_written(
    filled: BrokerProcess, backup: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with small_disk(tmp_path, 32 * MIB) as disk:
        told = complaint(1, "backup", str(disk.path / "b"), "--data-dir", str(filled.data_dir))
        assert told.startswith(f"the disk of {disk.path} is too full for a backup: ")
        assert refused_restore(backup, disk.path).startswith(f"the disk of {disk.path} is too full")
        assert {path.name for path in disk.path.iterdir()} <= {"LOCK"}


def test_a_file_that_was_cut_off_while_it_was_written_is_found(
    backup: Path, tmp_path: Path
) -> None:
    clickhouse = tmp_path / "clickhouse"
    shutil.copytree(backup / "clickhouse", clickhouse)
    check_written(clickhouse)
    path = max(clickhouse.rglob("*.bin"), key=lambda file: file.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupError, match="is the disk full"):
        check_written(clickhouse)


def test_a_relative_destination_is_in_the_current_directory(
    filled: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output("backup", "here", "--data-dir", str(filled.data_dir))
    assert (tmp_path / "here/SHA256SUMS").is_file()


def test_a_directory_without_a_broker_cannot_be_backed_up(tmp_path: Path) -> None:
    told = complaint(1, "backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "nothing"))
    assert "is not the data directory of a broker" in told
    assert not (tmp_path / "nothing").exists()


def test_only_the_user_of_the_broker_can_ask_for_a_backup(filled: BrokerProcess) -> None:
    assert (filled.data_dir / "control").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "statement", ["BACKUP DATABASE shop TO File('x')", "RESTORE ALL FROM File('x')"]
)
def test_sql_users_cannot_make_backups(filled: BrokerProcess, statement: str) -> None:
    with pytest.raises(SqlError, match="This server does not run"):
        filled.sql(statement, user=USER, password=PASSWORD)
