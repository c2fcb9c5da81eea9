"""The commands go on while one of three brokers is dead, or stopped and still accepting.

--bootstrap names that broker first, it leads the partition that is written and read, and it
coordinates the group. Each command waits until another has taken over, at most for its --timeout.
"""

import shlex
from collections.abc import Iterator

import pytest

from tests.support.cluster_processes import Cluster
from tests.support.cluster_view import coordinators, leaders, node, topic_on_all
from tests.support.command_line import output

pytestmark = pytest.mark.test_all
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("dead-broker"))
    try:
        made.start()
        made.await_each_other()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_every_command_succeeds_while_the_broker_that_it_needs_is_dead(
    cluster: Cluster, topic: str, stopped: bool
) -> None:
    target = topic_on_all(cluster, topic, PARTITIONS)
    dead = node(cluster, leaders(cluster.brokers[0], target.name)[0].node_id)
    alive = next(broker for broker in cluster.brokers if broker is not dead)
    groups = coordinators(alive, [f"{topic}-{number}" for number in range(40)])
    group, other, unused = [name for name, found in groups.items() if found == dead.node_id][:3]
    every = ",".join([dead.kafka, *(one.kafka for one in cluster.brokers if one is not dead)])
    to = ("--bootstrap", every, "--timeout", "60")
    output(
        *shlex.split(
            f"groups reset-offsets {unused} --topic {target.name} --to-latest --execute"
            f" --bootstrap {alive.kafka}"
        )
    )

    (dead.pause if stopped else dead.kill)()
    try:
        output("produce", target.name, "--partition", "0", *to, stdin="one\ntwo\n")
        start = ("--partition", "0", "--offset", "earliest", "--exit-at-end")
        assert output("consume", target.name, *start, *to) == "one\ntwo\n"
        assert len(output("tail", target.name, *start, *to).splitlines()) == 2
        joined = ("--group", other, "--exit-at-end")
        assert output("consume", target.name, *joined, *to) == "one\ntwo\n"
        assert target.name in output("topics", "list", *to)
        assert "0" in output("topics", "describe", target.name, *to)
        output(
            *shlex.split(
                f"groups reset-offsets {group} --topic {target.name} --to-latest --execute"
            ),
            *to,
        )
        assert {group, other, unused} <= set(output("groups", "list", *to).split())
        assert target.name in output("groups", "describe", group, *to)
        output("groups", "delete", unused, *to)
        output("topics", "create", f"{topic}.new", *to)
        output("topics", "delete", f"{topic}.new", *to)
    finally:
        if stopped:
            dead.resume()
        else:
            dead.start()
