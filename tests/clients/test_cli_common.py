"""What several commands have: a list of brokers, JSON for programs, completion by the shell."""

import json
import shlex
import subprocess
import sys

import pytest
from kafka import KafkaProducer

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import LIMIT_S, complaint, environment, output, run
from tests.support.server_process import PROJECT


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic with two partitions and three records in the second of them."""
    output(
        *shlex.split(
            f"topics create {topic} --partitions 2 --config retention.ms=86400000"
            f" --bootstrap {broker.kafka}"
        )
    )
    with KafkaProducer(bootstrap_servers=broker.kafka) as producer:
        for _ in range(3):
            producer.send(topic, b"x", partition=1).get(timeout=LIMIT_S)
    return topic


def test_commands_use_any_broker_of_a_list_that_answers(
    broker: BrokerProcess, filled: str, closed_port: int
) -> None:
    to = ("--bootstrap", f"127.0.0.1:{closed_port}, {broker.kafka}")
    assert filled in output("topics", "list", *to)
    output("groups", "reset-offsets", filled, "--topic", filled, "--to-latest", "--execute", *to)
    assert filled in output("groups", "list", *to)
    tail = ("tail", filled, "--offset", "earliest", "--exit-at-end")
    assert len(output(*tail, *to).splitlines()) == 3
    assert len(output(*tail, BROKERHOUSE_BOOTSTRAP=to[1]).splitlines()) == 3


def test_every_broker_that_does_not_answer_is_named(closed_port: int) -> None:
    brokers = f"127.0.0.1:{closed_port},localhost:{closed_port}"
    text = complaint(1, "topics", "list", "--bootstrap", brokers)
    assert text.startswith(
        f"no broker at 127.0.0.1:{closed_port} (Connection refused),"
        f" localhost:{closed_port} (Connection refused): "
    )


@pytest.mark.parametrize("brokers", ["", "one:9092,two", ","])
def test_a_list_that_names_no_brokers_is_refused(brokers: str) -> None:
    ended = run("topics", "list", "--bootstrap", brokers)
    assert ended.returncode == 2
    assert "write HOST:PORT" in ended.stderr


def test_topics_are_listed_and_described_as_json(broker: BrokerProcess, filled: str) -> None:
    to = ("--json", "--bootstrap", broker.kafka)
    listed = {each["topic"]: each for each in json.loads(output("topics", "list", *to))}
    described = json.loads(output("topics", "describe", filled, *to))
    assert listed[filled] == {"topic": filled, "partitions": 2, "id": described["id"]}
    assert described == {
        "topic": filled,
        "id": described["id"],
        "partitions": [
            {"partition": 0, "leader": 1, "earliest": 0, "latest": 0, "records": 0},
            {"partition": 1, "leader": 1, "earliest": 0, "latest": 3, "records": 3},
        ],
        "configs": {"retention.ms": "86400000"},
    }


def test_groups_are_listed_and_described_as_json(broker: BrokerProcess, filled: str) -> None:
    to = ("--bootstrap", broker.kafka)
    group = f"{filled} \x1b[31m"
    output(
        *("groups", "reset-offsets", group),
        *shlex.split(f"--topic {filled}:1 --to-offset 1 --execute"),
        *to,
    )
    listed = json.loads(output("groups", "list", "--json", *to))
    [found] = [each for each in listed if each["group"] == group]
    assert (found["state"], found["members"], found["coordinator"]) == ("Empty", 0, 1)
    described = json.loads(output("groups", "describe", group, "--json", *to))
    assert described["coordinator_address"] == broker.kafka
    assert described["assignments"] == []
    assert described["offsets"] == [
        {"topic": filled, "partition": 1, "committed": 1, "end": 3, "lag": 2, "owner": None}
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("br top", "topics", marks=pytest.mark.test_all),
        ("br topics list --j", "--json"),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, expected: str) -> None:
    name = "brokerhouse"
    completed = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.argv[0] = '{name}';"
            " from brokerhouse.broker.cli.main import main; main()",
        ],
        cwd=PROJECT,
        env=environment(
            _BROKERHOUSE_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
        ),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert f"plain,{expected}" in completed.stdout.splitlines()
