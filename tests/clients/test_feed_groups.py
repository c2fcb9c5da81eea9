"""The group of a feed: an active group while the feed runs, for SQL and for Kafka's tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
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
from tests.support.waiting import LIMIT_S, until

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
MEMBER = "brokerhouse-1"
LOOK_AGAIN_S = 0.1
"""The views are queries that take the broker's time."""

_numbers = count(1)


@dataclass(frozen=True)
class Feed:
    """A feed of a topic with two partitions."""

    tables: TypedTables
    name: str
    topic: str

    @property
    def group(self) -> str:
        return f"feed-{self.name}"

    def produce(self, number: int, *, partition: int = 0) -> None:
        self.tables.produce(self.topic, f'{{"id": {number}}}', partition=partition)

    def lag(self) -> list[dict[str, Any]]:
        return self.tables.sql(
            "SELECT partition, committed_offset, client_id, assigned FROM brokerhouse.consumer_lag"
            f" WHERE group_id = '{self.group}' ORDER BY partition"
        )

    def await_shown(self, offset: int) -> None:
        """Wait until the group has this offset in both partitions, and the broker as its member."""
        shown = {"committed_offset": offset, "client_id": "brokerhouse-feed", "assigned": True}
        until(
            lambda: self.lag() == [{"partition": number, **shown} for number in range(2)],
            "the group shows how far the feed is",
            every_s=LOOK_AGAIN_S,
        )

    def state(self) -> list[tuple[str, int]]:
        rows = self.tables.sql(
            f"SELECT state, members FROM brokerhouse.group_state WHERE group_id = '{self.group}'"
        )
        return [(row["state"], row["members"]) for row in rows]

    def await_state(self, *wanted: tuple[str, int]) -> None:
        what = f"the group is {wanted}, not {self.state()}"
        until(lambda: self.state() == list(wanted), what, every_s=LOOK_AGAIN_S)

    def member_id(self) -> str:
        [row] = self.tables.sql(
            f"SELECT member_id FROM brokerhouse.group_members WHERE group_id = '{self.group}'"
        )
        return str(row["member_id"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {**SETTINGS, "group_initial_rebalance_delay_ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("feed-groups") / "data", settings) as process:
        yield process
        process.stop()


def new_feed(broker: BrokerProcess) -> Feed:
    """A feed that has taken one record of each partition."""
    number = next(_numbers)
    feed = Feed(TypedTables(broker), f"shop.orders{number}", f"orders{number}")
    create_topic(broker.kafka, feed.topic, 2)
    feed.tables("create", feed.name, "--topic", feed.topic, "--columns", "id UInt8")
    for partition in range(2):
        feed.produce(1, partition=partition)
    feed.await_shown(1)
    return feed


@pytest.fixture
def feed(broker: BrokerProcess) -> Feed:
    return new_feed(broker)


def is_reported_as_empty(feed: Feed) -> bool:
    """Whether the alert of docs/lag.md shows its group."""
    text = (PROJECT / "docs" / "lag.md").read_text(encoding="utf-8")
    statement = text.partition("<!-- alert: empty -->\n```sql\n")[2].partition("```")[0]
    for table in ("consumer_lag", "group_state"):
        statement = statement.replace(f" {table}\n", f" brokerhouse.{table}\n")
        statement = statement.replace(f" {table} USING", f" brokerhouse.{table} USING")
    return feed.group in [row["group_id"] for row in feed.tables.sql(statement)]


def test_kafkas_tools_show_a_running_feed_as_an_active_group_and_cannot_change_it(
    feed: Feed, jvm: HelperProcess
) -> None:
    run = Tools(feed.tables.broker, jvm)
    group = ("--group", feed.group)
    shown = run(CONSUMER_GROUPS, "--describe", *group, "--state")
    assert shown.splitlines()[-1].split()[-3:] == ["feed", "Stable", "1"]
    offsets = [line.split() for line in run(CONSUMER_GROUPS, "--describe", *group).splitlines()]
    of_group = [line for line in offsets if line[:1] == [feed.group]]
    assert [line[2] for line in of_group] == ["0", "1"]
    assert {line[8] for line in of_group} == {"brokerhouse-feed"}
    assert all(line[6].startswith(MEMBER) for line in of_group)

    reset = run(
        CONSUMER_GROUPS, "--reset-offsets", *group, "--all-topics", "--to-earliest", "--execute"
    )
    assert "is inactive, but the current state is Stable" in reset
    assert "GroupNotEmptyException" in run(CONSUMER_GROUPS, "--delete", *group)
    deleted = run(CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", feed.topic)
    assert "GroupSubscribedToTopicException" in deleted
    assert [one["committed_offset"] for one in feed.lag()] == [1, 1]


def test_commands_of_groups_show_a_running_feed_and_refuse_to_move_it(feed: Feed) -> None:
    to_broker = ("--bootstrap", feed.tables.broker.kafka)
    listed = json.loads(output("groups", "list", "--json", *to_broker))
    assert (feed.group, "Stable") in [(one["group"], one["state"]) for one in listed]
    move = ("reset-offsets", feed.group, "--topic", feed.topic, "--to-earliest", "--execute")
    refused = complaint(1, "groups", *move, *to_broker)
    assert f"group {feed.group} is active (Stable, members: 1)" in refused
    refused = complaint(1, "groups", "delete", feed.group, *to_broker)
    assert refused == f"group {feed.group} has active members: stop them first"


@pytest.mark.test_all
def test_the_group_of_a_paused_feed_is_empty_and_that_of_a_dropped_feed_is_deleted(
    feed: Feed,
) -> None:
    assert feed.state() == [("Stable", 1)]
    feed.tables("pause", feed.name)
    feed.await_state(("Empty", 0))
    feed.produce(2)
    assert is_reported_as_empty(feed)

    feed.tables("resume", feed.name)
    feed.await_state(("Stable", 1))
    assert not is_reported_as_empty(feed)
    feed.tables("pause", feed.name)
    feed.await_state(("Empty", 0))
    feed.tables("drop", feed.name)
    feed.await_state()
    assert feed.lag() == []


def test_a_feed_joins_its_group_again_at_once_after_a_kill(
    feed: Feed, broker: BrokerProcess
) -> None:
    before = feed.member_id()
    broker.kill()
    broker.start()
    for partition in range(2):
        feed.produce(2, partition=partition)
    feed.await_shown(2)
    assert feed.state() == [("Stable", 1)]
    assert feed.member_id() != before


@pytest.mark.test_all
def test_the_group_of_a_feed_follows_added_partitions(feed: Feed) -> None:
    admin = AdminClient({"bootstrap.servers": feed.tables.broker.kafka})
    [done] = admin.create_partitions([NewPartitions(feed.topic, 3)]).values()
    done.result(LIMIT_S)
    feed.produce(3, partition=2)
    until(
        lambda: (
            [(one["partition"], one["assigned"]) for one in feed.lag()]
            == [(0, True), (1, True), (2, True)]
        ),
        "the member has the new partition",
        every_s=LOOK_AGAIN_S,
    )
