"""The checker detects brokers that were broken on purpose.

Each test runs brokers from a copy of the code with one change that breaks a rule, through the
scenario of that rule. `test_zombie.py` plays the same scenarios with the code as it is."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.history.broken import Change, broken_copy
from tests.faults.history.checker import Kind
from tests.faults.history.conftest import MakeCluster
from tests.faults.history.run import shown
from tests.faults.history.scenarios import (
    SEED,
    Scenario,
    a_late_insert,
    a_lost_answer,
    a_lost_insert,
    an_owner_without_registry,
    gated,
    staged,
)


@dataclass(frozen=True, slots=True)
class Break:
    """What is broken, where that shows, and how; one of `kinds` at least is to be found."""

    name: str
    changes: tuple[Change, ...]
    scenario: Scenario
    kinds: frozenset[Kind]


BREAKS = [
    Break(
        "no deduplication token",
        (
            Change(
                "storage/clickhouse.py",
                "                token,\n                query_id,\n",
                "                str(uuid.uuid4()),\n                query_id,\n",
            ),
        ),
        a_lost_answer,
        frozenset({Kind.DUPLICATE}),
    ),
    Break(
        "no fence",
        (
            Change(
                "broker/cluster/slot_server.py",
                "        lanes = session.lanes.get(shard)\n",
                "        return\n        lanes = session.lanes.get(shard)\n",
            ),
        ),
        a_late_insert,
        frozenset({Kind.PHANTOM, Kind.OFFSET_REUSED}),
    ),
    Break(
        "an early acknowledgement",
        (
            Change(
                "broker/log/lane.py",
                "            try:\n                with self.counts.inserts.timed():\n",
                "            block.answer_all()\n"
                "            try:\n                with self.counts.inserts.timed():\n",
            ),
        ),
        a_lost_insert,
        frozenset({Kind.LOST}),
    ),
    Break(
        "no look at the lease",
        (
            Change("broker/cluster/leases.py", "return now_ms < self.ends_ms\n", "return True\n"),
            Change(
                "broker/cluster/slot_owner.py",
                "left_ms = session.lease.ends_ms - self._view.now_ms()\n",
                "left_ms = 1000\n",
            ),
        ),
        an_owner_without_registry,
        frozenset({Kind.LOST, Kind.OFFSET_REUSED, Kind.END_WENT_BACK}),
    ),
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_each_change_of_a_broken_broker_still_applies(broken: Break, tmp_path: Path) -> None:
    broken_copy(broken.changes, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_the_checker_finds_a_broker_without_one_of_its_rules(
    make_cluster: MakeCluster, tmp_path: Path, broken: Break
) -> None:
    tree = broken_copy(broken.changes, tmp_path / "tree")
    cluster = make_cluster(tree=tree)
    with (
        gated(cluster, tree) as gates,
        staged(cluster, gates, "broken", tmp_path / "history.jsonl") as stage,
    ):
        findings = broken.scenario(stage)
    print(shown(findings, stage.workload.path, SEED))
    assert {finding.kind for finding in findings} & broken.kinds
