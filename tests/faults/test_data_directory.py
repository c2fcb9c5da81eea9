"""Data directories and ports that cannot be used.

A start that cannot succeed ends with exit code 1 or 2 and one sentence. Damaged rows are an error,
and no silent gap.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path

import pytest

from protocol import errors
from storage.data_directory import lock_directory
from tests.conftest import OwnBrokers
from tests.faults.bystander import Bystander
from tests.support import messages
from tests.support.command_line import output
from tests.support.failing_start import one_sentence, start_that_fails
from tests.support.small_disk import in_a_mount_namespace, running, small_disk
from tests.support.sql_rows import SqlError
from tests.support.wire import Wire

VERSION = 12  # of Produce and of Fetch: the last with topic names
STORAGE_ERROR = errors.KafkaStorageError.code


class TestDataDirectory:
    def test_one_that_is_in_use_stays_with_its_broker(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker()
        with Bystander(broker, topic):
            code, printed = start_that_fails(broker.data_dir)
            assert code == 1
            sentence = one_sentence(printed)
            assert f"in use by process {broker.pid}" in sentence
            assert str(broker.data_dir) in sentence
        broker.kill()
        broker.start()

    def test_a_name_that_is_no_directory(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("not a directory")
        for path in (file, file / "below", Path("/proc/brokerhouse"), Path("/dev/null")):
            code, printed = start_that_fails(path)
            assert code in (1, 2)
            assert str(path) in one_sentence(printed)
        assert file.read_text() == "not a directory"

    @in_a_mount_namespace
    def test_one_that_is_read_only(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        with small_disk(tmp_path) as disk:
            with running(disk.path):
                pass
            disk.make_read_only()
            code, printed = start_that_fails(disk.path)
            assert code in (1, 2)
            assert "Read-only file system" in one_sentence(printed)

    def test_the_engines_own_files_that_are_garbage(
        self, own_broker: OwnBrokers, tmp_path: Path
    ) -> None:
        broker = own_broker()
        broker.stop()
        damaged = tmp_path / "damaged"
        for name in ("messages.sql", "topic_versions.sql"):
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(broker.data_dir, damaged, symlinks=True)
            for definition in damaged.rglob(name):
                definition.write_text("garbage")
            code, printed = start_that_fails(damaged)
            assert code == 1
            assert "Traceback" not in printed
            last = printed.splitlines()[-1]
            assert last.startswith("Error: ")
            assert str(damaged) in last

    def test_files_of_tables_that_were_removed_are_missed(
        self, own_broker: OwnBrokers, topic: str, tmp_path: Path
    ) -> None:
        """They would begin anew, empty."""
        broker = own_broker()
        with Wire(broker) as wire:
            wire.ask(
                messages.produce(messages.create_topic(wire, topic), messages.small_batch()),
                VERSION,
            )
        broker.stop()
        (part, *_) = _parts_of_messages(broker.data_dir)
        removed = {
            "clickhouse": "clickhouse/metadata/brokerhouse.sql",
            "clickhouse/metadata/brokerhouse.sql": "clickhouse/metadata/brokerhouse.sql",
            "clickhouse/metadata/brokerhouse/topic_versions.sql": "topic_versions.sql back",
            str(part.parent.relative_to(broker.data_dir)): "which has the rows of messages",
        }
        copy = tmp_path / "copy"
        for name, said in removed.items():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(broker.data_dir, copy, symlinks=True)
            path = copy / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            code, printed = start_that_fails(copy)
            assert code == 1
            sentence = one_sentence(printed)
            assert said in sentence
            assert "restore a backup into another directory" in sentence

    def test_what_is_written_at_each_start_may_be_garbage(self, own_broker: OwnBrokers) -> None:
        broker = own_broker()
        broker.stop()
        (broker.data_dir / "engine.xml").write_text("garbage")
        (broker.data_dir / "LOCK").write_text("garbage")
        broker.start()
        assert broker.sql("SELECT 1 AS one") == [{"one": 1}]

    def test_damaged_rows_are_an_error_and_never_a_silent_gap(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """Bytes of a part have changed on disk: the engine's checksums find it when it is read."""
        broker = own_broker()
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            sound = messages.create_topic(wire, f"{topic}-sound")
            for each in (target, sound):
                wire.ask(messages.produce(each, messages.small_batch()), VERSION)
                broker.sql("SELECT count() FROM messages")  # so that each batch is a part
        broker.stop()
        first, _ = _parts_of_messages(broker.data_dir)
        _flip_the_middle(first / "data.bin")
        broker.start()
        with Wire(broker) as wire:
            found = wire.ask(messages.fetch(target, 0), VERSION).responses[0].partitions[0]
            assert found.error_code == STORAGE_ERROR
            found = wire.ask(messages.fetch(sound, 0), VERSION).responses[0].partitions[0]
            assert messages.end_offset(bytes(found.records)) == 2
            written = wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            partition = written.responses[0].partition_responses[0]
            assert (partition.error_code, partition.base_offset) == (0, 2)
        with pytest.raises(SqlError, match=r"CHECKSUM_DOESNT_MATCH|CORRUPTED_DATA|CANNOT"):
            broker.sql("SELECT * FROM messages WHERE topic = {t:String}", {"t": topic})

    def test_a_part_that_the_engine_sets_aside_is_said_aloud(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        broker = own_broker()
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            for _ in range(2):
                wire.ask(messages.produce(target, messages.small_batch()), VERSION)
                broker.sql("SELECT count() FROM messages")  # so that each batch is a part
        broker.stop()
        _, last = _parts_of_messages(broker.data_dir)
        data = (last / "data.bin").read_bytes()
        (last / "data.bin").write_bytes(data[: len(data) // 2])
        broker.start()
        assert f"broken-on-start_{last.name}" in broker.log()
        assert "[error" in broker.log()


class TestPrivacy:
    """Nobody but its user reads what is in a data directory, whatever the umask was."""

    def test_nobody_else_can_read_anything_in_it_or_in_a_backup(
        self, own_broker: OwnBrokers, topic: str, tmp_path: Path
    ) -> None:
        before = os.umask(0o022)
        try:
            broker = own_broker()
        finally:
            os.umask(before)
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            broker.sql("SELECT count() FROM messages")
        output("backup", str(tmp_path / "backup"), "--data-dir", str(broker.data_dir))
        names = {path.name for path in broker.data_dir.rglob("*")}
        assert {"control", "journal", "journal.segments", "LOCK", "data.bin"} <= names
        assert open_to_others(broker.data_dir) == []
        assert open_to_others(tmp_path / "backup") == []

    def test_an_older_one_is_tightened_at_the_start_with_one_line(
        self, own_broker: OwnBrokers
    ) -> None:
        broker = own_broker()
        broker.stop()
        for path in (broker.data_dir, *broker.data_dir.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        broker.start()
        said = f"other users could read {broker.data_dir}: it has the mode 0700 now"
        assert broker.printed().count(said) == 1
        assert open_to_others(broker.data_dir) == []
        broker.restart()
        assert said not in broker.printed()

    def test_one_whose_mode_cannot_be_changed_is_used_and_the_log_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refused(path: str, mode: int) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        tmp_path.chmod(0o755)
        monkeypatch.setattr("os.chmod", refused)
        os.close(lock_directory(tmp_path))
        (line,) = (record.getMessage() for record in caplog.records)
        assert str(tmp_path) in line
        assert "its mode cannot be changed (Operation not permitted)" in line


def open_to_others(directory: Path) -> list[str]:
    """What other users may read, write or enter."""
    found = [path for path in (directory, *directory.rglob("*")) if not path.is_symlink()]
    modes = {str(path): path.lstat().st_mode for path in found}
    return [f"{path}: {mode:o}" for path, mode in modes.items() if mode & 0o077]


def _parts_of_messages(data_dir: Path) -> list[Path]:
    """The folders of the parts, in the order in which they were written."""
    folders = (file.parent for file in data_dir.rglob("columns.txt"))
    return sorted(
        path for path in folders if "`timestamp_ms`" in (path / "columns.txt").read_text()
    )


def _flip_the_middle(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


class TestPorts:
    @pytest.mark.parametrize("flag", ["--kafka", "--http"])
    def test_one_that_is_taken(self, tmp_path: Path, flag: str) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"127.0.0.1:{other.getsockname()[1]}"
            code, printed = start_that_fails(tmp_path / "data", flag, address)
        assert code == 1
        sentence = one_sentence(printed)
        assert address in sentence
        assert "in use" in sentence.lower()

    def test_one_that_this_machine_does_not_have(self, tmp_path: Path) -> None:
        code, printed = start_that_fails(tmp_path / "data", "--kafka", "192.0.2.1:9092")
        assert code == 1
        assert "192.0.2.1:9092" in one_sentence(printed)
