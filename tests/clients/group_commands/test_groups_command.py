"""`brokerhouse groups list`, `describe` and `delete`, beside real consumers of a real broker."""

import confluent_kafka
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest

from brokerhouse.broker.cli.main import main
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import LIMIT_S, complaint, in_a_process, output
from tests.support.group_commands import COMMITTED, RECORDS, fields, node, read_next
from tests.support.group_consumer import consuming


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


def test_control_characters_in_a_groups_name_are_printed_escaped(
    broker: BrokerProcess, filled: str, to: tuple[str, str]
) -> None:
    group = f"{filled} \x1b[31m[red]"
    output("groups", "reset-offsets", group, "--topic", filled, "--to-latest", "--execute", *to)
    shown = f"{filled} \\x1b[31m[red]"
    assert shown in output("groups", "list", *to)
    assert shown in output("groups", "describe", group, *to)
    assert output("groups", "delete", group, *to) == f"deleted {shown}\n"


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
        filled,
        "0",
        str(COMMITTED),
        str(RECORDS),
        str(RECORDS - COMMITTED),
        "-",
    ]


def test_a_member_with_an_unreadable_assignment_is_described_without_it(
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


@pytest.mark.each_change
def test_delete_deletes_groups_without_members_and_names_each_of_the_others(
    broker: BrokerProcess, stopped_group: str, filled: str, to: tuple[str, str]
) -> None:
    busy = f"{stopped_group}.busy"
    with consuming(broker, busy, filled) as consumer:
        consumer.values_to_the_end()
        result = in_a_process("groups", "delete", busy, stopped_group, "nobody", *to)
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


def test_describing_or_deleting_an_unknown_group_names_it_and_does_not_create_it(
    to: tuple[str, str],
) -> None:
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
def test_groups_commands_name_a_broker_that_refuses_connections(
    command: list[str], closed_port: int
) -> None:
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
def test_groups_with_a_wrong_command_line_ends_with_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["groups", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
