"""Data directories and ports that cannot be used.

A start that cannot succeed ends with exit code 1 or 2 and one sentence. Damaged rows are an error,
and no silent gap.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from brokerhouse.protocol import errors
from brokerhouse.storage.data_directory import lock_directory
from tests.faults.bystander import Bystander
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import output
from tests.support.failing_start import one_sentence, start_that_fails
from tests.support.messages import Target
from tests.support.small_disk import MIB, in_a_mount_namespace, running, small_disk
from tests.support.sql_rows import SqlError
from tests.support.wire import Wire

VERSION = 12  # of Produce and of Fetch: the last with topic names
STORAGE_ERROR = errors.KafkaStorageError.code


class Written(NamedTuple):
    """The data directory of a broker that has stopped; each topic has a part of its own."""

    data_dir: Path
    targets: list[Target]
    files: set[str]
    """What was in it while the broker ran."""
    exposed: list[str]
    """Which of that other users could use."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    broker = BrokerProcess(tmp_path_factory.mktemp("written") / "data")
    before = os.umask(0o022)
    try:
        broker.start()
    finally:
        os.umask(before)
    with Wire(broker) as wire:
        targets = [messages.create_topic(wire, name) for name in ("damaged", "sound", "cut")]
        for target in targets:
            wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            broker.sql("SELECT count() FROM messages")  # so that each batch is a part
        broker.pause()  # the engine renames and deletes what it writes
        files = {path.name for path in broker.data_dir.rglob("*")}
        exposed = open_to_others(broker.data_dir)
        broker.resume()
    broker.stop()
    return Written(broker.data_dir, targets, files, exposed)


