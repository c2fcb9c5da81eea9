"""`brokerhouse --help` answers at once: libraries are imported when a command's work begins.

Each module of these lists took 10 to 100 ms of every --help, of every command.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from brokerhouse.broker.cli.main import COMMANDS
from brokerhouse.common.text_table import word_set
from tests.support.server_process import PROJECT

ONLY_FOR_WORK = word_set("""
    aiohttp chdb clickhouse_connect fastavro google.protobuf kafka msgpack pyspark rich urllib3
    uvloop brokerhouse.broker.broker brokerhouse.broker.server brokerhouse.storage.embedded
""")
"""No --help of any command needs them."""
ONLY_FOR_SETTINGS = {"asyncio", "brokerhouse.broker.settings.config", "pydantic"}
"""Commands that read the settings need these, the list of commands does not."""

_RUN = """
import json, sys
from brokerhouse.broker.cli.main import main
for words in json.loads(sys.argv[1]):
    main([*words, "--help"], standalone_mode=False)
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(*commands: list[str]) -> set[str]:
    """The modules of a process that has printed the --help of each of these commands."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("Usage: ") == len(commands)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_list_of_commands_imports_neither_libraries_nor_settings() -> None:
    modules = imported([])
    assert modules & (ONLY_FOR_WORK | ONLY_FOR_SETTINGS) == set()
    assert {name for name in modules if name.startswith("brokerhouse.broker.cli.")} == {
        "brokerhouse.broker.cli.ctrl_c",
        "brokerhouse.broker.cli.examples",
        "brokerhouse.broker.cli.main",
    }


def test_no_help_of_a_command_imports_what_only_its_work_needs() -> None:
    assert imported(*([name] for name in COMMANDS)) & ONLY_FOR_WORK == set()


@pytest.mark.parametrize("name", ["consume", "groups", "jobs", "produce", "sql", "tail", "topics"])
def test_help_of_a_command_without_settings_does_not_import_them(name: str) -> None:
    assert "pydantic" not in imported([name])
