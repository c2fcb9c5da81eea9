"""The group of a feed: an active group while the feed runs, for SQL and for Kafka's tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import complaint, output
from tests.support.committed import create_topic
from tests.support.console_tools import Tools
from tests.support.helper_process import HelperProcess
from tests.support.server_process import PROJECT
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FEED, GROUP, TOPIC = "shop.orders", "feed-shop.orders", "orders"
MEMBER = "brokerhouse-1"


@pytest.fixture
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedTables]:
    settings = {**SETTINGS, "group_initial_rebalance_delay_ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("feed-groups") / "data", settings) as broker:
        made = TypedTables(broker)
        create_topic(broker.kafka, TOPIC, 2)
        made("create", FEED, "--topic", TOPIC, "--columns", "id UInt8")
        for partition in range(2):
            made.produce(TOPIC, '{"id": 1}', partition=partition)
        await_shown(made, 1)
        yield made
        broker.stop()


def lag(tables: TypedTables) -> list[dict[str, Any]]:
    return tables.sql(
        "SELECT partition, committed_offset, client_id, assigned FROM brokerhouse.consumer_lag"
        f" WHERE group_id = '{GROUP}' ORDER BY partition"
    )


def await_shown(tables: TypedTables, offset: int) -> None:
    """Wait until the group has this offset in both partitions, and the broker as its member."""
    shown = {"committed_offset": offset, "client_id": "brokerhouse-feed", "assigned": True}
    until(
        lambda: lag(tables) == [{"partition": number, **shown} for number in range(2)],
        "the group shows how far the feed is",
    )


def state(tables: TypedTables) -> list[tuple[str, int]]:
    rows = tables.sql(
        f"SELECT state, members FROM brokerhouse.group_state WHERE group_id = '{GROUP}'"
    )
    return [(row["state"], row["members"]) for row in rows]


def await_state(tables: TypedTables, *wanted: tuple[str, int]) -> None:
    until(lambda: state(tables) == list(wanted), f"the group is {wanted}, not {state(tables)}")


def empty_groups(tables: TypedTables) -> list[dict[str, Any]]:
    """The alert of docs/lag.md."""
    text = (PROJECT / "docs" / "lag.md").read_text(encoding="utf-8")
    statement = text.partition("<!-- alert: empty -->\n```sql\n")[2].partition("```")[0]
    for table in ("consumer_lag", "group_state"):
        statement = statement.replace(f" {table}\n", f" brokerhouse.{table}\n")
        statement = statement.replace(f" {table} USING", f" brokerhouse.{table} USING")
    return tables.sql(statement)


def test_kafkas_tools_show_a_running_feed_as_an_active_group_and_cannot_change_it(
    tables: TypedTables, jvm: HelperProcess
) -> None:
    run = Tools(tables.broker, jvm)
    group = ("--group", GROUP)
    shown = run(CONSUMER_GROUPS, "--describe", *group, "--state")
    assert shown.splitlines()[-1].split()[-3:] == ["feed", "Stable", "1"]
    offsets = [line.split() for line in run(CONSUMER_GROUPS, "--describe", *group).splitlines()]
    of_group = [line for line in offsets if line[:1] == [GROUP]]
    assert [line[2] for line in of_group] == ["0", "1"]
    assert {line[8] for line in of_group} == {"brokerhouse-feed"}
    assert all(line[6].startswith(MEMBER) for line in of_group)

    reset = run(CONSUMER_GROUPS, "--reset-offsets", *group, "--all-topics", "--to-earliest",
                "--execute")  # fmt: skip
    assert "is inactive, but the current state is Stable" in reset
    assert "GroupNotEmptyException" in run(CONSUMER_GROUPS, "--delete", *group)
    deleted = run(CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", TOPIC)
    assert "GroupSubscribedToTopicException" in deleted
    assert [one["committed_offset"] for one in lag(tables)] == [1, 1]


def test_commands_of_groups_show_a_running_feed_and_refuse_to_move_it(tables: TypedTables) -> None:
    to_broker = ("--bootstrap", tables.broker.kafka)
    listed = json.loads(output("groups", "list", "--json", *to_broker))
    assert [(one["group"], one["state"]) for one in listed] == [(GROUP, "Stable")]
    move = ("reset-offsets", GROUP, "--topic", TOPIC, "--to-earliest", "--execute")
    refused = complaint(1, "groups", *move, *to_broker)
    assert f"group {GROUP} is active (Stable, members: 1)" in refused
    refused = complaint(1, "groups", "delete", GROUP, *to_broker)
    assert refused == f"group {GROUP} has active members: stop them first"


def test_the_group_of_a_paused_feed_is_empty_and_that_of_a_dropped_feed_is_deleted(
    tables: TypedTables,
) -> None:
    assert state(tables) == [("Stable", 1)]
    tables("pause", FEED)
    await_state(tables, ("Empty", 0))
    tables.produce(TOPIC, '{"id": 2}')
    assert [one["group_id"] for one in empty_groups(tables)] == [GROUP]

    tables("resume", FEED)
    await_state(tables, ("Stable", 1))
    assert empty_groups(tables) == []
    tables("pause", FEED)
    await_state(tables, ("Empty", 0))
    tables("drop", FEED)
    await_state(tables)
    assert lag(tables) == []


def test_a_feed_joins_its_group_again_at_once_after_a_kill(tables: TypedTables) -> None:
    [before] = tables.sql("SELECT member_id FROM brokerhouse.group_members")
    tables.broker.kill()
    tables.broker.start()
    for partition in range(2):
        tables.produce(TOPIC, '{"id": 2}', partition=partition)
    await_shown(tables, 2)
    assert state(tables) == [("Stable", 1)]
    [after] = tables.sql("SELECT member_id FROM brokerhouse.group_members")
    assert after != before


def test_the_group_of_a_feed_follows_added_partitions(tables: TypedTables) -> None:
    widen(tables.broker, 3)
    tables.produce(TOPIC, '{"id": 3}', partition=2)
    until(
        lambda: (
            [(one["partition"], one["assigned"]) for one in lag(tables)]
            == [(0, True), (1, True), (2, True)]
        ),
        "the member has the new partition",
    )


def widen(broker: BrokerProcess, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    [done] = admin.create_partitions([NewPartitions(TOPIC, partitions)]).values()
    done.result(60)