@pytest.fixture
def data_dir(written: Written, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    copy = tmp_path / "data"
    shutil.copytree(written.data_dir, copy, symlinks=True)
    return copy


@pytest.fixture(scope="module")
def battered(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that started although much of its directory was wrong."""
    data_dir = tmp_path_factory.mktemp("battered") / "data"
    shutil.copytree(written.data_dir, data_dir, symlinks=True)
    for name in ("engine.xml", "LOCK"):  # which each start writes
        (data_dir / name).write_text("garbage")
    first, _, last = _parts_of_messages(data_dir)
    _flip_the_middle(first / "data.bin")
    data = (last / "data.bin").read_bytes()
    (last / "data.bin").write_bytes(data[: len(data) // 2])
    for path in (data_dir, *data_dir.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    with running(data_dir) as broker:
        yield broker


class TestDataDirectory:
    @pytest.mark.test_all
    def test_a_second_broker_is_refused_and_the_first_goes_on(
        self, broker: BrokerProcess, topic: str
    ) -> None:
        with Bystander(broker, topic):
            code, printed = start_that_fails(broker.data_dir)
            assert code == 1
            sentence = one_sentence(printed)
            assert f"in use by process {broker.pid}" in sentence
            assert str(broker.data_dir) in sentence

    @pytest.mark.test_all
    @pytest.mark.parametrize("path", ["file", "file/below", "/proc/brokerhouse", "/dev/null"])
    def test_a_path_that_cannot_be_a_directory_is_refused_with_its_name(
        self, tmp_path: Path, path: str
    ) -> None:
        file = tmp_path / "file"
        file.write_text("not a directory")
        code, printed = start_that_fails(tmp_path / path)
        assert code in (1, 2)
        assert str(tmp_path / path) in one_sentence(printed)
        assert file.read_text() == "not a directory"

    @pytest.mark.test_all
    @in_a_mount_namespace
    def test_a_read_only_directory_is_refused(
        self, written: Written, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        with small_disk(tmp_path, 512 * MIB) as disk:
            shutil.copytree(written.data_dir, disk.path, symlinks=True, dirs_exist_ok=True)
            disk.make_read_only()
            code, printed = start_that_fails(disk.path)
            assert code in (1, 2)
            assert "Read-only file system" in one_sentence(printed)

    @pytest.mark.test_all
    @pytest.mark.parametrize("name", ["messages.sql", "topic_versions.sql"])
    def test_a_definition_that_is_garbage_is_an_error_with_the_name_of_the_directory(
        self, data_dir: Path, name: str
    ) -> None:
        for definition in data_dir.rglob(name):
            definition.write_text("garbage")
        code, printed = start_that_fails(data_dir)
        assert code == 1
        assert "Traceback" not in printed
        last = printed.splitlines()[-1]
        assert last.startswith("Error: ")
        assert str(data_dir) in last

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            pytest.param(
                "clickhouse",
                "clickhouse/metadata/brokerhouse.sql",
                marks=pytest.mark.test_all,
            ),
            pytest.param(
                "clickhouse/metadata/brokerhouse.sql",
                "clickhouse/metadata/brokerhouse.sql",
                marks=pytest.mark.test_all,
            ),
            pytest.param(
                "clickhouse/metadata/brokerhouse/topic_versions.sql",
                "topic_versions.sql back",
                marks=pytest.mark.test_all,
            ),
            ("the rows of messages", "which has the rows of messages"),
        ],
    )
    def test_a_start_without_files_of_its_tables_is_refused(
        self, data_dir: Path, name: str, said: str
    ) -> None:
        """The tables would begin anew, empty."""
        rows = _parts_of_messages(data_dir)[0].parent
        path = rows if name == "the rows of messages" else data_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        code, printed = start_that_fails(data_dir)
        assert code == 1
        sentence = one_sentence(printed)
        assert said in sentence
        assert "restore a backup into another directory" in sentence

    def test_files_that_each_start_writes_may_be_garbage(self, battered: BrokerProcess) -> None:
        assert battered.sql("SELECT 1 AS one") == [{"one": 1}]

    def test_damaged_rows_are_an_error_and_never_a_silent_gap(
        self, battered: BrokerProcess, written: Written
    ) -> None:
        """Bytes of a part have changed on disk: the engine's checksums find it when it is read."""
        damaged, sound, _ = written.targets
        with Wire(battered) as wire:
            found = wire.ask(messages.fetch(damaged, 0), VERSION).responses[0].partitions[0]
            assert found.error_code == STORAGE_ERROR
            found = wire.ask(messages.fetch(sound, 0), VERSION).responses[0].partitions[0]
            assert messages.end_offset(bytes(found.records)) == 2
            answer = wire.ask(messages.produce(damaged, messages.small_batch()), VERSION)
            partition = answer.responses[0].partition_responses[0]
            assert (partition.error_code, partition.base_offset) == (0, 2)
        with pytest.raises(SqlError, match=r"CHECKSUM_DOESNT_MATCH|CORRUPTED_DATA|CANNOT"):
            battered.sql("SELECT * FROM messages WHERE topic = {t:String}", {"t": damaged.name})

    def test_a_start_is_refused_if_the_starts_of_logs_cannot_be_read(self, tmp_path: Path) -> None:
        broker = BrokerProcess(tmp_path / "data")
        broker.start()
        with Wire(broker) as wire:
            target = messages.create_topic(wire, "begins-at-1")
            wire.ask(messages.produce(target, messages.small_batch()), VERSION)
            wire.ask(messages.delete_records(target, 1), 2)
        broker.stop()
        parts = _parts_with(broker.data_dir, "`log_start_offset`")
        assert parts
        for part in parts:
            _flip_the_middle(part / "data.bin")
        code, printed = start_that_fails(broker.data_dir)
        assert code == 1
        assert "cannot open every log, 1 stayed closed: " in printed.splitlines()[-1]
        assert "CHECKSUM_DOESNT_MATCH" in printed.splitlines()[-1]

    def test_a_part_that_the_engine_sets_aside_is_logged_as_an_error(
        self, battered: BrokerProcess, written: Written
    ) -> None:
        last = _parts_of_messages(written.data_dir)[-1]
        assert f"broken-on-start_{last.name}" in battered.log(limit=MIB)
        assert "[error" in battered.log(limit=MIB)


class TestPrivacy:
    """Nobody but its user reads what is in a data directory, whatever the umask was."""

    def test_other_users_can_read_neither_the_data_directory_nor_a_backup(
        self, written: Written, tmp_path: Path
    ) -> None:
        assert {"control", "journal", "journal.segments", "LOCK", "data.bin"} <= written.files
        assert written.exposed == []
        output("backup", str(tmp_path / "backup"), "--data-dir", str(written.data_dir))
        assert open_to_others(tmp_path / "backup") == []

    def test_a_directory_that_others_can_read_is_closed_to_them_at_the_start_with_one_line(
        self, battered: BrokerProcess
    ) -> None:
        said = f"other users could read {battered.data_dir}: changed its mode to 0700"
        assert battered.printed().count(said) == 1
        assert open_to_others(battered.data_dir) == []

    def test_a_directory_whose_mode_cannot_be_changed_is_used_and_the_log_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refused(path: str, mode: int) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        tmp_path.chmod(0o755)
        monkeypatch.setattr("os.chmod", refused)
        os.close(lock_directory(tmp_path))
        (line,) = (record.getMessage() for record in caplog.records)
        assert f"cannot change the mode of {tmp_path} (Operation not permitted)" in line


def open_to_others(directory: Path) -> list[str]:
    """What other users may read, write or enter."""
    found = [path for path in (directory, *directory.rglob("*")) if not path.is_symlink()]
    modes = {str(path): path.lstat().st_mode for path in found}
    return [f"{path}: {mode:o}" for path, mode in modes.items() if mode & 0o077]


def _parts_of_messages(data_dir: Path) -> list[Path]:
    """The folders of the parts, in the order in which they were written."""
    return _parts_with(data_dir, "`timestamp_ms`")


def _parts_with(data_dir: Path, column: str) -> list[Path]:
    folders = (file.parent for file in data_dir.rglob("columns.txt"))
    return sorted(path for path in folders if column in (path / "columns.txt").read_text())


def _flip_the_middle(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


class TestPorts:
    @pytest.mark.parametrize(
        "flag", ["--kafka", pytest.param("--http", marks=pytest.mark.test_all)]
    )
    def test_a_port_that_is_taken_is_refused_with_its_address(
        self, tmp_path: Path, flag: str
    ) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"127.0.0.1:{other.getsockname()[1]}"
            code, printed = start_that_fails(tmp_path / "data", flag, address)
        assert code == 1
        sentence = one_sentence(printed)
        assert address in sentence
        assert "in use" in sentence.lower()

    @pytest.mark.test_all
    def test_an_address_that_this_machine_does_not_have_is_refused(self, tmp_path: Path) -> None:
        code, printed = start_that_fails(tmp_path / "data", "--kafka", "192.0.2.1:9092")
        assert code == 1
        assert "192.0.2.1:9092" in one_sentence(printed)
