"""`brokerhouse groups` as a person uses it, beside real consumers of a real broker."""

import os
import pty
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import click
import confluent_kafka
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, TopicPartition
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest

from broker.cli import groups as cli_groups
from broker.cli import topics as cli_kafka
from broker.cli.main import main
from common.address import parse_address
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, LIMIT_S, complaint, environment, output, run
from tests.support.group_consumer import consuming
from tests.support.server_process import PROJECT

RECORDS = 10
HOUR_MS = 3_600_000
COMMITTED = 4
"""What the group of `stopped_group` has read of its topic's only partition."""


def read_next(broker: BrokerProcess, group: str, topic: str) -> list[str]:
    """What a consumer of the group reads from where the group stands to the end."""
    with consuming(broker, group, topic) as consumer:
        return consumer.values_to_the_end()


def fields(*arguments: str) -> list[list[str]]:
    """The words of every line that the command prints."""
    return [line.split() for line in output("groups", *arguments).splitlines()]


def node(broker: BrokerProcess, group: str) -> str:
    """The id of the broker that coordinates the group."""
    return str(broker.coordinator(group)[0])


def committed(broker: BrokerProcess, group: str) -> dict[tuple[str, int], int]:
    """What the group committed, as another client sees it: (topic, partition) -> offset."""
    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        offsets = admin.list_group_offsets({group: None})[group]
    return {tuple(partition): offset.offset for partition, offset in offsets.items()}


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}.group"


