"""dbt with dbt-clickhouse, as a user who may write: the project in tests/support/dbt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.sql_client import PASSWORD, USER, read, write

pytestmark = pytest.mark.test_all  # test_dbt_statements.py sends the statements of dbt

LIMIT_S = 120


@dataclass(frozen=True)
class Dbt:
    project: Path
    environment: dict[str, str]

    def run(self, *words: str, failing: bool = False) -> str:
        """What it prints; it has to succeed, or else to fail."""
        command = [*tools.dbt_command(), "--no-use-colors", *words]
        place = ["--project-dir", str(self.project), "--profiles-dir", str(self.project)]
        ended = subprocess.run(
            [*command, *place],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (ended.returncode != 0) == failing, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def dbt(server: BrokerProcess, tmp_path: Path) -> Iterator[Dbt]:
    project = tmp_path / "shop"
    shutil.copytree(tools.DBT, project)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "SQL_PORT": server.http.split(":")[1],
        "SQL_USER": USER,
        "SQL_PASSWORD": PASSWORD,
    }
    yield Dbt(project, environment)
    write(server, "DROP DATABASE IF EXISTS shop")


def test_dbt_connects_builds_and_tests_models_twice(server: BrokerProcess, dbt: Dbt) -> None:
    assert "All checks passed!" in dbt.run("debug")
    for _ in range(2):  # the second time over the tables of the first
        assert "ERROR=0" in dbt.run("build")
        for table in "newest", "replaced", "as_they_come":
            counts = read(server, f"SELECT count(), uniqExact(offset) FROM shop.{table}")
            assert counts == "10\t10\n"
        assert read(server, "SELECT * FROM shop.per_topic") == "kept\t10\n"
        assert read(server, "SELECT * FROM shop.named ORDER BY id") == "1\tone\n2\ttwo\n"
        assert read(server, "SELECT count() FROM shop.names_over_time") == "2\n"
    dbt.run("docs", "generate")
    catalog = json.loads((dbt.project / "target" / "catalog.json").read_text())
    assert catalog["nodes"]["model.shop.records"]["columns"]["offset"]["type"] == "Int64"


def test_a_failing_test_of_dbt_and_a_model_over_the_log_are_reported(dbt: Dbt) -> None:
    models = dbt.project / "models"
    (models / "doubled.sql").write_text("SELECT 1 AS id UNION ALL SELECT 1")
    (models / "doubled.yml").write_text(
        "models: [{name: doubled, columns: [{name: id, data_tests: [unique]}]}]"
    )
    assert "Got 1 result, configured to fail if != 0" in dbt.run(
        "build", "--select", "doubled", failing=True
    )
    (models / "messages.sql").write_text(
        "{{ config(materialized='table', schema='', database='') }} SELECT 1 AS a"
    )
    (dbt.project / "macros").mkdir()
    (dbt.project / "macros" / "names.sql").write_text(
        "{% macro generate_schema_name(name, node) %}brokerhouse{% endmacro %}"
    )
    printed = dbt.run("run", "--select", "messages", failing=True)
    assert "ACCESS_DENIED" in printed
