"""Which room may import which, and that no two files import each other: docs/how-it-works.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

BELOW = {
    "common": set[str](),
    "protocol": {"common"},
    "storage": {"common", "protocol", "sql"},
    "sql": {"common", "protocol", "storage"},
    "coordinator": {"common", "protocol", "storage"},
    "broker": {"common", "protocol", "storage", "sql", "coordinator"},
    "spark_jobs": {"common", "protocol", "storage"},
}
"""Room: the rooms that it may import. `storage` reads sql/schema, as files."""

STARTS_JOBS = "broker.cli.jobs"
"""The only module of `broker` that may import `spark_jobs`."""


def modules() -> dict[str, Path]:
    found = {}
    for room in BELOW:
        for path in sorted((PROJECT / room).rglob("*.py")):
            name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """What a module imports of the project, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    wrong = [
        f"{name} imports {other}"
        for name in MODULES
        if name.split(".")[0] == room
        for other in imported(name)
        if other.split(".")[0] not in {room} | BELOW[room]
        and not (name == STARTS_JOBS and other.startswith("spark_jobs."))
    ]

    assert not wrong


def test_no_two_files_import_each_other() -> None:
    graph = {name: set(imported(name)) - {name} for name in MODULES}
    while ends := {name for name, others in graph.items() if not others}:
        graph = {name: others - ends for name, others in graph.items() if name not in ends}
    while unused := graph.keys() - {other for others in graph.values() for other in others}:
        graph = {name: others for name, others in graph.items() if name not in unused}

    assert not graph, f"files that import each other: {sorted(graph)}"