@pytest.fixture
def to(broker: BrokerProcess) -> tuple[str, str]:
    return ("--bootstrap", broker.kafka)


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic with one partition and RECORDS records, one for each of the last hours."""
    now_ms = int(time.time() * 1000)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for n in range(RECORDS):
        at_ms = now_ms - (RECORDS - n) * HOUR_MS
        producer.produce(topic, str(n).encode(), partition=0, timestamp=at_ms)
    assert producer.flush(LIMIT_S) == 0
    return topic


@pytest.fixture
def stopped_group(broker: BrokerProcess, group: str, filled: str) -> str:
    """A group whose only member read `filled` up to COMMITTED and left."""
    with consuming(broker, group, filled) as consumer:
        consumer.values_to_the_end()
        consumer.commit(filled, COMMITTED)
    return group


# list


@pytest.mark.each_change
def test_groups_are_listed_with_state_protocol_and_members(
    broker: BrokerProcess, group: str, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    live = f"{group}.live"
    with consuming(broker, live, filled) as consumer:
        consumer.values_to_the_end()
        heading, *lines = fields("list", *to)
        assert heading == ["group", "state", "protocol", "members", "coordinator"]
        assert [live, "Stable", "consumer", "range", "1", node(broker, live)] in lines
        assert [stopped_group, "Empty", "consumer", "0", node(broker, stopped_group)] in lines

        stable = [line[0] for line in fields("list", "--state", "stable", *to)]
        assert live in stable
        assert stopped_group not in stable
        either = fields("list", "--state", "Empty", "--state", "Stable", *to)
        assert {live, stopped_group} <= {line[0] for line in either}
        assert len(fields("list", "--state", "PreparingRebalance", *to)) == 1


def test_a_groups_name_cannot_drive_the_terminal(
    broker: BrokerProcess, filled: str, to: tuple[str, str]
) -> None:
    group = f"{filled} \x1b[31m[red]"
    output("groups", "reset-offsets", group, "--topic", filled, "--to-latest", "--execute", *to)
    shown = f"{filled} \\x1b[31m[red]"
    assert shown in output("groups", "list", *to)
    assert shown in output("groups", "describe", group, *to)
    assert output("groups", "delete", group, *to) == f"deleted {shown}\n"


# describe


@pytest.mark.each_change
def test_a_live_group_is_described_with_members_offsets_and_lag(
    broker: BrokerProcess, group: str, topic: str, to: tuple[str, str]
) -> None:
    output("topics", "create", topic, "--partitions", "3", *to)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for n in range(5):
        producer.produce(topic, str(n).encode(), partition=1)
    assert producer.flush(LIMIT_S) == 0
    with consuming(broker, group, topic, **{"client.id": "reader"}) as consumer:
        consumer.values_to_the_end(3)
        consumer.commit(topic, 2, partition=1)
        text = output("groups", "describe", group, *to)
        member_id = consumer.member_id

    about, members, offsets = [
        [line.split() for line in block.splitlines()] for block in text.split("\n\n")
    ]
    assert about == [
        ["group", group],
        ["state", "Stable"],
        ["protocol", "consumer", "range"],
        ["coordinator", node(broker, group), f"({broker.coordinator(group)[1]})"],
        ["members", "1"],
    ]
    assert members == [
        ["member", "instance", "client", "host", "partitions"],
        [member_id, "-", "reader", "127.0.0.1", f"{topic}:0,1,2"],
    ]
    assert offsets == [
        ["topic", "partition", "committed", "end", "lag", "owner"],
        [topic, "0", "-", "0", "-", member_id],
        [topic, "1", "2", "5", "3", member_id],
        [topic, "2", "-", "0", "-", member_id],
    ]


def test_a_description_has_only_the_parts_that_are_asked_for(
    broker: BrokerProcess, group: str, filled: str, to: tuple[str, str]
) -> None:
    instance = {"group.instance.id": "one"}
    with consuming(broker, group, filled, **instance) as consumer:
        consumer.values_to_the_end()
        members = output("groups", "describe", group, "--members", *to)
        offsets = output("groups", "describe", group, "--offsets", *to)
        both = output("groups", "describe", group, "--members", "--offsets", *to)
        assert both == output("groups", "describe", group, *to)
    assert "committed" not in members
    assert "instance" not in offsets
    _, table = members.split("\n\n")
    _, member = [line.split() for line in table.splitlines()]
    assert member[1] == "one"


def test_a_group_without_members_keeps_its_offsets_and_its_lag(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    about, offsets = output("groups", "describe", stopped_group, *to).split("\n\n")
    assert ["state", "Empty"] in [line.split() for line in about.splitlines()]
    assert offsets.splitlines()[1].split() == [
        filled, "0", str(COMMITTED), str(RECORDS), str(RECORDS - COMMITTED), "-",
    ]  # fmt: skip


def test_a_member_whose_assignment_is_no_consumers_is_described_all_the_same(
    broker: BrokerProcess, group: str, to: tuple[str, str]
) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.kafka, client_id="odd") as admin:
        joined = admin._manager.run(join_with_nonsense, admin, group)
        lines = fields("describe", group, *to)
        assert ["state", "Stable"] in lines
        assert [joined, "-", "odd", "127.0.0.1", "-"] in lines
        listed = [group, "Stable", "consumer", "odd", "1", node(broker, group)]
        assert listed in fields("list", *to)


async def join_with_nonsense(admin: KafkaAdminClient, group: str) -> str:
    """A member whose subscription and assignment are bytes that nobody can read."""
    node_id = await admin._find_coordinator_id(group)
    member_id = ""
    while True:
        joined = await admin._manager.send(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol("odd", b"\x00\x01\xff")],
            ),
            node_id=node_id,
        )
        member_id = joined.member_id
        if joined.error_code == 0:
            break
    synced = await admin._manager.send(
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="odd",
            assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id, b"\xff" * 9)],
        ),
        node_id=node_id,
    )
    assert synced.error_code == 0
    return str(member_id)


# --watch


class Watching:
    """A command with --watch whose output is piped: lines as they come."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "groups", *arguments],
            cwd=PROJECT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def until(self, *words: str) -> None:
        """Reads on to a line that has exactly these words."""
        while self._lines.get(timeout=LIMIT_S).split() != list(words):
            pass

    def until_line_with(self, text: str) -> None:
        while text not in self._lines.get(timeout=LIMIT_S):
            pass

    def stop(self) -> tuple[int, str]:
        """Ctrl-C; the exit code and what stands on stderr."""
        assert self._process.stderr is not None
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code, self._process.stderr.read()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


@contextmanager
def watching(*arguments: str) -> Iterator[Watching]:
    watch = Watching(*arguments)
    try:
        yield watch
    finally:
        watch.kill()


