"""`brokerhouse groups reset-offsets`, beside real consumers of a real broker."""

import shlex
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import click
import confluent_kafka
import pytest
from click.testing import CliRunner
from kafka import TopicPartition

from brokerhouse.broker.cli import kafka_client, reset_offsets
from brokerhouse.broker.cli.main import main
from brokerhouse.broker.cli.options import Bootstrap
from brokerhouse.common.address import parse_address
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import LIMIT_S, complaint, output, run
from tests.support.group_commands import COMMITTED, RECORDS, committed, fields, node, read_next
from tests.support.group_consumer import consuming

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
def test_a_consumer_goes_on_from_the_offset_of_a_reset(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str], kind: str
) -> None:
    arguments, offset = RESETS[kind]
    reset = ("reset-offsets", stopped_group, "--topic", filled, *arguments)
    heading, row, *_, last = fields(*reset, "--execute", *to)
    assert heading == ["topic", "partition", "committed", "new", "offset"]
    assert row == [filled, "0", str(COMMITTED), str(offset)]
    assert last == ["stored"]
    assert read_next(broker, stopped_group, filled) == [str(n) for n in range(offset, RECORDS)]


def test_a_reset_without_execute_shows_the_offsets_and_stores_none(
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
    assert late.stderr == f"Warning: {topic}:0 has no record since then: using its end\n"


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
    done = run(
        "groups", "reset-offsets", stopped_group, "--all-topics", *arguments, "--execute", *to
    )
    assert done.returncode == 0
    assert done.stderr == (
        f"Warning: {filled}:0 starts at 0 and ends at 10: using {taken} instead of {asked}\n"
    )
    assert committed(broker, stopped_group) == {(filled, 0): taken}


def test_a_reset_touches_only_the_partitions_it_names(
    broker: BrokerProcess, group: str, topic: str, to: tuple[str, str]
) -> None:
    output("topics", "create", topic, "--partitions", "4", *to)
    other = f"{topic}-other"
    output("topics", "create", other, "--partitions", "2", *to)
    output(
        *shlex.split(
            f"groups reset-offsets {group} --topic {topic}:0,2 --topic {other}"
            " --to-latest --execute"
        ),
        *to,
    )
    assert committed(broker, group) == {(topic, 0): 0, (topic, 2): 0, (other, 0): 0, (other, 1): 0}
    everywhere = output(
        *shlex.split(f"groups reset-offsets {group} --all-topics --to-current --export"), *to
    )
    assert everywhere.splitlines() == [
        f"{topic},0,0",
        f"{topic},2,0",
        f"{other},0,0",
        f"{other},1,0",
    ]


def test_a_reset_creates_a_group_that_does_not_exist(
    broker: BrokerProcess, group: str, filled: str, to: tuple[str, str]
) -> None:
    output(
        *shlex.split(f"groups reset-offsets {group} --topic {filled} --to-offset 8 --execute"), *to
    )
    assert [group, "Empty", "-", "0", node(broker, group)] in fields("list", *to)
    assert read_next(broker, group, filled) == ["8", "9"]


def test_a_group_with_members_is_not_reset(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    with consuming(broker, stopped_group, filled) as consumer:
        consumer.values_to_the_end()
        for execute in ([], ["--execute"]):
            refused = complaint(
                1,
                *shlex.split(
                    f"groups reset-offsets {stopped_group} --topic {filled} --to-earliest"
                ),
                *execute,
                *to,
            )
            assert refused == (
                f"group {stopped_group} is active (Stable, members: 1): "
                "stop its members before you move its offsets"
            )
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_a_group_that_gets_members_during_a_reset_keeps_its_offsets(
    broker: BrokerProcess, stopped_group: str, filled: str
) -> None:
    with consuming(broker, stopped_group, filled) as consumer:
        consumer.values_to_the_end()
        with (
            kafka_client.admin_client(Bootstrap((parse_address(broker.kafka),))) as admin,
            pytest.raises(click.ClickException, match="became active: nothing was changed"),
        ):
            # What the command does after it has seen no members.
            reset_offsets._store(admin, stopped_group, {TopicPartition(filled, 0): 0})
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_offsets_are_exported_to_a_file_and_reset_from_it(
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
def test_a_file_of_offsets_that_does_not_fit_changes_nothing(
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
    refused = complaint(
        1, *shlex.split(f"groups reset-offsets {stopped_group} --from-file {file} --execute"), *to
    )
    assert refused == sentence.format(topic=filled, group=stopped_group)
    assert committed(broker, stopped_group) == {(filled, 0): COMMITTED}


def test_a_reset_of_unknown_partitions_names_them_and_stores_nothing(
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


def test_a_reset_relative_to_committed_offsets_is_refused_if_there_are_none(
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
        (["--topic", "t"], "give exactly one target"),
        (["--topic", "t", "--to-latest", "--to-offset", "0"], "give exactly one target"),
        (["--to-latest"], "name the partitions with either"),
        (["--topic", "t", "--all-topics", "--to-latest"], "name the partitions with either"),
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
def test_a_reset_with_wrong_options_ends_with_exit_code_2(
    arguments: list[str], complains_of: str
) -> None:
    result = CliRunner().invoke(main, ["groups", "reset-offsets", "g", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert complains_of in result.stderr.splitlines()[-1]
