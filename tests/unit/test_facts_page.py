"""docs/facts.md names tables that exist, every table of the schema, and for each fact a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerhouse.storage.schema_files import FileKind, schema_files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "facts.md").read_text()
IN_KEEPER = {"registry", "topic_registry", "feed_registry"}
"""Tables of a cluster whose rows are in Keeper: sql/schema/cluster/."""
NO_FACTS = PAGE[PAGE.index("These tables hold no fact") : PAGE.index("## What the rows")]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| fact ")
]
NAME = re.compile(r"`([a-z_]+)`")
TEST = re.compile(r"`(tests/[a-z_/]+\.py)::(test_[a-z_0-9]+)`")


def tables() -> set[str]:
    return {file.subject for file in schema_files() if file.kind is FileKind.TABLE}


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


def test_every_table_of_a_fact_exists() -> None:
    assert len(ROWS) > 10
    for fact, stored_in, *_ in ROWS:
        assert named(stored_in), fact
        assert named(stored_in) <= tables() | IN_KEEPER, fact


def test_every_table_is_listed_as_holding_a_fact_or_none() -> None:
    of_facts = set().union(*(named(stored_in) for _, stored_in, *_ in ROWS))
    without = named(NO_FACTS) - {"lag"}
    assert of_facts | without == tables() | IN_KEEPER
    assert not of_facts & without


@pytest.mark.parametrize("fact", ROWS, ids=lambda row: row[0])
def test_every_fact_has_a_test_that_looks_for_it_after_a_restart(fact: list[str]) -> None:
    tests = TEST.findall(fact[-1])
    assert tests, fact[0]
    for file, name in tests:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), name