def test_a_watched_list_follows_its_groups_until_ctrl_c(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    at = node(broker, stopped_group)
    with watching("list", "--watch", "0.1", *to) as watch:
        watch.until(stopped_group, "Empty", "consumer", "0", at)
        with consuming(broker, stopped_group, filled) as consumer:
            consumer.values_to_the_end()
            watch.until(stopped_group, "Stable", "consumer", "range", "1", at)
        watch.until(stopped_group, "Empty", "consumer", "0", at)
        assert watch.stop() == (0, "")


def test_a_watched_group_is_found_again_after_the_broker_was_away(
    own_broker: Callable[..., BrokerProcess], group: str, topic: str
) -> None:
    own = own_broker()
    to = ("--bootstrap", own.kafka)
    output("topics", "create", topic, *to)
    output("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute", *to)
    with watching("describe", group, "--watch=0.1", *to) as watch:
        watch.until("state", "Empty")
        own.stop()
        watch.until_line_with(f"no broker at {own.kafka} (Connection refused)")
        own.start()
        watch.until("state", "Empty")
        assert watch.stop() == (0, "")


def test_on_a_terminal_a_watch_draws_over_what_it_drew(
    broker: BrokerProcess, stopped_group: str, to: tuple[str, str]
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "groups", "describe", stopped_group, "--watch", "0.1", *to],
        cwd=PROJECT,
        env=environment(TERM="xterm"),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    printed = b""
    try:
        # Up one line and erase: how a frame is taken away.
        while printed.count(b"\x1b[1A\x1b[2K") < 20:
            assert select.select([ours], [], [], LIMIT_S)[0], printed
            printed += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait(LIMIT_S)
        os.close(ours)
    assert printed.count(b"coordinator") > 1


def test_a_watch_that_cannot_begin_says_why(to: tuple[str, str]) -> None:
    assert complaint(1, "groups", "describe", "nobody", "--watch", "1", *to) == (
        "group nobody does not exist"
    )


# reset-offsets

RESETS = {
    "to-earliest": (["--to-earliest"], 0),
    "to-latest": (["--to-latest"], 10),
    "to-offset": (["--to-offset", "7"], 7),
    "to-current": (["--to-current"], COMMITTED),
    "forward": (["--shift-by", "2"], 6),
    "back": (["--shift-by", "-3"], 1),
    # The records are 10, 9, ... 1 hours old.
    "duration": (["--by-duration", "PT3H30M"], 7),
    "days": (["--by-duration", "P1D"], 0),
    "before-all": (["--to-datetime", "1969-12-31T23:59:59.999Z"], 0),
}


@pytest.mark.parametrize("kind", RESETS)
def test_a_reset_is_where_a_consumer_goes_on(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str], kind: str
) -> None:
    arguments, offset = RESETS[kind]
    reset = ("reset-offsets", stopped_group, "--topic", filled, *arguments)
    heading, row, *_, last = fields(*reset, "--execute", *to)
    assert heading == ["topic", "partition", "committed", "new", "offset"]
    assert row == [filled, "0", str(COMMITTED), str(offset)]
    assert last == ["stored"]
    assert read_next(broker, stopped_group, filled) == [str(n) for n in range(offset, RECORDS)]


def test_unless_told_to_a_reset_only_shows_what_it_would_do(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    reset = ("reset-offsets", stopped_group, "--topic", filled, "--to-latest")
    for dry in ([], ["--dry-run"]):
        _, row, *_, last = fields(*reset, *dry, *to)
        assert row == [filled, "0", str(COMMITTED), str(RECORDS)]
        assert last[:2] == ["dry", "run,"]
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}
    assert read_next(broker, stopped_group, filled) == list("456789")


def test_a_reset_to_a_time_is_to_the_first_record_of_that_time_or_later(
    broker: BrokerProcess, group: str, topic: str, to: tuple[str, str]
) -> None:
    day = (datetime.now(UTC) - timedelta(days=1)).replace(microsecond=0)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for n, after_s in enumerate((0, 1, 2.5)):
        at_ms = int(day.timestamp() * 1000 + after_s * 1000)
        producer.produce(topic, str(n).encode(), partition=0, timestamp=at_ms)
    assert producer.flush(LIMIT_S) == 0
    reset = ("groups", "reset-offsets", group, "--topic", topic, "--export", "--to-datetime")

    def new_offset(time: datetime) -> str:
        return output(*reset, time.isoformat(), *to).strip()

    assert new_offset(day.replace(tzinfo=None)) == f"{topic},0,0"
    assert new_offset(day + timedelta(milliseconds=1)) == f"{topic},0,1"
    east = timezone(timedelta(hours=2))
    assert new_offset((day + timedelta(seconds=2.5)).astimezone(east)) == f"{topic},0,2"
    late = run(*reset, (day + timedelta(hours=1)).isoformat(), *to)
    assert (late.returncode, late.stdout) == (0, f"{topic},0,3\n")
    assert late.stderr == f"Warning: {topic}:0 has no record since then: its end is taken\n"


