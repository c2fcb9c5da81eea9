"""`brokerhouse produce` and `brokerhouse consume`, with a real broker."""

import json
import os
import shlex
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from brokerhouse.broker.cli.kafka_client import consumer_client
from brokerhouse.broker.cli.options import Bootstrap
from brokerhouse.common.address import parse_address
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, LIMIT_S, complaint, environment, output, run
from tests.support.server_process import PROJECT
from tests.support.waiting import until

EVERYTHING = "%t %p %o %T %k=%s %K %S %h %%\\n"

JSON = ["--input-format", "json"]


@pytest.fixture
def made(broker: BrokerProcess, topic: str) -> str:
    """An empty topic with three partitions."""
    output("topics", "create", topic, "--partitions", "3", "--bootstrap", broker.kafka)
    return topic


def produce(broker: BrokerProcess, topic: str, *options: str, stdin: str = "") -> None:
    assert output("produce", topic, *options, "--bootstrap", broker.kafka, stdin=stdin) == ""


def consume(broker: BrokerProcess, topic: str, *options: str) -> str:
    return output("consume", topic, "--exit-at-end", *options, "--bootstrap", broker.kafka)


def refused(broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    ended = run(*arguments, "--bootstrap", broker.kafka, stdin=stdin)
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    return ended.stderr.removeprefix("Error: ").rstrip("\n")


def rows(broker: BrokerProcess, topic: str) -> list[dict[str, object]]:
    return broker.sql(
        "SELECT partition, offset, key, value, headers FROM messages"
        f" WHERE topic = '{topic}' ORDER BY partition, offset"
    )


def test_produce_makes_records_of_lines_and_consume_lines_of_records(
    broker: BrokerProcess, made: str
) -> None:
    produce(broker, made, "--partition", "1", stdin="one\n\ntwo, ü\nno line end")
    found = [(row["partition"], row["key"], row["value"]) for row in rows(broker, made)]
    assert found == [(1, None, value) for value in ("one", "", "two, ü", "no line end")]
    assert consume(broker, made) == "one\n\ntwo, ü\nno line end\n"
    assert consume(broker, made, "--delimiter", "\\0") == "one\0\0two, ü\0no line end\0"


def test_produce_and_consume_carry_keys_and_headers(broker: BrokerProcess, made: str) -> None:
    produce(
        broker,
        made,
        *shlex.split(
            "--key-delimiter :: --header a=1 --header b=x=y --delimiter | --empty-is-null"
        ),
        stdin="k::v::w|l::",
    )
    found = {row["key"]: (row["value"], row["headers"]) for row in rows(broker, made)}
    headers = [{"key": "a", "value": "1"}, {"key": "b", "value": "x=y"}]
    assert found in (
        {"k": ("v::w", headers), "l": (None, headers)},
        {"k": ("v::w", [["a", "1"], ["b", "x=y"]]), "l": (None, [["a", "1"], ["b", "x=y"]])},
    )
    printed = consume(broker, made, "--key-delimiter", "=").splitlines()
    assert sorted(printed) == ["k=v::w", "l="]
    # The partition of a key is the one that Kafka's clients choose.
    with KafkaProducer(bootstrap_servers=broker.kafka) as producer:
        partition = producer.send(made, b"x", key=b"k").get(timeout=LIMIT_S).partition
    assert partition in {row["partition"] for row in rows(broker, made) if row["value"] == "v::w"}
    produce(broker, made, "--key", "fixed", stdin="z\n")
    assert "fixed=z" in consume(broker, made, "--key-delimiter", "=").splitlines()


def test_json_carries_whole_records_from_topic_to_topic(broker: BrokerProcess, made: str) -> None:
    with KafkaProducer(bootstrap_servers=broker.kafka) as producer:
        producer.send(
            made,
            b"\xff\x00",
            key="ü".encode(),
            headers=[("h", b"\xfe"), ("h", b"")],
            partition=2,
            timestamp_ms=5,
        ).get(timeout=LIMIT_S)
        producer.send(made, None, key=b"", partition=0, timestamp_ms=6).get(timeout=LIMIT_S)
    printed = consume(broker, made, "--json")
    assert {json.loads(line)["timestamp_ms"] for line in printed.splitlines()} == {5, 6}
    copy = f"{made}.copy"
    output("topics", "create", copy, "--partitions", "3", "--bootstrap", broker.kafka)
    produce(broker, copy, "--input-format", "json", stdin=printed)
    again = consume(broker, copy, "--json")
    assert sorted(again.replace(copy, made).splitlines()) == sorted(printed.splitlines())
    produce(
        broker,
        made,
        *JSON,
        stdin='{"headers": {"a": "b"}, "partition": 1, "key": "k"}\n\n',
    )
    template = consume(broker, made, "--format", EVERYTHING, "--partition", "1").split()
    assert template[:3] == [made, "1", "0"]
    assert template[4:] == ["k=", "1", "-1", "a=b", "%"]


def test_produce_takes_files_as_values_or_as_lines(
    broker: BrokerProcess, made: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    produce(broker, made, *paths, "--partition", "0")
    assert consume(broker, made) == "1\n2\n3\n"
    produce(broker, made, *paths, "--input-format", "file", "--partition", "1")
    assert consume(broker, made, "--partition", "1", "--delimiter", "|") == "1\n2\n|3|"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produce_stores_records_with_every_codec_and_acks(
    broker: BrokerProcess, made: str, codec: str, acks: str
) -> None:
    produce(
        broker,
        made,
        *shlex.split(f"--compression {codec} --acks {acks} --partition 0"),
        stdin="x\n" * 1000,
    )
    until(lambda: consume(broker, made) == "x\n" * 1000)


@pytest.mark.parametrize(
    ("options", "stdin", "why"),
    [
        ([], "", "topic nosuch does not exist"),
        (
            ["--partition", "7"],
            "x\n",
            "standard input, record 1: topic {} has no partition 7; 0 records are stored",
        ),
        (
            ["--key-delimiter", "="],
            "a=1\nb\n",
            "standard input, record 2: there is no key delimiter '='; 1 records are stored",
        ),
        (JSON, '{"value": "1"}\n[\n', "standard input, record 2 is not JSON: "),
        (JSON, '{"valeu": "1"}\n', "record 1: unknown field 'valeu'; "),
        (JSON, '{"value": 1}\n', "record 1: 1 is neither a string, null nor "),
        (JSON, '{"key": {"base64": "?"}}\n', "record 1: '?' is not base64"),
        (JSON, '{"partition": 9}\n', "topic {} has no partition 9"),
        (JSON, '{"partition": true}\n', "True is not a number from 0 to "),
        (["--empty-is-null"], "\n", "record 1: a record without a value needs a key"),
        (JSON, '{"headers": [["a"]]}\n', "headers are a list of [name, value]"),
        (JSON, '{"headers": {"a": null}}\n', "header 'a' is null"),
        ([], "x" * 2_000_000, "(max.message.bytes) (MESSAGE_SIZE_TOO_LARGE); 0 records are stored"),
    ],
)
def test_produce_says_why_a_record_cannot_be_stored(
    broker: BrokerProcess, made: str, options: list[str], stdin: str, why: str
) -> None:
    topic = "nosuch" if "nosuch" in why else made
    told = refused(broker, "produce", topic, *options, stdin=stdin)
    assert why.format(made) in told
    assert len(told.splitlines()) == 1


def test_consume_starts_at_the_given_offset_or_time(broker: BrokerProcess, made: str) -> None:
    with KafkaProducer(bootstrap_servers=broker.kafka) as producer:
        for number in range(5):
            producer.send(made, b"%d" % number, partition=0, timestamp_ms=number * 1000)
    one = ("--partition", "0")
    assert consume(broker, made, *one, "--offset", "3").split() == ["3", "4"]
    assert consume(broker, made, "--offset", "-2").split() == ["3", "4"]
    assert consume(broker, made, "--offset", "-99").split() == ["0", "1", "2", "3", "4"]
    assert consume(broker, made, "--offset", "latest") == ""
    assert consume(broker, made, "--offset", "@2500").split() == ["3", "4"]
    iso = datetime.fromtimestamp(2.5, UTC).isoformat()
    assert consume(broker, made, "--offset", f"@{iso}").split() == ["3", "4"]
    assert consume(broker, made, "--offset", "@9999999999999") == ""
    assert consume(broker, made, "--offset", "1", *one, "--count", "2").split() == ["1", "2"]
    assert output("consume", made, "--count", "5", "--bootstrap", broker.kafka).count("\n") == 5
    assert refused(broker, "consume", made, *one, "--offset", "6") == (
        f"offset 6 is out of range: partition 0 of {made} starts at 0 and ends at 5"
    )
    assert refused(broker, "consume", made, "--partition", "7") == (
        f"topic {made} has no partition 7"
    )
    assert refused(broker, "consume", "nosuch") == "topic nosuch does not exist"


@pytest.mark.parametrize(
    "options",
    [
        ["--offset", "x"],
        ["--offset", "@x"],
        ["--format", "%q"],
        ["--format", "words"],
        ["--group", "g", "--offset", "3"],
        ["--group", "g", "--partition", "0"],
        ["--delimiter", ""],
        ["--delimiter", "\\x"],
    ],
)
def test_consume_with_a_wrong_command_line_ends_with_exit_code_2(options: list[str]) -> None:
    ended = run("consume", "any", *options)
    assert ended.returncode == 2, ended
    assert "Error: " in ended.stderr


def test_consume_with_a_group_goes_on_from_its_committed_offset(
    broker: BrokerProcess, made: str
) -> None:
    produce(broker, made, "--partition", "2", stdin="1\n2\n3\n4\n")
    first = output("consume", made, "--group", made, "--count", "3", "--bootstrap", broker.kafka)
    assert first.split() == ["1", "2", "3"]
    with KafkaConsumer(bootstrap_servers=broker.kafka, group_id=made) as consumer:
        assert consumer.committed(TopicPartition(made, 2)) == 3
    assert consume(broker, made, "--group", made).split() == ["4"]
    assert consume(broker, made, "--group", made) == ""
    late = ("--group", f"{made}.late", "--offset", "latest")
    assert consume(broker, made, *late) == ""


def test_a_poll_that_ends_during_a_rebalance_loses_no_assignment(
    broker: BrokerProcess, made: str
) -> None:
    """Short polls, so that their time is over before the broker has answered. Many, one directly
    after the other: between two polls this client does nothing.
    """
    late = f"{made}.late"

    def reads(topic: str) -> bool:
        for _ in range(200):
            consumer.poll(timeout_ms=1)
            if any(part.topic == topic for part in consumer.assignment()):
                return True
        return False

    with consumer_client(Bootstrap((parse_address(broker.kafka),)), made) as consumer:
        consumer.subscribe([made, late])
        until(lambda: reads(made))
        output("topics", "create", late, "--bootstrap", broker.kafka)
        until(lambda: reads(late))


def test_a_closed_pipe_ends_consume_without_a_message(broker: BrokerProcess, made: str) -> None:
    produce(broker, made, "--partition", "0", stdin="x" * 1000 + "\n" + ("y" * 1000 + "\n") * 2000)
    consuming = subprocess.Popen(
        [*COMMAND, "consume", made, "--bootstrap", broker.kafka],
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consuming.stdout is not None
    assert consuming.stderr is not None
    assert os.read(consuming.stdout.fileno(), 10) == b"x" * 10
    consuming.stdout.close()
    assert consuming.stderr.read() == b""
    assert consuming.wait(LIMIT_S) == 1


def test_ctrl_c_ends_produce_after_its_records_are_stored_and_ends_consume(
    broker: BrokerProcess, made: str
) -> None:
    to = ("--bootstrap", broker.kafka)
    consuming = subprocess.Popen(
        [*COMMAND, "consume", made, *to],
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    producing = subprocess.Popen(
        [*COMMAND, "produce", made, *to],
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consuming.stdout is not None
    assert producing.stdin is not None
    producing.stdin.write(b"early\n")
    producing.stdin.flush()
    assert consuming.stdout.readline() == b"early\n"
    for process in (producing, consuming):
        process.send_signal(signal.SIGINT)
    assert producing.wait(LIMIT_S) == 130
    assert consuming.wait(LIMIT_S) == 0
    assert producing.stderr is not None
    assert consuming.stderr is not None
    assert producing.stderr.read() == b"interrupted: 1 records are stored\n"
    assert consuming.stderr.read() == b""
    producing.stdin.close()


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_produce_and_consume_name_a_broker_that_refuses_connections(
    command: str, closed_port: int
) -> None:
    text = complaint(1, command, "any", "--bootstrap", f"127.0.0.1:{closed_port}")
    assert text.startswith(f"no broker at 127.0.0.1:{closed_port} (Connection refused): ")
