"""An owner that wakes after its lease with an insert in flight, and similar scenarios.

No insert of such an owner may be stored or acknowledged that its successor did not see. The first
scenario is part of `make test-all`, the others run with `pytest -m slow`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.history.conftest import MakeCluster
from tests.faults.history.run import shown
from tests.faults.history.scenarios import (
    SCENARIOS,
    SEED,
    Scenario,
    Stage,
    a_late_insert,
    gated,
    staged,
)
from tests.support.server_process import PROJECT


@pytest.fixture
def stage(make_cluster: MakeCluster, tmp_path: Path) -> Iterator[Stage]:
    cluster = make_cluster()
    with (
        gated(cluster, PROJECT) as gates,
        staged(cluster, gates, "zombies", tmp_path / "history.jsonl") as stage,
    ):
        yield stage


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            scenario,
            id=scenario.__name__,
            marks=pytest.mark.test_all if scenario is a_late_insert else pytest.mark.slow,
        )
        for scenario in SCENARIOS
    ],
)
def test_inserts_of_an_owner_that_lost_its_lease_are_neither_lost_nor_doubled(
    stage: Stage, scenario: Scenario
) -> None:
    findings = scenario(stage)
    assert not findings, shown(findings, stage.workload.path, SEED)