@pytest.mark.parametrize(
    ("arguments", "asked", "taken"),
    [
        (["--to-offset", "99999999999999999999"], 99999999999999999999, 10),
        (["--shift-by", "7"], 11, 10),
        (["--shift-by", "-5"], -1, 0),
    ],
)
def test_an_offset_outside_of_the_log_becomes_the_nearest_inside(
    broker: BrokerProcess,
    stopped_group: str,
    filled: str,
    to: tuple[str, str],
    arguments: list[str],
    asked: int,
    taken: int,
) -> None:
    done = run("groups", "reset-offsets", stopped_group, "--all-topics", *arguments,
               "--execute", *to)  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == (
        f"Warning: {filled}:0 goes from 0 to 10: {taken} is taken, not {asked}\n"
    )
    assert committed(broker, stopped_group) == {(filled, 0): taken}


def test_a_reset_touches_only_the_partitions_it_names(
    broker: BrokerProcess, group: str, topic: str, to: tuple[str, str]
) -> None:
    output("topics", "create", topic, "--partitions", "4", *to)
    other = f"{topic}-other"
    output("topics", "create", other, "--partitions", "2", *to)
    output("groups", "reset-offsets", group, "--topic", f"{topic}:0,2", "--topic", other,
           "--to-latest", "--execute", *to)  # fmt: skip
    assert committed(broker, group) == {
        (topic, 0): 0, (topic, 2): 0, (other, 0): 0, (other, 1): 0,
    }  # fmt: skip
    everywhere = output("groups", "reset-offsets", group, "--all-topics", "--to-current",
                        "--export", *to)  # fmt: skip
    assert everywhere.splitlines() == [
        f"{topic},0,0", f"{topic},2,0", f"{other},0,0", f"{other},1,0",
    ]  # fmt: skip


def test_a_group_that_does_not_exist_is_made_by_a_reset(
    broker: BrokerProcess, group: str, filled: str, to: tuple[str, str]
) -> None:
    output("groups", "reset-offsets", group, "--topic", filled, "--to-offset", "8",
           "--execute", *to)  # fmt: skip
    assert [group, "Empty", "-", "0", node(broker, group)] in fields("list", *to)
    assert read_next(broker, group, filled) == ["8", "9"]


def test_a_group_at_work_is_not_reset(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    with consuming(broker, stopped_group, filled) as consumer:
        consumer.values_to_the_end()
        for execute in ([], ["--execute"]):
            refused = complaint(1, "groups", "reset-offsets", stopped_group, "--topic", filled,
                                "--to-earliest", *execute, *to)  # fmt: skip
            assert refused == (
                f"group {stopped_group} is active (Stable, members: 1): "
                "its offsets can be moved when every member has stopped"
            )
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_a_group_that_comes_to_life_in_the_middle_of_a_reset_keeps_its_offsets(
    broker: BrokerProcess, stopped_group: str, filled: str
) -> None:
    with consuming(broker, stopped_group, filled) as consumer:
        consumer.values_to_the_end()
        with (
            cli_kafka.admin_client(parse_address(broker.kafka)) as admin,
            pytest.raises(click.ClickException, match="has become active: nothing is changed"),
        ):
            # What the command does after it has seen no members.
            cli_groups._store(admin, stopped_group, {TopicPartition(filled, 0): 0})
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_offsets_go_to_a_file_and_back(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "offsets.csv"
    reset = ("groups", "reset-offsets", stopped_group)
    file.write_text(output(*reset, "--all-topics", "--to-current", "--export", *to))
    assert file.read_text() == f"{filled},0,{COMMITTED}\n"

    output(*reset, "--all-topics", "--to-latest", "--execute", *to)
    assert committed(broker, stopped_group) == {(filled, 0): RECORDS}
    output(*reset, "--from-file", str(file), *to)
    assert committed(broker, stopped_group) == {(filled, 0): RECORDS}
    output(*reset, "--from-file", str(file), "--execute", *to)
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}

    # As Kafka's tool exports several groups.
    lines = f'"{stopped_group}",{filled},0,6\nanother,{filled},0,7\n'
    output(*reset, "--from-file", "-", "--execute", *to, stdin=lines)
    assert read_next(broker, stopped_group, filled) == ["6", "7", "8", "9"]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("{topic},0,3\n{topic},9,3\n", "topic {topic} has no partition 9"),
        ("{topic},0,3\n{topic}-x,0,3\n", "topic {topic}-x does not exist"),
        ("somebody,{topic},0,3\n", "the file has no offsets for group {group}"),
        ("", "the file has no offsets for group {group}"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(
    broker: BrokerProcess,
    stopped_group: str,
    filled: str,
    to: tuple[str, str],
    tmp_path: Path,
    lines: str,
    sentence: str,
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(lines.format(topic=filled))
    refused = complaint(1, "groups", "reset-offsets", stopped_group, "--from-file", str(file),
                        "--execute", *to)  # fmt: skip
    assert refused == sentence.format(topic=filled, group=stopped_group)
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_partitions_that_are_not_there_are_named_and_nothing_is_done(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    reset = ("groups", "reset-offsets", stopped_group, "--to-earliest", "--execute")
    for also, sentence in (
        (f"{filled}:1", f"topic {filled} has no partition 1"),
        (f"{filled}-x", f"topic {filled}-x does not exist"),
        (f"{filled}-x:0", f"topic {filled}-x does not exist"),
    ):
        refused = complaint(1, *reset, "--topic", f"{filled}:0", "--topic", also, *to)
        assert refused == sentence
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}
    assert f"{filled}-x" not in output("topics", "list", *to)


def test_nothing_committed_is_nothing_to_shift_or_to_take_all_of(
    group: str, filled: str, to: tuple[str, str]
) -> None:
    reset = ("groups", "reset-offsets", group)
    assert complaint(1, *reset, "--topic", filled, "--shift-by", "1", *to) == (
        f"nothing to shift: no offset is committed for {filled}:0"
    )
    assert complaint(1, *reset, "--all-topics", "--to-latest", *to) == (
        f"group {group} has committed no offsets: name topics with --topic"
    )


@pytest.mark.parametrize(
    ("arguments", "complains_of"),
    [
        (["--topic", "t"], "say where to"),
        (["--topic", "t", "--to-latest", "--to-offset", "0"], "exactly one of"),
        (["--to-latest"], "say which partitions"),
        (["--topic", "t", "--all-topics", "--to-latest"], "say which partitions"),
        (["--topic", "t:", "--to-latest"], "not 't:'"),
        (["--topic", "t:a", "--to-latest"], "not 't:a'"),
        (["--topic", "t:99999999999", "--to-latest"], "write TOPIC"),
        (["--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["--topic", "t", "--to-datetime", "yesterday"], "not 'yesterday'"),
        (["--topic", "t", "--by-duration", "P"], "not 'P'"),
        (["--topic", "t", "--by-duration", "P1DT"], "not 'P1DT'"),
        (["--topic", "t", "--by-duration", "7 days"], "not '7 days'"),
        (["--topic", "t", "--shift-by", "x"], "--shift-by"),
        (["--from-file", "/nowhere/at/all"], "No such file"),
        (["--from-file", "/dev/null", "--topic", "t"], "the file names the partitions"),
        (["--from-file", __file__], "line 1 of"),
    ],
)
def test_a_reset_that_is_wrongly_asked_for_is_exit_code_2(
    arguments: list[str], complains_of: str
) -> None:
    result = CliRunner().invoke(main, ["groups", "reset-offsets", "g", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert complains_of in result.stderr.splitlines()[-1]


# delete


@pytest.mark.each_change
def test_groups_without_members_are_deleted_and_each_of_the_others_is_told(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    busy = f"{stopped_group}.busy"
    with consuming(broker, busy, filled) as consumer:
        consumer.values_to_the_end()
        result = run("groups", "delete", busy, stopped_group, "nobody", *to)
    assert result.returncode == 1
    assert result.stdout == f"deleted {stopped_group}\n"
    assert result.stderr.splitlines() == [
        f"Error: group {busy} has active members: stop them first",
        "Error: group nobody does not exist",
    ]
    listed = {line[0] for line in fields("list", *to)}
    assert busy in listed
    assert stopped_group not in listed
    # A group of that name begins anew.
    assert read_next(broker, stopped_group, filled) == [str(n) for n in range(RECORDS)]


# errors


def test_a_group_that_does_not_exist_is_named_and_not_made(to: tuple[str, str]) -> None:
    assert complaint(1, "groups", "describe", "nobody", *to) == "group nobody does not exist"
    assert complaint(1, "groups", "delete", "nobody", *to) == "group nobody does not exist"
    assert "nobody" not in {line[0] for line in fields("list", *to)}


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["list", "--watch"],
        ["describe", "g"],
        ["reset-offsets", "g", "--topic", "t", "--to-latest"],
        ["delete", "g"],
    ],
)
def test_a_broker_that_is_not_there_is_named(command: list[str], closed_port: int) -> None:
    text = complaint(1, "groups", *command, "--bootstrap", f"127.0.0.1:{closed_port}")
    assert text.startswith(f"no broker at 127.0.0.1:{closed_port} (Connection refused): ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["list", "--state", "Fine"],
        ["list", "--watch", "0"],
        ["describe"],
        ["describe", ""],
        ["describe", "--watch", "g"],
        ["delete"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["groups", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
